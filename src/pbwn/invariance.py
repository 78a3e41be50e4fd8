"""Whether the scale of a weight matters, found by rescaling it and comparing the model's outputs."""

from __future__ import annotations

import math
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from pbwn import functional
from pbwn.axes import Axes
from pbwn.forward import call_arguments, refusal_of, relative_changes, restoring, restoring_model, tensors_in
from pbwn.paths import dtensor
from pbwn.selection import ConstrainedWeight, Selection, select
from pbwn.selection.names import NamedParameter, by_object, is_scripted, named_parameters, unwrap
from pbwn.selection.rules import axes_or_reason
from pbwn.selection.table import Table, fold, plural, shape_text, tied_names, wrapped
from pbwn.selection.trace import function_name, trace_order

Scale: TypeAlias = Literal["each neuron free", "layer as a whole", "passes on", "has meaning", "no effect"]
Change: TypeAlias = "tuple[Tensor, Axes, Tensor]"  # a tensor, its axes, and a factor for each of its neurons

# Powers of two rescale without rounding in any dtype. The first set only enlarges: a normalisation's epsilon then acts
# less, not more, and its effect stays within half of epsilon over the variance. An unchanged output is confirmed with
# the second set, some of it small: a saturated function, or a single number that was equal by chance, changes then.
_SMALLEST = 1 / 16
_FACTORS = ((2.0, 4.0, 8.0, 16.0), (_SMALLEST, 1 / 4, 32.0, 64.0))
_COMMON = (64.0, _SMALLEST)
_EPSILONS = ("eps", "epsilon", "variance_epsilon")  # what normalisation layers call theirs
# What counts as no change, as a share of what a random change of the weight does: covers a normalisation's epsilon of
# 1e-5 if its input has a variance of at least about 0.002.
_TOLERANCE = 0.01
# The functions of torch that add a tensor: to another, or as the bias of a product.
_SUMS = re.compile(r"_{0,2}[ir]?(add|sub)_{0,2}|subtract")
_PRODUCTS = re.compile(r"(bi)?linear|add(mm|mv|bmm)|baddbmm|conv(_transpose)?[123]d|convolution")
_SHARE = 0.3  # least share of each trained parameter in a sum during the passes, by root mean square
_LARGEST_EFFECT = 2.0  # relative to the output: a larger one does not widen the tolerance
_VISIBLE = 10  # times rounding: where a random change of the weight does less, its scale cannot be judged
_SEED = 0


@dataclass(frozen=True)
class WeightScale:
    """What the scale of one weight does.

    Args:
        name: the weight's name, and `others` those of the weights that are tied to it.
        layer: the name of its layer's type.
        shape: the weight's shape.
        scale: "each neuron free" if rows can be rescaled one by one, "layer as a whole" if only all of them by one
            factor, "passes on" if the next layers can undo it, "has meaning" otherwise; "no effect" if, with these
            inputs, the output does not depend on the weight beyond rounding.
        constrained: whether the selection constrains it.
        per_matrix: whether it has one norm as a whole.
    """

    name: str
    layer: str
    shape: tuple[int, ...]
    scale: Scale
    constrained: bool
    per_matrix: bool = False
    others: tuple[str, ...] = ()

    @property
    def projection_is_free(self) -> bool:
        """Whether a projection leaves the model's output in training mode as it is, and the gradient is tangent."""
        return self.scale == "each neuron free" or (self.scale == "layer as a whole" and self.per_matrix)

    @property
    def decay_sets_the_rate(self) -> bool:
        """Whether weight decay changes nothing but the effective learning rate, lr / |w|²."""
        return self.scale in ("each neuron free", "layer as a whole")


@dataclass(frozen=True, repr=False)
class Invariance:
    """What `invariance` found; prints as a table with a line for each weight."""

    weights: tuple[WeightScale, ...]

    def __getitem__(self, name: str) -> WeightScale:
        """Look up a weight by its name."""
        for weight in self.weights:
            if name in (weight.name, *weight.others):
                return weight
        raise KeyError(f"no weight {name!r} was examined: {', '.join(weight.name for weight in self.weights[:8])}")

    def __repr__(self) -> str:
        counts = {scale: sum(weight.scale == scale for weight in self.weights) for scale in get_args(Scale)}
        listed = ", ".join(f"{count} {scale}" for scale, count in counts.items() if count)
        return f"<Invariance: {plural(len(self.weights), 'weight')}: {listed}>"

    def __str__(self) -> str:
        return self.text()

    def text(self, max_rows: int | None = None) -> str:
        """Return the table, with this many rows at most, and notes on what it means."""
        notes = "\n".join(map(wrapped, self._notes()))
        return "\n\n".join(part for part in (self._table().text(max_rows), notes) if part)

    def _repr_html_(self) -> str:
        return self._table().html() + "".join(f"<p>{escape(note)}</p>" for note in self._notes())

    def _table(self) -> Table:
        rows = fold([_row(weight) for weight in self.weights], name=lambda row: row[0], same=lambda row: row[1:])
        header = ["weight", "shape", "its scale", "the projection"]
        return Table(header, [(name, *row[1:]) for name, [row, *_] in rows])

    def _notes(self) -> list[str]:
        constrained = [weight for weight in self.weights if weight.constrained]
        changed = sum(not weight.projection_is_free and weight.scale != "no effect" for weight in constrained)
        notes = []
        if any(weight.scale == "each neuron free" for weight in self.weights):
            notes.append('note: "each neuron free": PBWN-Riem equals PBWN, and weight decay only sets the rate')
        if changed:
            notes.append(
                f"note: the initial projection changes what the model computes in {plural(changed, 'weight')}: for a "
                'pretrained model use UnitNorm(radius="initial"), which keeps the norms'
            )
        if any(weight.scale == "layer as a whole" and not weight.per_matrix for weight in constrained):
            notes.append('note: "layer as a whole": with per="matrix" the projection would change nothing')
        if any(weight.scale == "no effect" for weight in self.weights):
            notes.append(
                'note: "no effect": with these inputs the output does not depend on the weight beyond rounding; '
                "nothing is known of its scale"
            )
        return notes


def _row(weight: WeightScale) -> tuple[str, ...]:
    """Return a weight's row in the table."""
    if not weight.constrained:
        consequence = "not constrained"
    elif weight.scale == "no effect":
        consequence = "?"
    else:
        consequence = "changes nothing" if weight.projection_is_free else "changes the function"
    return tied_names(weight.name, weight.others), shape_text(weight.shape), weight.scale, consequence


def invariance(
    model: nn.Module,
    *inputs: Any,
    selection: Selection | None = None,
    output: Callable[[Any], Any] | None = None,
    progress: bool | None = None,
) -> Invariance:
    """Find for each weight that could be constrained whether its scale matters, by rescaling it.

    Rows are rescaled by different factors, then all by one, then with the next layers rescaled inversely; the first of
    these that leaves the output in training mode unchanged, with two sets of factors, decides. That takes up to five
    forward passes per weight, without gradients, with the same draws for dropout, and in float32 for what is in half
    precision. Weights, buffers, modes and random states are restored bit for bit afterwards.

    Parameters that start as constants, such as biases of zero, or small, do not show their later effect. So during the
    passes trained one-dimensional parameters are moved away from zero, weights that are all zero are made random, and
    what is added to features, such as biases and positions, is enlarged to a share of them.

    Args:
        model: any module, wrapped or not, on one process.
        inputs: what the model is called with; a batch of several examples where there is batch normalisation. A
            dictionary of arguments in the last place is passed as keyword arguments.
        selection: which weights are constrained, from `pbwn.select` or `projection.selection`; what `attach` would
            choose if not given.
        output: a function that picks what counts from the model's output, such as `lambda result: result.logits`; by
            default all floating-point tensors but cached keys and values.
        progress: whether to show a line of progress on stderr; None: if that is a terminal.

    >>> first = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
    >>> model = nn.Sequential(*first, nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    >>> print(invariance(model, torch.randn(16, 4)))
    weight    shape  its scale         the projection
    --------  -----  ----------------  --------------------
    0.weight  8x4    each neuron free  changes nothing
    3.weight  6x8    passes on         changes the function
    5.weight  2x6    has meaning       not constrained
    <BLANKLINE>
    note: "each neuron free": PBWN-Riem equals PBWN, and weight decay only sets the rate
    note: the initial projection changes what the model computes in 1 weight: for a
      pretrained model use UnitNorm(radius="initial"), which keeps the norms
    """
    _refuse(model)
    inner = unwrap(model)
    run = _Passes(inner, inputs, output)
    with (
        restoring_model(inner),
        torch.no_grad(),
        torch.compiler.set_stance("force_eager"),
        _in_float32(inner, inputs) as widened,
    ):
        if not inner.training:  # else each layer keeps the mode that it trains in
            inner.train()
        run.check(widened=widened)
        with restoring(run.written):
            found = select(inner, *inputs) if selection is None else selection
            following = {id(named.parameter): after for named, after in trace_order(inner, inputs)}
        constrained = {name: weight for weight in found.constrained for name in (weight.name, *weight.others)}
        candidates = _candidates(inner, constrained, found.choice.direction)
        if not candidates:
            raise ValueError(
                "the model has no weight that could be constrained: its layers are not known, or it has only biases "
                "and normalisation layers. pbwn.register(...) registers the axes of a layer"
            )
        scales: list[WeightScale] = []
        with _generic(inner), _enlarged(inner, run):
            bases = {epsilon: run(epsilon=epsilon) for epsilon in (1.0, _SMALLEST**2)}
            for number, weight in enumerate(candidates):
                _show(progress, number, len(candidates), weight.name)
                scales.append(
                    WeightScale(
                        weight.name,
                        weight.layer,
                        weight.shape,
                        _scale_of(weight, following.get(id(weight.tensor), []), bases, run),
                        constrained=weight.name in constrained,
                        per_matrix=found.choice.per == "matrix",
                        others=weight.others,
                    )
                )
            _show(progress, len(candidates), len(candidates), "")
    return Invariance(tuple(scales))


def _candidates(
    model: nn.Module, constrained: Mapping[str, ConstrainedWeight], direction: str
) -> list[ConstrainedWeight]:
    """Return every parameter whose neuron axes are known, frozen or not, once, in the model's order."""
    found = []
    for first, *others in by_object(named_parameters(model)):
        name, module, attribute, parameter = first
        axes = axes_or_reason(first, direction, frozen_too=True)
        if not isinstance(axes, Axes) and name in constrained:
            axes = constrained[name].axes  # those that the user passed
        if isinstance(axes, Axes):
            names = tuple(other.name for other in others)
            found.append(ConstrainedWeight(name, module, attribute, axes, tuple(parameter.shape), others=names))
    return found


class _Passes:
    """Forward passes in training mode, with the same random draws each time."""

    def __init__(self, model: nn.Module, inputs: Sequence[Any], output: Callable[[Any], Any] | None) -> None:
        self._model, self._inputs, self._output = model, inputs, output
        # What a pass may write to, apart from buffers: inputs, and embeddings that are renormalised in it.
        embeddings = [module for module in model.modules() if getattr(module, "max_norm", None) is not None]
        self.written = [*tensors_in(inputs), *(weight for module in embeddings for weight in module.parameters())]

    def __call__(self, *, epsilon: float = 1.0) -> list[Tensor]:
        """Return the output's floating-point tensors, with the epsilons of normalisation layers times a factor."""
        torch.clear_autocast_cache()  # which holds casts of earlier weights
        positional, keyword = call_arguments(self._model, self._inputs)
        with restoring_model(self._model), restoring(self.written), _epsilons_times(epsilon, self._model):
            torch.manual_seed(_SEED)
            random.seed(_SEED)
            return self._picked(self._model(*positional, **keyword))

    def _picked(self, output: Any) -> list[Tensor]:
        """Copy the tensors in the output that count: a model may return one that the next pass writes to."""
        if self._output is not None:
            output = self._output(output)
        elif hasattr(output, "items"):  # cached keys and values are not a result
            output = {name: value for name, value in output.items() if name != "past_key_values"}
        found = (tensor for tensor in tensors_in(output) if tensor.is_floating_point() or tensor.is_complex())
        return [tensor.detach().clone() for tensor in found]

    def check(self, *, widened: bool) -> None:
        """Refuse inputs on which the model fails, outputs without floating-point tensors, and passes that vary."""
        advice = (
            "pass what its forward takes, pbwn.invariance(model, *inputs), with several examples where it normalises "
            "batches"
        )
        if widened:
            advice += "; half precision is computed in float32 here, which the model's own casts must allow"
        with refusal_of("these inputs in training mode", advice), _refusing_pairs(self._model):
            first, second = self(), self()
        if not first:
            raise ValueError(
                "the model returns no floating-point tensor: pass output= with a function that picks one from what it "
                "returns, such as logits before a sample is drawn"
            )
        if any(change > _floor(tensor) for change, tensor in zip(relative_changes(second, first), first, strict=True)):
            raise ValueError(
                "the model's output differs from pass to pass with the same inputs and seeds: pass inputs for which it "
                "does not, or switch off what draws from a random source other than torch's and Python's"
            )


def _scale_of(
    candidate: ConstrainedWeight, after: Sequence[NamedParameter], bases: Mapping[float, list[Tensor]], run: _Passes
) -> Scale:
    """Rescale a weight in one way after another until the output stays as it is.

    `bases` are the outputs to compare with, by the factor of the epsilons of normalisation layers.
    """
    weight, axes, base = candidate.tensor, candidate.axes, bases[1.0]
    floors = [_floor(tensor, weight.dtype) for tensor in base]

    @cache
    def effects() -> list[float]:
        """Return the effect of a random change of the weight, in a pass that is made only when needed."""
        with restoring([weight]):
            _disturb_(weight, axes)
            return relative_changes(run(), base)

    def stays(changes: Sequence[Change]) -> bool:
        with restoring([tensor for tensor, _, _ in changes]):
            for tensor, neurons, multiples in changes:
                functional.scale_rows_(tensor, neurons, multiples)
            epsilon = min(1.0, float(changes[0][2].min()) ** 2)
            found = relative_changes(run(epsilon=epsilon), bases[epsilon])
        if any(change > max(_TOLERANCE * _LARGEST_EFFECT, floor) for change, floor in zip(found, floors, strict=True)):
            return False
        tolerances = [_TOLERANCE * min(effect, _LARGEST_EFFECT) for effect in effects()]
        return all(change <= max(pair) for change, *pair in zip(found, tolerances, floors, strict=True))

    def kept_by(alternatives: Iterable[Sequence[Change]]) -> bool:
        return all(changes and stays(changes) for changes in alternatives)

    mixed = [_factors(axes.neuron_shape(tuple(weight.shape)), weight, values) for values in _FACTORS]
    alike = [torch.full_like(mixed[0], factor) for factor in _COMMON] if mixed[0].numel() > 1 else []
    if kept_by([(weight, axes, factors)] for factors in mixed):
        scale: Scale = "each neuron free"
    elif alike and kept_by([(weight, axes, factors)] for factors in alike):
        scale = "layer as a whole"
    elif kept_by(_moved_on(candidate, after, factors) for factors in mixed):
        scale = "passes on"
    else:
        return "has meaning"
    is_visible = any(effect > _VISIBLE * floor for effect, floor in zip(effects(), floors, strict=True))
    return scale if is_visible else "no effect"


def _moved_on(candidate: ConstrainedWeight, after: Sequence[NamedParameter], factors: Tensor) -> list[Change]:
    """Return factors of the rows and their biases, and the inverse ones of all next layers; none where that is unclear.

    Where features were flattened in between, each row feeds a block of columns of equal length.
    """
    changes: list[Change] = [(candidate.tensor, candidate.axes, factors)]
    bias = candidate.module._parameters.get("bias")
    if bias is not None:
        if bias.ndim != 1 or bias.numel() != factors.numel():
            return []
        changes.append((bias, Axes((0,)), factors.flatten()))
    for named in {id(named.parameter): named for named in after}.values():
        axes = axes_or_reason(named, "outgoing", frozen_too=True)
        if not isinstance(axes, Axes) or named.parameter is candidate.tensor:
            return []
        shape = axes.neuron_shape(tuple(named.parameter.shape))
        length, rest = divmod(torch.Size(shape).numel(), factors.numel())
        if rest or not length:
            return []
        inverse = factors.reciprocal().flatten().repeat_interleave(length).view(shape)
        changes.append((named.parameter, axes, inverse.to(named.parameter.device)))
    return changes if after else []


def _factors(shape: tuple[int, ...], weight: Tensor, values: Sequence[float]) -> Tensor:
    """Return a factor for each neuron, in random order, so that neighbours differ."""
    generator = torch.Generator().manual_seed(_SEED)
    count = torch.Size(shape).numel()
    cycle = torch.tensor(values, dtype=torch.float64).repeat(count // len(values) + 1)[:count]
    factors = cycle[torch.randperm(count, generator=generator)].view(shape)
    return factors.to(weight.device, functional.wide_dtype(weight))


def _disturb_(weight: Tensor, axes: Axes) -> None:
    """Turn each neuron's weights by about 45 degrees."""
    generator = torch.Generator().manual_seed(_SEED + 1)
    noise = torch.randn(weight.shape, generator=generator, dtype=torch.float32).to(weight)
    norms = functional.row_norms(weight, axes)
    ratio = norms / functional.row_norms(noise, axes)
    weight.add_(functional.scale_rows_(noise, axes, ratio.nan_to_num(0, 0, 0)))


@contextmanager
def _in_float32(model: nn.Module, inputs: Sequence[Any]) -> Iterator[bool]:
    """Convert half precision to float32: its rounding hides the effect of small parts of a model."""
    found = (*model.parameters(), *model.buffers(), *tensors_in(inputs))
    tensors = {id(tensor): tensor for tensor in found}.values()
    kept = [(tensor, tensor.data) for tensor in tensors if tensor.dtype in (torch.float16, torch.bfloat16)]
    with ExitStack() as stack:
        for device_type in {tensor.device.type for tensor in tensors}:
            stack.enter_context(torch.autocast(device_type, enabled=False))
        try:
            with torch.inference_mode(mode=False):  # else a parameter would become another kind of tensor
                for tensor, half in kept:
                    tensor.data = half.float()
            yield bool(kept)
        finally:
            for tensor, half in kept:
                tensor.data = half


@contextmanager
def _refusing_pairs(model: nn.Module) -> Iterator[None]:
    """Refuse batches of two: batch normalisation turns each pair of values into signs, whatever their scale."""

    def refuse(module: nn.Module, args: tuple[Any, ...]) -> None:
        if module.training and args and args[0].ndim > 1 and args[0].numel() == 2 * args[0].shape[1]:
            raise ValueError("batch normalisation of two values per channel leaves only their order")

    norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
    handles = [norm.register_forward_pre_hook(refuse) for norm in norms]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _epsilons_times(factor: float, model: nn.Module) -> Iterator[None]:
    """Multiply the epsilons of normalisation layers, to match variances that small factors of a weight reduce."""
    modules = [module for module in model.modules() if not is_scripted(module)]
    found = [(vars(module), name) for module in modules for name in _EPSILONS if type(vars(module).get(name)) is float]
    kept = [values[name] for values, name in found]
    try:
        for values, name in found:
            values[name] *= factor
        yield
    finally:
        for (values, name), value in zip(found, kept, strict=True):
            values[name] = value


@contextmanager
def _generic(model: nn.Module) -> Iterator[None]:
    """Move parameters that train away from values at which they do nothing: biases, gains and weights of zero."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    small = [parameter for parameter in trained if parameter.ndim < 2 and parameter.is_floating_point()]
    zero = [parameter for parameter in trained if parameter.ndim > 1 and not parameter.any()]
    generator = torch.Generator().manual_seed(_SEED + 2)
    with restoring([*small, *zero]):
        for parameter in small:  # the sign stays, as some are positive by definition
            draws = torch.rand((2, *parameter.shape), generator=generator, dtype=torch.float64).to(parameter)
            sign = parameter.sign().where(parameter != 0, (draws[0] - 0.5).sign())
            parameter.copy_(sign * parameter.abs().clamp(min=0.2) * (0.5 + draws[1]))
        for parameter in zero:
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        yield


@contextmanager
def _enlarged(model: nn.Module, run: _Passes) -> Iterator[None]:
    """Enlarge trained parameters that are small relative to what they are added to, as biases are with large inputs."""
    with _Sums(parameter for parameter in model.parameters() if parameter.requires_grad) as sums:
        run()
    small = [(parameter, _SHARE * ratio) for parameter, ratio in sums.ratios.items() if 1 < _SHARE * ratio < math.inf]
    with restoring([parameter for parameter, _ in small]):
        for parameter, factor in small:
            parameter.mul_(factor)
        yield


class _Sums(TorchFunctionMode):
    """Measures the sums that parameters are part of, as multiples of the part."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__()
        self.ratios: dict[nn.Parameter, float] = {}
        self._sources = WeakTensorKeyDictionary()  # the only parameter that a tensor was computed from, if any
        for parameter in parameters:
            self._sources[parameter] = parameter

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        operands = [tensor for tensor in tensors_in((args, kwargs)) if tensor.is_floating_point()]
        sources = [self._sources.get(operand) for operand in operands]
        result = func(*args, **(kwargs or {}))
        if not (operands and isinstance(result, Tensor) and result.is_floating_point()):
            return result
        alone = all(source is sources[0] for source in sources)
        self._sources[result] = sources[0] if alone else None
        name = function_name(func)
        for operand, source in zip(operands, sources, strict=True):
            adds = _SUMS.fullmatch(name) or (_PRODUCTS.fullmatch(name) and operand.ndim == 1)
            if adds and source is not None and not alone:
                ratio = _size(result) / max(_size(operand), torch.finfo(torch.float32).tiny)
                self.ratios[source] = max(ratio, self.ratios.get(source, 0.0))
        return result


def _size(tensor: Tensor) -> float:
    """Return the root mean square of the finite elements."""
    wide = tensor.detach().to(functional.wide_dtype(tensor))
    return float(wide.where(wide.isfinite(), 0).square().mean().sqrt())


def _floor(output: Tensor, weight_dtype: torch.dtype | None = None) -> float:
    """Return the relative change that rounding alone may cause."""
    return 8 * max(torch.finfo(dtype).eps for dtype in (output.dtype, weight_dtype or output.dtype))


def _refuse(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model must be a torch.nn.Module; got {type(model).__name__}")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise ValueError(f"{name!r} is lazy and has no shape yet: call the model once first")
        if tensor.is_meta:
            raise ValueError(f"{name!r} is on the meta device and has no values: materialise it first")
        if dtensor.is_sharded(tensor):
            raise ValueError(f"{name!r} is sharded over processes: call this on one process, before sharding")
    dtensor.refuse_flattened(model)


def _show(progress: bool | None, done: int, total: int, name: str) -> None:
    """Show the progress on a line that is overwritten each time."""
    if progress or (progress is None and sys.stderr.isatty()):
        end = "\n" if done == total else ""
        print(f"\r\x1b[Kinvariance: {done} of {total} weights {name}", end=end, file=sys.stderr, flush=True)
