"""Forward passes without side effects: their arguments, their outputs, and restoring the state of the model."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from pbwn import functional

_WITHOUT_TENSORS = (str, bytes, int, float, complex, torch.dtype, torch.device, ModuleType)


def tensors_in(value: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """Yield the tensors in nested lists, dictionaries, data classes and other objects."""
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
    """Turn any error of a model's pass into one that names the inputs and says what to do."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"the model refuses {inputs} ({type(error).__name__}: {error}): {advice}") from error


def call_arguments(model: nn.Module, inputs: Sequence[Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return positional and keyword arguments: a mapping in the last position whose keys are arguments is unpacked."""
    if inputs and isinstance(inputs[-1], Mapping) and all(isinstance(key, str) for key in inputs[-1]):
        parameters = inspect.signature(model.forward).parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        if takes_any or set(inputs[-1]) <= set(parameters):
            return inputs[:-1], inputs[-1]
    return inputs, {}


def restorer_of(tensors: Iterable[Tensor]) -> Callable[[], None]:
    """Return a function that restores the present values of dense tensors, bit for bit."""
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
def restoring(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Restore tensors that are changed in place inside."""
    restore = restorer_of(tensors)
    try:
        yield
    finally:
        restore()


@contextmanager
def restoring_model(model: nn.Module) -> Iterator[None]:
    """Restore modes, buffers and random states after a pass."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(module, name, buffer) for module in model.modules() for name, buffer in module._buffers.items()]
    restore = restorer_of(buffer for _, _, buffer in buffers if buffer is not None)
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


def relative_changes(outputs: Sequence[Tensor], base: Sequence[Tensor]) -> list[float]:
    """Return the change of each output tensor relative to its base; infinite where shapes differ."""
    if [tensor.shape for tensor in outputs] != [tensor.shape for tensor in base]:
        return [float("inf")] * len(base)
    return [_change(*pair) for pair in zip(outputs, base, strict=True)]


def _change(output: Tensor, base: Tensor) -> float:
    dtype = torch.complex128 if base.is_complex() else functional.wide_dtype(base)
    same = (output == base) | (output.isnan() & base.isnan())  # infinities, as masked scores have
    difference = (output.to(dtype) - base.to(dtype)).where(~same, 0)
    size = base.to(dtype).where(base.isfinite(), 0)
    change = difference.norm() / size.norm().clamp(min=torch.finfo(torch.float32).tiny)
    return float(change.nan_to_num(float("inf")))
