"""Which layers a model's output comes from, seen in one forward pass."""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from pbwn.selection.names import NamedParameter, named_parameters, unwrap

# The functions of torch that multiply features with a matrix, under the last part of their names.
_PRODUCTS = re.compile(
    r"linear|bilinear|_{0,2}r?matmul_{0,2}|_?(grouped_|scaled_)?mm|bmm|mv|add(mm|mv|bmm)|baddbmm|einsum|tensordot|inner|"
    r"conv(olution|_?(transpose)?[123]d)|(lstm|gru|rnn_tanh|rnn_relu)(_cell)?|multi_head_attention_forward"
)
_LOOKUPS = frozenset({"embedding", "embedding_bag"})
_WITHOUT_TENSORS = (str, bytes, int, float, complex, torch.dtype, torch.device, ModuleType)
_CUTS = frozenset({"detach", "data"})  # no gradient passes


def see_output(model: nn.Module, inputs: Sequence[Any]) -> tuple[list[NamedParameter], list[NamedParameter]]:
    """Find the matrices that lead to a model's output: those that features pass last, and those that others follow.

    A matrix that other layers' matrices follow is hidden, though its product may be part of the output too, as hidden
    states and cached keys are. The pass is made in the model's own mode, without gradients; buffers and torch's random
    state are put back afterwards.
    """
    with refusal_of("these inputs", "pass what its forward takes, such as pbwn.select(model, *inputs)"):
        weights, tracer, output = _traced(unwrap(model), inputs)
    last, hidden = tracer.leading_to(tensors_in(output))
    return [weights[index] for index in sorted(last)], [weights[index] for index in sorted(hidden)]


def see_order(model: nn.Module, inputs: Sequence[Any]) -> list[tuple[NamedParameter, list[NamedParameter]]]:
    """Find, for each matrix, those that its product passes next. The pass leaves nothing behind, as above."""
    weights, tracer, _ = _traced(unwrap(model), inputs)
    return [
        (named, [weights[after] for after, before in sorted(tracer.before.items()) if index in before])
        for index, named in enumerate(weights)
    ]


def _traced(model: nn.Module, inputs: Sequence[Any]) -> tuple[list[NamedParameter], _Tracer, Any]:
    """The model's matrices, what has followed them through a pass, and the pass's output."""
    weights = [named for named in named_parameters(model) if named.parameter.ndim > 1]
    tracer = _Tracer((*model.parameters(), *model.buffers()), weights)
    as_found = put_back(tensors_in(inputs))
    with undone(model), as_found, torch.no_grad(), torch.compiler.set_stance("force_eager"), tracer:
        positional, keyword = call_arguments(model, inputs)
        output = model(*positional, **keyword)
    return weights, tracer, output


@dataclass(frozen=True)
class _Origin:
    """What a tensor was computed from.

    `last` are the matrices that features have passed last. A constant was computed from parameters and buffers alone;
    its `last` are the matrices that it consists of.
    """

    last: frozenset[int] = frozenset()
    is_constant: bool = False


_INPUT = _Origin()


class _Tracer(TorchFunctionMode):
    """Follows tensors through torch's functions, by the matrices that they have passed last."""

    def __init__(self, constants: Iterable[Tensor], weights: Sequence[NamedParameter]) -> None:
        super().__init__()
        matrices: dict[int, set[int]] = {}
        for index, named in enumerate(weights):
            matrices.setdefault(id(named.parameter), set()).add(index)
        self._origins = WeakTensorKeyDictionary()
        for tensor in constants:
            self._origins[tensor] = _Origin(frozenset(matrices.get(id(tensor), ())), is_constant=True)
        self.before: dict[int, set[int]] = {}  # the matrices that come right before each

    def leading_to(self, tensors: Iterable[Tensor]) -> tuple[set[int], set[int]]:
        """The matrices that lead to these tensors: those that come last, and those that others follow."""
        reached = {index for tensor in tensors for index in self._origin(tensor).last}
        leading, unvisited = set(reached), list(reached)
        followed: set[int] = set()
        while unvisited:  # against the flow
            index = unvisited.pop()
            before = self.before.get(index, set())
            followed |= before - {index}
            unvisited += before - leading
            leading |= before
        ends = reached - followed or reached
        return ends, leading - ends

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keyword = kwargs or {}
        result = func(*args, **keyword)
        name = function_name(func)
        operands = [*tensors_in(args), *tensors_in(keyword)]
        written = operands[:1] if name == "__setitem__" else list(tensors_in(result))
        if not written:
            return result
        origin = self._combined(name, [self._origin(tensor) for tensor in operands])
        for tensor in written:
            in_place = any(tensor is operand for operand in operands)
            self._assign(tensor, origin, also_base=in_place and name not in _CUTS)
        return result

    def _origin(self, tensor: Tensor) -> _Origin:
        found: _Origin = self._origins.get(tensor, _INPUT)
        return found

    def _combined(self, name: str, origins: list[_Origin]) -> _Origin:
        if name in _CUTS or name in _LOOKUPS:
            return _INPUT
        constants = [origin for origin in origins if origin.is_constant and origin.last]
        features = [origin for origin in origins if not origin.is_constant]
        everything = frozenset(index for origin in origins for index in origin.last)
        if not features:
            return _Origin(everything, is_constant=bool(origins))
        if constants and _PRODUCTS.fullmatch(name):
            matrices = frozenset(index for origin in constants for index in origin.last)
            for index in matrices:
                self.before.setdefault(index, set()).update(everything - matrices)
            return _Origin(matrices)
        return _Origin(everything)

    def _assign(self, tensor: Tensor, origin: _Origin, *, also_base: bool) -> None:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            origin = _INPUT  # an index or a mask: no gradient passes
        self._origins[tensor] = origin
        base = getattr(tensor, "_base", None)
        if also_base and base is not None:  # written through a view
            self._origins[base] = _Origin(self._origin(base).last | origin.last)


def function_name(func: Callable[..., Any]) -> str:
    """The name of one of torch's functions, methods or properties."""
    name = str(getattr(func, "__name__", ""))
    if name == "__get__":  # of a property, which has the name
        name = str(getattr(getattr(func, "__self__", None), "__name__", name))
    return name.partition(".")[0]  # of an overload, such as mm.default


def tensors_in(value: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """The tensors in nested lists, dictionaries, data classes and objects that hold some."""
    if isinstance(value, Tensor):
        yield value
        return
    if value is None or isinstance(value, _WITHOUT_TENSORS) or callable(value):
        return
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Mapping):
        parts: Iterable[Any] = value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = value
    elif is_dataclass(value):
        parts = [getattr(value, field.name, None) for field in fields(value)]
    else:
        parts = getattr(value, "__dict__", {}).values()  # such as a distribution
    for part in parts:
        yield from tensors_in(part, seen)


@contextmanager
def refusal_of(inputs: str, advice: str) -> Iterator[None]:
    """Turn whatever a model's pass raises into an error that says what the model was given, and what to do."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"the model refuses {inputs} ({type(error).__name__}: {error}): {advice}") from error


def call_arguments(model: nn.Module, inputs: Sequence[Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Positional and keyword arguments: a mapping in the last place whose keys are arguments is unpacked."""
    if inputs and isinstance(inputs[-1], Mapping) and all(isinstance(key, str) for key in inputs[-1]):
        parameters = inspect.signature(model.forward).parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        if takes_any or set(inputs[-1]) <= set(parameters):
            return inputs[:-1], inputs[-1]
    return inputs, {}


def restoring(tensors: Iterable[Tensor]) -> Callable[[], None]:
    """What puts back, bit for bit, all that is done to dense tensors in place from now on."""
    kept = [
        (tensor, tensor.detach().clone())
        for tensor in tensors
        if tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_meta
    ]

    @torch.no_grad()
    def restore() -> None:
        for tensor, value in kept:
            if not torch.equal(tensor, value):  # an expanded tensor cannot be written to
                tensor.copy_(value)

    return restore


@contextmanager
def put_back(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Put what is done to tensors in place back afterwards."""
    restore = restoring(tensors)
    try:
        yield
    finally:
        restore()


@contextmanager
def undone(model: nn.Module) -> Iterator[None]:
    """Put modes, buffers and random states back after a pass."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(module, name, buffer) for module in model.modules() for name, buffer in module._buffers.items()]
    restore = restoring(buffer for _, _, buffer in buffers if buffer is not None)
    devices = {tensor.device for tensor in model.parameters() if tensor.device.type not in ("cpu", "meta")}
    kind = next((device.type for device in devices), "cuda")
    python_state = random.getstate()
    try:
        with torch.random.fork_rng(devices=[d for d in devices if d.type == kind], device_type=kind):
            yield
    finally:
        random.setstate(python_state)
        for module, mode in modes:
            module.training = mode
        restore()
        for module, name, buffer in buffers:
            module._buffers[name] = buffer
