"""The layers that a model's output comes from, traced in one forward pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from pbwn.forward import call_arguments, refusal_of, restoring, restoring_model, tensors_in
from pbwn.selection.names import NamedParameter, named_parameters, unwrap

# The functions of torch that multiply features with a matrix, under the last part of their names.
_PRODUCTS = re.compile(
    r"linear|bilinear|_{0,2}r?matmul_{0,2}|_?(grouped_|scaled_)?mm|bmm|mv|add(mm|mv|bmm)|baddbmm|einsum|tensordot|inner|"
    r"conv(olution|_?(transpose)?[123]d)|(lstm|gru|rnn_tanh|rnn_relu)(_cell)?|multi_head_attention_forward"
)
_LOOKUPS = frozenset({"embedding", "embedding_bag"})
_CUTS = frozenset({"detach", "data"})  # no gradient passes


def trace_output(model: nn.Module, inputs: Sequence[Any]) -> tuple[list[NamedParameter], list[NamedParameter]]:
    """Find the matrices that lead to a model's output: those that features pass last, and those that others follow.

    A matrix that other layers' matrices follow is hidden, though its product may be part of the output too, as hidden
    states and cached keys are. The pass is made in the model's own mode, without gradients; buffers and random
    states are restored afterwards.
    """
    with refusal_of("these inputs", "pass what its forward takes, such as pbwn.select(model, *inputs)"):
        weights, tracer, output = _traced(unwrap(model), inputs)
    last, hidden = tracer.leading_to(tensors_in(output))
    return [weights[index] for index in sorted(last)], [weights[index] for index in sorted(hidden)]


def trace_order(model: nn.Module, inputs: Sequence[Any]) -> list[tuple[NamedParameter, list[NamedParameter]]]:
    """Find, for each matrix, those that its product passes next, in a pass without side effects."""
    weights, tracer, _ = _traced(unwrap(model), inputs)
    return [
        (named, [weights[after] for after, before in sorted(tracer.before.items()) if index in before])
        for index, named in enumerate(weights)
    ]


def _traced(model: nn.Module, inputs: Sequence[Any]) -> tuple[list[NamedParameter], _Tracer, Any]:
    """Return the model's matrices, the tracer of a pass, and the pass's output."""
    weights = [named for named in named_parameters(model) if named.parameter.ndim > 1]
    tracer = _Tracer((*model.parameters(), *model.buffers()), weights)
    restoring_inputs = restoring(tensors_in(inputs))
    with restoring_model(model), restoring_inputs, torch.no_grad(), torch.compiler.set_stance("force_eager"), tracer:
        positional, keyword = call_arguments(model, inputs)
        output = model(*positional, **keyword)
    return weights, tracer, output


@dataclass(frozen=True)
class _Origin:
    """What a tensor was computed from.

    `last` are the matrices that features have passed last. A constant was computed from parameters and buffers alone;
    its `last` are the matrices that it was computed from.
    """

    last: frozenset[int] = frozenset()
    is_constant: bool = False


_INPUT = _Origin()


class _Tracer(TorchFunctionMode):
    """Tracks the matrices that tensors have passed last, through torch's functions."""

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
        """Return the matrices that lead to these tensors: those that come last, and those that others follow."""
        reached = {index for tensor in tensors for index in self._origin(tensor).last}
        leading, unvisited = set(reached), list(reached)
        followed: set[int] = set()
        while unvisited:  # backwards, from the output
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
    """Return the name of one of torch's functions, methods or properties."""
    name = str(getattr(func, "__name__", ""))
    if name == "__get__":  # of a property, which has the name
        name = str(getattr(getattr(func, "__self__", None), "__name__", name))
    return name.partition(".")[0]  # of an overload, such as mm.default
