"""Running statistics that follow a projection: which weights each batch normalisation's statistics belong to.

Which layer feeds which is observed in forward passes: the tensor that a weight's product returns must go into a batch
normalisation, and nowhere else. Nothing is guessed.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from threading import get_ident
from types import FrameType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from pbwn.axes import Axes
from pbwn.constraint import TOLERANCE, Constraint
from pbwn.forward import (
    call_arguments,
    refusal_of,
    relative_changes,
    restorer_of,
    restoring,
    restoring_model,
    tensors_in,
)
from pbwn.optimizer_hooks import callers
from pbwn.paths import dtensor
from pbwn.selection import ConstrainedWeight
from pbwn.selection.names import NamedModule, layer_name, named_modules, named_parameters, unwrap
from pbwn.selection.table import Table, fold
from pbwn.selection.trace import function_name

# torch's products with a matrix: the dimension of the matrix that becomes the channels of the output.
_PRODUCTS = {"linear": 0, **{f"conv{n}d": 0 for n in (1, 2, 3)}, **{f"conv_transpose{n}d": 1 for n in (1, 2, 3)}}
_NORMALISING = re.compile("batch_norm.*|contiguous")  # what torch's batch normalisations call on their inputs
_CALLS = 100  # observed passes in training mode, at most: layers that none of them used are given up
# What folding may change, as a share of the output: rounding, and in training an epsilon that acts on batch statistics.
_FOLDED = {"evaluation": 0.01, "training": 0.05}
_GATHERED = 5  # times 1 / momentum: after so many steps, 0.7 % of the statistics are older than the last projection


@dataclass(frozen=True)
class Feed:
    """The input of a batch normalisation.

    Args:
        weight: the name of the weight whose product it is, or None.
        obstacle: why its statistics cannot follow, or None.
        bias: whether a bias is added to the product.
    """

    weight: str | None = None
    obstacle: str | None = None
    bias: bool = False

    @property
    def follows(self) -> str | None:
        """The name of the weight that the statistics follow, or None."""
        return None if self.obstacle is not None or self.bias else self.weight

    def text(self) -> str:
        """Return its cell in a table."""
        if self.follows is not None:
            return self.follows
        return f"nothing: {self.obstacle or f'{self.weight} is followed by a bias'}"


class BatchStatistics:
    """The batch normalisations of a model, and the constrained weights that feed them."""

    def __init__(self, model: nn.Module, weights: Sequence[ConstrainedWeight]) -> None:
        self._model, self._weights = unwrap(model), weights
        self.feeds: dict[str, Feed] = {}
        self.gains: dict[str, str] = {}  # of weights whose product is directly multiplied by a vector: its name
        self._biases: dict[str, set[str]] = {}  # the names of the biases in each weight's products
        self._settled: set[str] = set()  # batch normalisations that were seen in training mode
        self._calls = 0  # passes that were seen in training mode
        self._handles: list[Any] = []
        self._observer: _PassObserver | None = None

    def watch(self) -> None:
        """Observe forward passes until each batch normalisation was seen in training mode.

        Any module's call may be the outermost: a framework may call parts of the model one by one.
        """
        if self._unsettled() and self._calls < _CALLS:
            self._register()

    def _register(self) -> None:
        for module in self._model.modules() if not self._handles else ():
            begin, end = _Hook(self, "_begin"), _Hook(self, "_end")
            self._handles.append(module.register_forward_pre_hook(begin, with_kwargs=True))
            self._handles.append(module.register_forward_hook(end, always_call=True))

    def ignore(self) -> None:
        """Stop observing."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._abandon()

    def observe(self, inputs: Any) -> None:
        """Observe one pass with example inputs, in the model's own mode and without side effects."""
        self._register()
        advice = 'pass what its forward takes (a tuple if it takes several arguments), or "auto", or None'
        try:
            with refusal_of("the example inputs in follow=", advice):
                self._output(inputs, training=self._model.training)
        finally:
            self.ignore()
        self._settled = {norm.name for norm in self._norms()}

    @property
    def is_watching(self) -> bool:
        """Whether forward passes are being observed."""
        return bool(self._handles)

    @property
    def is_unobserved(self) -> bool:
        """Whether there are statistics, but no forward pass has shown which weights they belong to."""
        counts = (getattr(norm.module, "num_batches_tracked", None) for norm in self._norms())
        return not self.feeds and any(count is not None and int(count) > 0 for count in counts)

    def can_follow(self, every: int | None) -> bool:
        """Whether any statistics would follow at this interval; None for a call of `project()`."""
        return any(_may_follow(norm.module, every) for norm in self._norms())

    def state(self) -> dict[str, Any]:
        """Return what was observed, as plain values."""
        feeds = {name: asdict(feed) for name, feed in self.feeds.items()}
        return {"feeds": feeds, "settled": sorted(self._settled)}

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Restore what was observed in the run that saved the state."""
        if state is not None:
            # The names as the same objects: a pickled state is then byte for byte that of an uninterrupted run.
            names = {weight.name: weight.name for weight in self._weights}
            self.feeds = {
                name: Feed(**{**feed, "weight": names.get(feed["weight"], feed["weight"])})
                for name, feed in state["feeds"].items()
            }
            self._settled, self._calls = set(state["settled"]), 0

    def table(self, every: int | None = None) -> Table:
        """Return a table of which statistics follow which weight at this interval, and why the others do not."""
        rows = []
        for norm in self._norms():
            if getattr(norm.module, "running_mean", None) is None:
                continue
            feed = self.feeds.get(norm.name)
            limit = f", only in project(): every={every} is short of {_GATHERED} / momentum"
            if feed is None or feed.follows is None or _may_follow(norm.module, every):
                limit = ""
            text = "not seen yet" if feed is None else feed.text()
            rows.append((norm.name, layer_name(norm.module), text, limit))
        folded = fold(rows, name=lambda row: row[0], same=lambda row: (row[1], re.sub(r"\d", "#", row[2]), row[3]))
        lines = [
            (name, members[0][1], _together([row[2] for row in members]) + members[0][3]) for name, members in folded
        ]
        return Table(["running statistics", "layer", "follow"], lines)

    @contextmanager
    def following(self, model: nn.Module | None = None, *, every: int | None = None) -> Iterator[None]:
        """Have statistics follow changes of the weights inside; those of a copy of the model, if one is given.

        `every` is the interval of the projections; None for a call of `project()`. Where weights are sharded, every
        process has to call this.
        """
        links = self._links(self._model if model is None else unwrap(model), every)
        before = _norms_of([weight for weight, _ in links])
        yield
        after = _norms_of([weight for weight, _ in links])
        for (weight, norm), old, new in zip(links, before, after, strict=True):
            follow_(norm, _factors(weight, old, new, norm.num_features))

    def refuse_unfoldable(self, constraint: Constraint, radii: Mapping[str, float | Tensor]) -> None:
        """Refuse weights that a projection rescales, if nothing right after them can absorb their norms."""
        absorbed = {feed.weight for feed in self.feeds.values() if feed.obstacle is None} | self.gains.keys()
        unfoldable = []
        for weight in self._weights:
            if dtensor.is_sharded(weight.tensor):
                raise ValueError(f'initial="fold": {weight.name!r} is sharded over processes: fold before sharding')
            own = radii.get(weight.name)
            deviations = constraint.deviations(dtensor.row_norms(weight.tensor, weight.axes), own).nan_to_num(0)
            if weight.name not in absorbed and float(deviations.max()) > TOLERANCE[weight.tensor.dtype]:
                unfoldable.append(weight.name)
        if unfoldable:
            names = ", ".join(map(repr, unfoldable[:5])) + (", ..." if len(unfoldable) > 5 else "")
            raise ValueError(
                f'initial="fold": no batch normalisation and no gain right after {names} can absorb the norms: leave '
                'them alone with skip=, keep the norms with UnitNorm(radius="initial"), or pass initial=True'
            )

    @contextmanager
    @torch.no_grad()
    def folding(self, example: Any) -> Iterator[None]:
        """Have what follows each weight absorb the factor that the weight is divided by inside; biases are scaled too.

        Example inputs show whether the function is the same afterwards: if not, all is restored and an error is raised.
        """
        weights = list(self._weights)
        parameters = {named.name: named.parameter for named in named_parameters(self._model)}
        modes = sorted({False, self._model.training})
        outputs = [self._output(example, training=mode) for mode in modes]
        before, links = _norms_of(weights), self._links(self._model, None, with_bias=True)
        with ExitStack() as undoing:
            undoing.callback(restorer_of([*self._model.parameters(), *self._model.buffers()]))
            yield
            for weight, old, new in zip(weights, before, _norms_of(weights), strict=True):
                for norm in (norm for other, norm in links if other is weight):
                    follow_(norm, _factors(weight, old, new, norm.num_features))
                for bias in (parameters[name] for name in self._biases.get(weight.name, ())):
                    factors = _factors(weight, old, new, bias.numel())
                    bias.copy_(bias.to(factors.dtype) * factors)
                if weight.name in self.gains:
                    gain = parameters[self.gains[weight.name]]
                    factors = _factors(weight, old, new, gain.numel())
                    gain.copy_(gain.to(factors.dtype) / factors.view(gain.shape))
            for mode, output in zip(modes, outputs, strict=True):
                _refuse_changed(self._output(example, training=mode), output, training=mode)
            undoing.pop_all()

    @torch.no_grad()
    def _output(self, inputs: Any, *, training: bool) -> list[Tensor]:
        """Return the model's output tensors for example inputs; the pass has no side effects."""
        arguments = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
        with restoring_model(self._model), restoring(tensors_in(arguments)):
            if training != self._model.training:
                self._model.train(training)
            positional, keyword = call_arguments(self._model, arguments)
            found = tensors_in(self._model(*positional, **keyword))
            return [tensor.clone() for tensor in found if tensor.is_floating_point() or tensor.is_complex()]

    def _links(
        self, model: nn.Module, every: int | None, *, with_bias: bool = False
    ) -> list[tuple[ConstrainedWeight, BatchNorm]]:
        """Return the weights and the batch normalisations whose statistics follow them at this interval."""
        if not self.feeds:
            return []
        modules = {named.name: named for named in named_modules(model)}
        by_name = {weight.name: weight for weight in self._weights}
        found = []
        for name, feed in self.feeds.items():
            weight = by_name.get(feed.weight or "")
            norm = modules[name].module if name in modules else None
            if weight is None or feed.obstacle is not None or (feed.bias and not with_bias):
                continue
            if not isinstance(norm, BatchNorm) or norm.running_mean is None or not _may_follow(norm, every):
                continue
            if model is not self._model:
                weight = replace(weight, module=modules[weight.name.rpartition(".")[0]].module)
            found.append((weight, norm))
        return found

    def _norms(self) -> list[NamedModule]:
        """Return the batch normalisations, each once."""
        found = {id(named.module): named for named in named_modules(self._model) if isinstance(named.module, BatchNorm)}
        return list(found.values())

    def _unsettled(self) -> bool:
        return any(norm.name not in self._settled for norm in self._norms())

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._observer is not None and self._observer.is_stale:
            self._abandon()
        if self._observer is None:
            call = sys._getframe(2)  # the module's call, which has called the hook, which has called this
            self._observer = _PassObserver(module, call, self._weights, {id(norm.module) for norm in self._norms()})
        self._observer.enter(module, [*tensors_in(args), *tensors_in(kwargs)])

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        observer = self._observer
        if observer is None or not observer.leave(module, output):
            return
        self._observer = None
        names = {id(norm.module): norm.name for norm in self._norms()}
        for key, feed in observer.feeds().items():
            name = names[key]
            known = self.feeds.get(name)
            if known is not None and name in self._settled and known != feed:
                feed = Feed(feed.weight, "what feeds it differs from pass to pass", feed.bias)
            self.feeds[name] = feed
            if observer.training:
                self._settled.add(name)
        self._calls += observer.training
        parameters = {id(named.parameter): named.name for named in named_parameters(self._model)}
        self.gains |= {weight: parameters[key] for weight, key in observer.gains().items() if key in parameters}
        for weight, key in observer.biases():
            if key in parameters:
                self._biases.setdefault(weight, set()).add(parameters[key])
        if not self._unsettled() or self._calls >= _CALLS:
            self.ignore()

    def _abandon(self) -> None:
        """Drop a pass that was not seen to its end: a keyboard interrupt calls no hooks."""
        if self._observer is not None:
            self._observer.close()
            self._observer = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handles": [], "_observer": None}


def _may_follow(norm: nn.Module, every: int | None) -> bool:
    """Whether statistics are renewed between projections at this interval; None for a call of `project()`."""
    momentum = getattr(norm, "momentum", None)
    return every is None or (momentum is not None and every >= _GATHERED / max(momentum, 1e-9))


@torch.no_grad()
def follow_(norm: BatchNorm, factors: Tensor) -> None:
    """Rescale running statistics by each channel's factor f, as the inputs are: evaluation does not change.

    mean' = f mean and var' = f² (var + eps) - eps, where that is positive; else 0, the nearest possible value.
    """
    mean, variance = norm.running_mean, norm.running_var
    if mean is None or variance is None:
        return
    factors = factors.to(mean.device)
    wide = variance.to(factors.dtype)
    moved = (factors.square() * (wide + norm.eps) - norm.eps).clamp(min=0)
    mean.copy_(mean.to(factors.dtype) * factors)
    variance.copy_(moved.where(factors != 1, wide))


@dataclass
class _Product:
    """The product of a weight, and where it goes."""

    weight: str
    bias: int | None  # the identity of the tensor that is added to it
    channel: int | None  # the dimension along which each element has its own norm, if any
    norms: list[int] = field(default_factory=list)  # the batch normalisations that it went into
    functions: list[str] = field(default_factory=list)  # torch's functions that it went into
    modules: set[int] = field(default_factory=set)  # other layers that it went into
    gain: int | None = None  # the parameter that it was multiplied by
    is_output: bool = False

    @property
    def second_user(self) -> str | None:
        """What uses it besides one batch normalisation, for a message."""
        if self.is_output:
            return "is returned as well"
        if self.functions or self.modules:
            return f"goes into {self.functions[0] if self.functions else 'another layer'} as well"
        return "goes into several batch normalisations" if len(self.norms) > 1 else None


class _PassObserver(TorchFunctionMode):
    """Observes one pass, from the outermost module's call to its end."""

    def __init__(
        self, outermost: nn.Module, call: FrameType, weights: Sequence[ConstrainedWeight], norms: set[int]
    ) -> None:
        super().__init__()
        self._outermost, self._weights, self._norms = outermost, weights, norms
        self._products = WeakTensorKeyDictionary()
        self._all: list[_Product] = []
        self._inputs: dict[int, list[_Product | None]] = {}
        self._uses: Counter[int] = Counter()  # of each parameter, in torch's functions
        self._depth, self._inside_norm = 0, 0
        self.training = outermost.training
        self._call, self._thread = call, get_ident()
        self._open = ExitStack()
        self._open.enter_context(torch.compiler.set_stance("force_eager"))
        self._open.enter_context(self)

    @property
    def is_stale(self) -> bool:
        """Whether the outermost module's call is over, but its end was not seen."""
        return self._thread == get_ident() and all(frame is not self._call for frame in callers())

    def close(self) -> None:
        """Stop intercepting torch's functions."""
        self._open.close()

    def enter(self, module: nn.Module, tensors: Sequence[Tensor]) -> None:
        """Record what goes into a module."""
        self._depth += module is self._outermost
        if id(module) in self._norms:
            self._inside_norm += 1
            product = self._products.get(tensors[0]) if tensors else None
            self._inputs.setdefault(id(module), []).append(product)
            if product is not None:
                product.norms.append(id(module))
        elif not module._modules and not self._inside_norm:
            for product in filter(None, map(self._products.get, tensors)):
                product.modules.add(id(module))

    def leave(self, module: nn.Module, output: Any) -> bool:
        """Record what comes out of a module; return whether the pass is over."""
        self._inside_norm -= id(module) in self._norms
        if module is not self._outermost:
            return False
        self._depth -= 1
        if self._depth:
            return False
        for product in filter(None, map(self._products.get, tensors_in(output))):
            product.is_output = True
        self.close()
        return True

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keyword = kwargs or {}
        result = func(*args, **keyword)
        name = function_name(func)
        if name != "__setitem__" and not any(True for _ in tensors_in(result)):
            return result
        if self._inside_norm and _NORMALISING.fullmatch(name):
            return result
        operands = [*tensors_in(args), *tensors_in(keyword)]
        self._uses.update(id(operand) for operand in operands if isinstance(operand, nn.Parameter))
        for operand in operands:
            product = self._products.get(operand)
            if product is not None:
                product.functions.append(name)
                product.gain = _gain(name, operand, operands, product.channel)
        if name in _PRODUCTS and isinstance(result, Tensor):
            self._add_product(name, result, args, keyword)
        return result

    def _add_product(self, name: str, result: Tensor, args: Sequence[Any], keyword: Mapping[str, Any]) -> None:
        matrix = keyword.get("weight", args[1] if len(args) > 1 else None)
        bias = keyword.get("bias", args[2] if len(args) > 2 else None)
        weight = next((weight for weight in self._weights if weight.parameter_or_none is matrix), None)
        if weight is None or matrix is None:
            return
        channel = None
        if weight.axes.neurons == (_PRODUCTS[name],) or weight.axes == Axes(()):
            channel = result.ndim - (1 if name == "linear" else len(weight.shape) - 1)
        product = _Product(weight.name, None if bias is None else id(bias), channel)
        self._products[result] = product
        self._all.append(product)

    def feeds(self) -> dict[int, Feed]:
        """Return what feeds each batch normalisation that was called."""
        return {key: self._feed(products) for key, products in self._inputs.items()}

    def gains(self) -> dict[str, int]:
        """Return the parameter that each weight's product is directly multiplied by, if it goes nowhere else."""
        found: dict[str, int] = {}
        for product in self._all:
            if product.gain is None or product.is_output or product.norms or self._uses[product.gain] != 1:
                continue
            has_one_user = len(product.functions) == 1 and len(product.modules) <= 1
            if has_one_user and self._uses_of(product.weight) == 1:
                found[product.weight] = product.gain
        return found

    def biases(self) -> Iterator[tuple[str, int]]:
        """Return pairs of a weight and a tensor that is added in its product."""
        return ((product.weight, product.bias) for product in self._all if product.bias is not None)

    def _uses_of(self, weight: str) -> int:
        return sum(self._uses[id(other.parameter_or_none)] for other in self._weights if other.name == weight)

    def _feed(self, products: Sequence[_Product | None]) -> Feed:
        known = [product for product in products if product is not None]
        names = sorted({product.weight for product in known})
        if len(known) < len(products):
            return Feed(None, "its input is not the output of a constrained layer alone")
        if len(names) > 1:
            return Feed(None, f"{' and '.join(names)} share it")
        bias = any(product.bias is not None for product in known)
        # Every product of the weight counts: a projection also changes those that go elsewhere.
        all_products = [product for product in self._all if product.weight == names[0]]
        if self._uses_of(names[0]) > len(all_products):
            return Feed(names[0], f"{names[0]} is used in another function as well", bias)
        for product in all_products:
            if product.second_user is not None:
                return Feed(names[0], f"the output of {names[0]} {product.second_user}", bias)
            if not product.norms:
                return Feed(names[0], f"{names[0]} is used without batch normalisation as well", bias)
            if product.channel != 1:
                return Feed(names[0], f"{names[0]} does not have one norm for each channel", bias)
        return Feed(names[0], None, bias)


class _Hook:
    """A hook that keeps nothing alive, and is left out of copies and pickles of a model."""

    def __init__(self, owner: BatchStatistics, method: str) -> None:
        self._owner, self._method = ref(owner), method
        self.__name__ = method

    def __call__(self, *args: Any) -> None:
        is_tracing = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        owner = None if is_tracing else self._owner()
        if owner is not None:
            getattr(owner, self._method)(*args)

    def __reduce__(self) -> Any:
        return _NoHook, ()


class _NoHook:
    """Stands in for a hook in a copy."""

    def __call__(self, *args: Any) -> None:
        """Do nothing."""


def _gain(name: str, product: Tensor, operands: Sequence[Tensor], channel: int | None) -> int | None:
    """Return the identity of a vector of one element per channel that a product is multiplied by, or None."""
    others = [operand for operand in operands if operand is not product]
    if name not in ("mul", "__mul__", "__rmul__", "multiply") or len(others) != 1 or len(operands) != 2:
        return None
    shape = (1,) * (product.ndim - others[0].ndim) + tuple(others[0].shape)
    expected = tuple(size if dim == channel else 1 for dim, size in enumerate(product.shape))
    return id(others[0]) if isinstance(others[0], nn.Parameter) and shape == expected else None


def _refuse_changed(outputs: Sequence[Tensor], before: Sequence[Tensor], *, training: bool) -> None:
    """Refuse a fold that changed what the model computes."""
    mode = "training" if training else "evaluation"
    allowed = [max(_FOLDED[mode], 8 * torch.finfo(output.dtype).eps) for output in before]
    changes = relative_changes(outputs, before)
    if any(change > limit for change, limit in zip(changes, allowed, strict=True)):
        raise ValueError(
            f'initial="fold" would change the output for the inputs in follow= by {max(changes):.2g} of its size in '
            f"{mode} mode: a weight, its output, its bias or its gain has a second use. Everything was restored: leave "
            'such weights alone with skip=, keep the norms with UnitNorm(radius="initial"), or pass initial=True'
        )


def _norms_of(weights: Sequence[ConstrainedWeight]) -> list[Tensor]:
    return [dtensor.row_norms(weight.tensor, weight.axes) for weight in weights]


def _factors(weight: ConstrainedWeight, before: Tensor, after: Tensor, channels: int) -> Tensor:
    """Return the factor of each channel of a weight's product, gathered over all processes."""
    factors = dtensor.gather(after / before, weight.tensor, weight.axes)
    factors = factors.where(factors.isfinite() & (factors > 0), 1).flatten()
    return factors.expand(channels) if factors.numel() == 1 else factors


def _together(texts: Sequence[str]) -> str:
    """Join several lines of a table, with their names folded."""
    if len(set(texts)) == 1:
        return texts[0]
    reason = "nothing: " if texts[0].startswith("nothing: ") else ""
    names = [text.removeprefix(reason) for text in texts]
    return reason + ", ".join(name for name, _ in fold(names, name=str, same=lambda _: None))
