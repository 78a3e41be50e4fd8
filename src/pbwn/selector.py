"""From a model and the user's wishes to a selection: `select`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from pbwn import text
from pbwn.axes import Axes, as_axes
from pbwn.layout import is_plain, memory_of, sharing
from pbwn.naming import NamedParameter, is_name, matches, named_parameters, suggestion
from pbwn.output_layer import OutputLayer, find_output_layer
from pbwn.paths import dtensor
from pbwn.reasons import Reason, axes_or_reason, unsupported
from pbwn.selection import ConstrainedWeight, LeftAlone, Selection

Verdict: TypeAlias = "tuple[list[NamedParameter], Axes | Reason]"


def select(
    model: nn.Module,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    *,
    include: Sequence[str] = (),
    skip: Sequence[str] = (),
    axes: Mapping[str, Axes | tuple[int, ...]] | None = None,
    output_layer: str | Sequence[str] | None = "auto",
    direction: Literal["incoming", "outgoing"] = "incoming",
    strict: bool = False,
    frozen: Literal["leave", "constrain"] = "leave",
) -> Selection:
    """Show which weights `attach` would constrain with these arguments, over which axes, and which not, and why.

    `include`, `skip` and the keys of `axes` are glob patterns over parameter names; the first two also match the name
    of a module, and with it all that it holds.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> print(select(model))
    1 weight constrained (8 neurons), 3 parameters left alone; output layer: '2' (the last Linear or convolution)
    <BLANKLINE>
    constrained  layer   shape  neurons  fan-in  axes
    -----------  ------  -----  -------  ------  ----
    0.weight     Linear  8x4          8       4  (0,)
    <BLANKLINE>
    left alone  layer   shape  reason
    ----------  ------  -----  --------------------------------------------------
    0.bias      Linear  8      bias
    2.weight    Linear  2x8    output layer (output_layer=None constrains it too)
    2.bias      Linear  2      bias
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model is a torch.nn.Module; found {type(model).__name__}")
    if axes is not None and not isinstance(axes, Mapping):
        raise TypeError(f"axes are given by the weight's name, such as axes={{'experts': (0, 1)}}; found {axes!r}")
    if direction not in ("incoming", "outgoing"):
        raise ValueError(f'direction is "incoming" or "outgoing"; found {direction!r}')
    if frozen not in ("leave", "constrain"):
        raise ValueError(f'frozen is "leave" or "constrain"; found {frozen!r}')
    dtensor.refuse_flattened(model)
    dtensor.reshard(model)
    selector = _Selector(
        parameters=_tied(model),
        include=_patterns("include", include),
        skip=_patterns("skip", skip),
        axes={pattern: _explicit(pattern, value) for pattern, value in (axes or {}).items()},
        output_layer=find_output_layer(model, output_layer, frozen_too=frozen == "constrain"),
        direction=direction,
        trained=None if optimizer is None else held_by(_listed(optimizer)),
        constrain_frozen=frozen == "constrain",
    )
    return selector.select(strict=strict)


@dataclass(frozen=True)
class _Selector:
    """The user's wishes, and the names under which each parameter of the model is found."""

    parameters: list[list[NamedParameter]]
    include: tuple[str, ...]
    skip: tuple[str, ...]
    axes: dict[str, Axes]
    output_layer: OutputLayer
    direction: str
    trained: set[int] | None
    constrain_frozen: bool

    def select(self, *, strict: bool) -> Selection:
        self._refuse_idle_patterns()
        constrained: list[ConstrainedWeight] = []
        left_alone: list[LeftAlone] = []
        verdicts = [(tied, self._verdict(tied)) for tied in self.parameters]
        self._refuse_vain_includes(verdicts)
        self._refuse_entangled(verdicts)
        for tied, verdict in verdicts:
            first, shape = tied[0], tuple(tied[0].parameter.shape)
            if isinstance(verdict, Reason):
                others = tuple(named.name for named in tied[1:])
                left_alone.append(LeftAlone(first.name, first.module, shape, verdict, others))
                continue
            padding = _padding(tied) if verdict == Axes((0,)) else None
            for same in _by_object(tied):  # each has a gradient of its own
                if any(map(self._is_trained, same)):
                    name, module, attribute, _ = same[0]
                    others = tuple(named.name for named in same[1:])
                    constrained.append(ConstrainedWeight(name, module, attribute, verdict, shape, padding, others))
        unknown = [left for left in left_alone if left.reason.unknown]
        if strict and unknown:
            listed = "; ".join(
                f"{left.name} ({left.layer}, {text.shape(left.shape)}): {left.reason}" for left in unknown
            )
            raise ValueError(f"strict=True, and {text.plural(len(unknown), 'weight')} could not be placed: {listed}")
        return Selection(tuple(constrained), tuple(left_alone), self.output_layer.description)

    def _verdict(self, tied: list[NamedParameter]) -> Axes | Reason:
        """What becomes of a parameter under all of its names: what is left alone under one of them is left alone."""
        explicit = {self.axes[pattern]: pattern for pattern in self.axes if _any_name(tied, pattern)}
        if len(explicit) > 1:
            raise ValueError(f"weight {tied[0].name!r} is given conflicting axes: {', '.join(map(str, explicit))}")
        skipped = next((pattern for pattern in self.skip if _any_match(tied, pattern)), None)
        if skipped is not None:
            if explicit:
                raise ValueError(f"weight {tied[0].name!r} is named by axes and by skip={skipped!r}: drop one of them")
            return Reason(f"skipped by {skipped!r}")
        if explicit:
            verdict: Axes | Reason = self._asked_for(tied[0], next(iter(explicit)))
        else:
            included = any(_any_match(tied, pattern) for pattern in self.include)
            verdict = _agree([(named, self._by_default(named, included)) for named in tied])
        if isinstance(verdict, Axes) and not any(map(self._is_trained, tied)):
            return _NOT_TRAINED
        return verdict

    def _refuse_entangled(self, verdicts: list[Verdict]) -> None:
        """Refuse weights whose numbers are another's in another order, as a weight and its transpose."""
        plain = [each for each in verdicts if is_plain(each[0][0].parameter)]
        for pair in sharing([tied[0].parameter for tied, _ in plain]):
            found = sorted((plain[index] for index in pair), key=lambda each: isinstance(each[1], Reason))
            (one, verdict), (other, _) = found  # the one that is constrained comes first
            is_chosen = any(_any_match(other, pattern) for pattern in self.skip)
            if isinstance(verdict, Axes) and any(map(self._is_trained, other)) and not is_chosen:
                raise ValueError(
                    f"{one[0].name} and {other[0].name} share memory, but not in the same order: what is done to one "
                    f"moves the other. Say which is left alone: skip=[{other[0].name!r}]"
                )

    def _is_trained(self, named: NamedParameter) -> bool:
        learns = named.parameter.requires_grad or self.constrain_frozen
        return learns and (self.trained is None or id(named.parameter) in self.trained)

    def _asked_for(self, named: NamedParameter, axes: Axes) -> Axes:
        misfit = axes.misfit(tuple(named.parameter.shape)) or unsupported(named)
        if misfit is None and named.parameter.numel() == 0:
            misfit = "the weight is empty"
        if misfit is None and not named.parameter.requires_grad and not self.constrain_frozen:
            misfit = "the weight is frozen (requires_grad=False)"
        if misfit is not None:
            raise ValueError(
                f"axes={{{named.name!r}: {axes}}}, shape {text.shape(tuple(named.parameter.shape))}: {misfit}"
            )
        return axes

    def _by_default(self, named: NamedParameter, included: bool) -> Axes | Reason:
        verdict = axes_or_reason(named, self.direction, frozen_too=self.constrain_frozen)
        if not included and (isinstance(verdict, Axes) or verdict.untrained):
            if isinstance(named.module, (nn.Embedding, nn.EmbeddingBag)):
                return _EMBEDDING
            if named.module in self.output_layer.modules:
                return _OUTPUT_LAYER
        return verdict

    def _refuse_idle_patterns(self) -> None:
        known = [named.name for tied in self.parameters for named in tied]
        modules = sorted({name.rpartition(".")[0] for name in known} - {""})
        for argument, patterns in (("include", self.include), ("skip", self.skip)):
            for pattern in patterns:
                if not any(matches(pattern, name) for name in known):
                    raise ValueError(f"{argument}={pattern!r} matches nothing: {suggestion(pattern, modules + known)}")
        for pattern in self.axes:
            if not any(_any_name(tied, pattern) for tied in self.parameters):
                raise ValueError(f"axes={{{pattern!r}: ...}} names no parameter: {suggestion(pattern, known)}")

    def _refuse_vain_includes(self, verdicts: list[Verdict]) -> None:
        for pattern in self.include:
            matched = [(tied[0].name, verdict) for tied, verdict in verdicts if _any_match(tied, pattern)]
            if not any(isinstance(verdict, Axes) or verdict is _NOT_TRAINED for _, verdict in matched):
                listed = "; ".join(f"{name}: {reason}" for name, reason in matched[:5])
                raise ValueError(f"include={pattern!r} matches nothing that can be constrained ({listed})")


_EMBEDDING = Reason("embedding (include= constrains it)")
_OUTPUT_LAYER = Reason("output layer (output_layer=None constrains it too)")
_NOT_TRAINED = Reason("not in the given optimizers", untrained=True)


def _agree(verdicts: list[tuple[NamedParameter, Axes | Reason]]) -> Axes | Reason:
    """One verdict for a weight that several modules share; what is not trained says nothing where another is."""
    verdicts = [each for each in verdicts if isinstance(each[1], Axes) or not each[1].untrained] or verdicts
    for index, (named, verdict) in enumerate(verdicts):
        if isinstance(verdict, Reason):
            return verdict if index == 0 else Reason(f"tied to {named.name}: {verdict}", verdict.unknown)
    found = {verdict for _, verdict in verdicts}
    if len(found) > 1:
        listed = ", ".join(f"{named.name}: {verdict}" for named, verdict in verdicts)
        raise ValueError(
            f"one weight is shared by layers with conflicting neuron axes ({listed}): say which holds with "
            f"axes={{{verdicts[0][0].name!r}: ...}}, or skip=[{verdicts[0][0].name!r}]"
        )
    return found.pop()


def _tied(model: nn.Module) -> list[list[NamedParameter]]:
    """The names of each parameter, in order of registration; parameters that are the same memory are one."""
    found: dict[Hashable, list[NamedParameter]] = {}
    for named in named_parameters(model):
        if is_lazy(named.parameter):
            raise ValueError(f"parameter {named.name!r} is lazy and has no shape yet: run one forward pass first")
        same = found.setdefault(memory_of(named.parameter) or id(named.parameter), [])
        if named.name not in [other.name for other in same]:  # a wrapper may hold what it wraps twice
            same.append(named)
    return list(found.values())


def _by_object(tied: list[NamedParameter]) -> list[list[NamedParameter]]:
    found: dict[int, list[NamedParameter]] = {}
    for named in tied:
        found.setdefault(id(named.parameter), []).append(named)
    return list(found.values())


def would_constrain(selection: Selection, named: NamedParameter) -> bool:
    """Whether a parameter that is trained now would be constrained: left alone because it was not, or new."""
    for left in selection.left_alone:
        place = (left.module, left.name.rpartition(".")[2])  # its name changes with layers that are put in or taken out
        if named.name in (left.name, *left.others) or (named.module, named.attribute) == place:
            return left.reason.untrained
    is_weight = isinstance(axes_or_reason(named, "incoming", frozen_too=False), Axes)
    return is_weight and not isinstance(named.module, (nn.Embedding, nn.EmbeddingBag))


def held_by(optimizers: Iterable[Optimizer]) -> set[int]:
    """The identities of the parameters that optimizers hold."""
    return {id(parameter) for one in optimizers for group in one.param_groups for parameter in group["params"]}


def _listed(optimizer: Optimizer | Iterable[Optimizer]) -> Iterable[Optimizer]:
    return [cast(Optimizer, optimizer)] if hasattr(optimizer, "param_groups") else optimizer


def _explicit(pattern: str, value: Axes | tuple[int, ...]) -> Axes:
    axes = as_axes(value)
    if not isinstance(axes, Axes):
        raise TypeError(f"axes={{{pattern!r}: ...}} takes a tuple of dimensions or pbwn.Axes; found {value!r}")
    return axes


def _patterns(argument: str, patterns: Sequence[str]) -> tuple[str, ...]:
    if isinstance(patterns, str):
        raise TypeError(f"{argument} is a list of patterns: write {argument}=[{patterns!r}]")
    if patterns is None or not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f"{argument} is a list of patterns, such as ['layer1.*']; found {patterns!r}")
    return tuple(patterns)


def _padding(tied: list[NamedParameter]) -> int | None:
    embeddings = (named.module for named in tied if isinstance(named.module, (nn.Embedding, nn.EmbeddingBag)))
    return next((module.padding_idx for module in embeddings if module.padding_idx is not None), None)


def _any_match(tied: list[NamedParameter], pattern: str) -> bool:
    return any(matches(pattern, named.name) for named in tied)


def _any_name(tied: list[NamedParameter], pattern: str) -> bool:
    return any(is_name(pattern, named.name) for named in tied)
