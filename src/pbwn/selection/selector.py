"""`select`: the selection of a model's weights as the user requests."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from pbwn.axes import Axes, as_axes, matrix_axes
from pbwn.layout import is_plain, memory_of, sharing
from pbwn.paths import dtensor
from pbwn.selection.names import NamedParameter, by_object, check_word, matches, named_parameters, suggestion
from pbwn.selection.output_layer import OutputLayer, find_output_layer
from pbwn.selection.rules import (
    EMBEDDING,
    NOT_HELD,
    OUTPUT_LAYER,
    TIED_EMBEDDING,
    Reason,
    axes_or_reason,
    default_axes,
    unsupported,
)
from pbwn.selection.table import folded, plural, shape_text, tied_names
from pbwn.selection.weights import Choice, ConstrainedWeight, LeftAlone, Selection, held_by
from pbwn.selection.zeros import without_zeros
from pbwn.warning import warn

Verdict: TypeAlias = "tuple[list[NamedParameter], Axes | Reason]"

_NOT_NAMED = Reason("not named by only=")
_warned: set[Hashable] = set()  # the warnings that this process has already shown


def select(
    model: nn.Module,
    *inputs: Any,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    only: Sequence[str] = (),
    also: Sequence[str] = (),
    skip: Sequence[str] = (),
    axes: Mapping[str, Axes | tuple[int, ...]] | None = None,
    output_layer: str | Sequence[str] | None = "auto",
    direction: Literal["incoming", "outgoing"] = "incoming",
    per: Literal["neuron", "matrix"] = "neuron",
    strict: bool = False,
    frozen: Literal["leave", "constrain"] = "leave",
) -> Selection:
    """Show which weights `attach` would constrain with these arguments, over which axes, and which not, and why.

    `only`, `also`, `skip` and the keys of `axes` are glob patterns over the names of parameters and modules; a module's
    name stands for all that it holds. The result can be passed to `attach` as `selection=`.

    Args:
        model: any module, wrapped or not.
        inputs: what the model is called with. With them, the output layers are traced in one forward pass: those whose
            output reaches the model's output through no other layer. A dictionary of arguments in the last position is
            passed as keyword arguments. Without them, the output layers are found by the model's own getters or by
            their names, or guessed.
        optimizer: the optimizer that trains the model, or several: weights that none of them holds are left alone.
        only: constrain only what matches, embeddings and output layers included.
        also: constrain these in addition to the default choice, such as embeddings.
        skip: leave these alone.
        axes: neuron axes of weights in custom layers.
        output_layer: "auto" finds it and leaves it alone, None constrains it too, names of modules choose others.
        direction: "incoming" weights of each neuron, or "outgoing" ones.
        per: one norm for each "neuron", or one for each whole "matrix".
        strict: raise an error for a weight with unknown neuron axes, rather than warn and list it in the table.
        frozen: whether to "leave" weights that need no gradient, or to "constrain" them too.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> print(select(model))
    1 weight constrained (8 neurons, 32 elements, 55 % of the parameters)
    3 parameters left alone (26 elements, 45 %)
    output layer: '2' (the last Linear or convolution)
    <BLANKLINE>
    constrained  layer   shape  neurons  fan-in  axes
    -----------  ------  -----  -------  ------  ----
    0.weight     Linear  8x4          8       4  (0,)
    <BLANKLINE>
    left alone  layer   shape  reason
    ----------  ------  -----  ------------
    0.bias      Linear  8      bias
    2.weight    Linear  2x8    output layer
    2.bias      Linear  2      bias
    <BLANKLINE>
    note: output_layer=None constrains the output layer too
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model must be a torch.nn.Module; got {type(model).__name__}")
    flat_inputs = [item for value in inputs for item in (value if isinstance(value, (list, tuple)) else [value])]
    if any(hasattr(item, "param_groups") for item in flat_inputs):
        raise TypeError(
            "after the model come its inputs: pass an optimizer by name, select(model, optimizer=optimizer)"
        )
    if axes is not None and not isinstance(axes, Mapping):
        raise TypeError(f"axes must be given by the weight's name, such as axes={{'experts': (0, 1)}}; got {axes!r}")
    check_word("direction", direction, "incoming", "outgoing")
    check_word("per", per, "neuron", "matrix")
    check_word("frozen", frozen, "leave", "constrain")
    choice = Choice(
        only=_patterns("only", only),
        also=_patterns("also", also),
        skip=_patterns("skip", skip),
        axes={pattern: as_axes(value) for pattern, value in (axes or {}).items()},
        direction=direction,
        per=per,
        spares_heads=output_layer == "auto",
    )
    if choice.only and choice.also:
        raise ValueError("only= replaces the default choice, and also= adds to it: name all weights in only=")
    dtensor.refuse_flattened(model)
    found = (
        OutputLayer(frozenset(), "constrained where only= names it")
        if choice.only
        else find_output_layer(model, output_layer, inputs)
    )
    dtensor.reshard(model)  # after a forward pass, gathered copies may be in place of shards
    selector = _Selector(
        choice=choice,
        parameters=_tied(model),
        output_layer=found,
        trained=None if optimizer is None else held_by(optimizer),
        constrain_frozen=frozen == "constrain",
    )
    selection = selector.select()
    if strict:
        _refuse_unknown(selection)
    _warn_of_guesses(model, selection, found)
    return selection


@dataclass(frozen=True)
class _Selector:
    """The user's request, and the names of each parameter of the model."""

    choice: Choice
    parameters: list[list[NamedParameter]]
    output_layer: OutputLayer
    trained: set[int] | None
    constrain_frozen: bool

    def select(self) -> Selection:
        self._refuse_patterns_without_match()  # first: a mistyped one may be meant to resolve a conflict
        verdicts = [(tied, self._verdict(tied)) for tied in self.parameters]
        self._refuse_patterns_without_effect(verdicts)
        self._refuse_shared_memory(verdicts)
        constrained: list[ConstrainedWeight] = []
        left_alone: list[LeftAlone] = []
        for tied, verdict in verdicts:
            first = tied[0]
            shape = (first.parameter.numel(),) if first.parameter.is_nested else tuple(first.parameter.shape)
            if isinstance(verdict, Reason):
                others = tuple(named.name for named in tied[1:])
                left_alone.append(LeftAlone(first.name, first.module, shape, verdict, others))
                continue
            if self.choice.per == "matrix" and verdict.neurons:
                verdict = matrix_axes(verdict, first.module, first.name)
            padding = _padding(tied) if verdict == Axes((0,)) else None
            for same in by_object(tied):  # each has a gradient of its own
                if any(map(self._is_trained, same)):
                    name, module, attribute, _ = same[0]
                    others = tuple(named.name for named in same[1:])
                    constrained.append(ConstrainedWeight(name, module, attribute, verdict, shape, padding, others))
        output_layer = self._output_layer_found(constrained)
        selection = Selection(tuple(constrained), tuple(left_alone), output_layer, self.choice)
        return without_zeros(selection, exchange=False)

    def _output_layer_found(self, constrained: Iterable[ConstrainedWeight]) -> str:
        """Return how the output layer was found, and which of its weights are constrained nevertheless."""
        heads = {named.name for tied in self.parameters for named in tied if named.module in self.output_layer.modules}
        found = folded(tied_names(w.name, w.others) for w in constrained if heads & {w.name, *w.others})
        return self.output_layer.description + (f", constrained on request: {', '.join(found)}" if found else "")

    def _verdict(self, tied: list[NamedParameter]) -> Axes | Reason:
        """Return the verdict on a parameter under all of its names: one reason to leave it alone is enough."""
        explicit = self._explicit_axes(tied)
        skipped = next((pattern for pattern in self.choice.skip if _any_match(tied, pattern)), None)
        if skipped is not None:
            if explicit is not None:
                raise ValueError(f"weight {tied[0].name!r} is named by axes and by skip={skipped!r}: drop one of them")
            return Reason(f"skipped by {skipped!r}")
        by_default = partial(
            default_axes,
            direction=self.choice.direction,
            is_named=self.choice.includes(named.name for named in tied),
            output_layer=self.output_layer.modules,
            frozen_too=self.constrain_frozen,
        )
        verdict = explicit or _agree([(named, by_default(named)) for named in tied])
        if self.choice.only and not any(_any_match(tied, pattern) for pattern in self.choice.only):
            return _NOT_NAMED if isinstance(verdict, Axes) or verdict.unknown else verdict
        if isinstance(verdict, Axes) and not any(map(self._is_trained, tied)):
            return NOT_HELD
        return verdict

    def _explicit_axes(self, tied: list[NamedParameter]) -> Axes | None:
        """Return the axes that the user gave for a weight, by its name or by that of a module that holds it."""
        given: dict[Axes, None] = {}
        for pattern, axes in self.choice.axes.items():
            named = next((named for named in tied if matches(pattern, named.name)), None)
            if named is None:
                continue
            is_exact = any(named.name == pattern for named in tied)
            by_itself = axes_or_reason(named, self.choice.direction, frozen_too=self.constrain_frozen)
            if is_exact or isinstance(by_itself, Axes) or by_itself.unknown:  # a module's name means its weights only
                self._refuse_mismatch(pattern, named, axes, is_exact=is_exact)
                given[axes] = None
        if len(given) > 1:
            raise ValueError(f"weight {tied[0].name!r} is given conflicting axes: {', '.join(map(str, given))}")
        return next(iter(given), None)

    def _refuse_mismatch(self, pattern: str, named: NamedParameter, axes: Axes, *, is_exact: bool) -> None:
        shape = tuple(named.parameter.shape)
        mismatch = axes.mismatch(shape) or unsupported(named)
        if mismatch is None and named.parameter.numel() == 0:
            mismatch = "the weight is empty"
        if mismatch is None and not named.parameter.requires_grad and not self.constrain_frozen:
            mismatch = "the weight is frozen (requires_grad=False)"
        if mismatch is not None:
            matched = "" if is_exact else f" match {named.name!r}"
            advice = "" if is_exact else ". Name the weights that have these axes one by one"
            raise ValueError(f"axes={{{pattern!r}: {axes}}}{matched}, shape {shape_text(shape)}: {mismatch}{advice}")

    def _is_trained(self, named: NamedParameter) -> bool:
        learns = named.parameter.requires_grad or self.constrain_frozen
        return learns and (self.trained is None or id(named.parameter) in self.trained)

    def _refuse_patterns_without_match(self) -> None:
        known = [named.name for tied in self.parameters for named in tied]
        for _, pattern, written in self._given_patterns():
            if not any(matches(pattern, name) for name in known):
                raise ValueError(f"{written} matches nothing: {suggestion(pattern, known)}")

    def _refuse_patterns_without_effect(self, verdicts: list[Verdict]) -> None:
        for argument, pattern, written in self._given_patterns():
            matched = [(tied[0].name, verdict) for tied, verdict in verdicts if _any_match(tied, pattern)]
            has_effect = any(isinstance(verdict, Axes) or verdict is NOT_HELD for _, verdict in matched)
            if argument != "skip" and not has_effect:
                listed = "; ".join(f"{name}: {reason}" for name, reason in matched[:5])
                more = f"; {len(matched) - 5} more" if len(matched) > 5 else ""
                raise ValueError(f"{written} matches nothing that can be constrained ({listed}{more})")

    def _given_patterns(self) -> list[tuple[str, str, str]]:
        """Return each pattern with the name of its argument and the text that the user wrote."""
        lists = {"only": self.choice.only, "also": self.choice.also, "skip": self.choice.skip}
        found = [(name, pattern, f"{name}={pattern!r}") for name, patterns in lists.items() for pattern in patterns]
        return found + [("axes", pattern, f"axes={{{pattern!r}: ...}}") for pattern in self.choice.axes]

    def _refuse_shared_memory(self, verdicts: list[Verdict]) -> None:
        """Refuse weights that share elements with another in another order, such as a weight and its transpose."""
        plain = [(tied, verdict) for tied, verdict in verdicts if is_plain(tied[0].parameter)]
        for pair in sharing([tied[0].parameter for tied, _ in plain]):
            found = sorted((plain[index] for index in pair), key=lambda item: isinstance(item[1], Reason))
            (first, verdict), (other, _) = found  # the one that is constrained comes first
            is_chosen = any(_any_match(other, pattern) for pattern in self.choice.skip)
            if isinstance(verdict, Axes) and any(map(self._is_trained, other)) and not is_chosen:
                raise ValueError(
                    f"{first[0].name} and {other[0].name} share memory, but not in the same order: changing one "
                    f"changes the other. Choose one to leave alone: skip=[{other[0].name!r}]"
                )


def _agree(verdicts: list[tuple[NamedParameter, Axes | Reason]]) -> Axes | Reason:
    """Merge the verdicts on a weight that several modules share; untrained ones do not count if another is trained."""
    trained = [pair for pair in verdicts if isinstance(pair[1], Axes) or not pair[1].untrained]
    verdicts = trained or verdicts
    if {EMBEDDING, OUTPUT_LAYER} <= {verdict for _, verdict in verdicts}:
        return TIED_EMBEDDING
    for index, (named, verdict) in enumerate(verdicts):
        if isinstance(verdict, Reason):
            return verdict if index == 0 else replace(verdict, text=f"tied to {named.name}: {verdict}")
    found = {verdict for _, verdict in verdicts}
    if len(found) > 1:
        listed = ", ".join(f"{named.name}: {verdict}" for named, verdict in verdicts)
        raise ValueError(
            f"one weight is shared by layers with conflicting neuron axes ({listed}): resolve this with "
            f"axes={{{verdicts[0][0].name!r}: ...}}, or skip=[{verdicts[0][0].name!r}]"
        )
    return found.pop()


def _refuse_unknown(selection: Selection) -> None:
    unknown = selection.unknown
    if unknown:
        listed = "; ".join(
            f"{other.name} ({other.layer}, {shape_text(other.shape)}): {other.reason}" for other in unknown[:10]
        )
        more = f"; {len(unknown) - 10} more" if len(unknown) > 10 else ""
        raise ValueError(f"strict=True, and the axes of {plural(len(unknown), 'weight')} are unknown: {listed}{more}")


def _warn_of_guesses(model: nn.Module, selection: Selection, output_layer: OutputLayer) -> None:
    """Warn about weights of unknown axes, and about a guessed output layer, once for each type of model."""
    unknown = folded(other.name for other in selection.unknown)
    if unknown:
        listed = ", ".join(map(repr, unknown[:5])) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        is_stack = len(selection.unknown[0].shape) == 3
        example, stored = ("(0, 1)", "(expert, out, in)") if is_stack else ("(0,)", "(out, in)")
        _warn_once(
            model,
            f"{plural(len(selection.unknown), 'weight')} left alone because the neuron axes are unknown: {listed}. Say "
            f"which dimensions index neurons, such as axes={{{unknown[0]!r}: {example}}} if it is stored {stored}, or "
            f"leave it alone without this warning: skip=[{unknown[0]!r}]",
        )
    if output_layer.is_guess and any(other.reason is OUTPUT_LAYER for other in selection.left_alone):
        _warn_once(
            model,
            f"the output layer is {output_layer.description}. Name it with output_layer=, or let "
            "pbwn.select(model, *inputs) see it in a forward pass and pass what that returns as selection=",
        )


def _warn_once(model: nn.Module, message: str) -> None:
    kind = type(model)
    key = (kind.__module__, kind.__qualname__, message)
    if key not in _warned:
        _warned.add(key)
        warn(f"{kind.__name__}: {message}")


def _tied(model: nn.Module) -> list[list[NamedParameter]]:
    """Group the names of each parameter, in order of registration; parameters with the same memory are one."""
    found: dict[Hashable, list[NamedParameter]] = {}
    for named in named_parameters(model):
        if is_lazy(named.parameter):
            raise ValueError(f"parameter {named.name!r} is lazy and has no shape yet: run one forward pass first")
        same = found.setdefault(memory_of(named.parameter) or id(named.parameter), [])
        if named.name not in [other.name for other in same]:  # a wrapper may hold what it wraps twice
            same.append(named)
    return list(found.values())


def _patterns(argument: str, patterns: Iterable[str]) -> tuple[str, ...]:
    if isinstance(patterns, str):
        raise TypeError(f"{argument} is a list of patterns: write {argument}=[{patterns!r}]")
    found = tuple(patterns) if isinstance(patterns, Iterable) else (patterns,)
    if not all(isinstance(pattern, str) for pattern in found):
        raise TypeError(f"{argument} must be a list of patterns, such as ['layer1.*']; got {patterns!r}")
    return found


def _padding(tied: list[NamedParameter]) -> int | None:
    embeddings = (named.module for named in tied if isinstance(named.module, (nn.Embedding, nn.EmbeddingBag)))
    return next((module.padding_idx for module in embeddings if module.padding_idx is not None), None)


def _any_match(tied: list[NamedParameter], pattern: str) -> bool:
    return any(matches(pattern, named.name) for named in tied)
