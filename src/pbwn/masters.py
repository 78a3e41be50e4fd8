"""Master weights: wider copies of half-precision weights that an optimizer keeps in its state, and steps on.

The next step starts from the master, so the master is what is projected, and the weight is its rounded copy.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pbwn.paths import dtensor
from pbwn.selection import ConstrainedWeight

_HALF = (torch.bfloat16, torch.float16)
_ADVICE = (
    "Projecting the weight alone would be undone by the next step. Keep the model in float32 (with autocast, if you "
    "like), or use an optimizer whose state holds a float32 tensor of the weight's shape"
)


def find_masters(optimizer: Optimizer, weights: Iterable[ConstrainedWeight]) -> dict[str, Hashable]:
    """The key of each weight's master in the optimizer's state, by the weight's name.

    A master has the weight's shape and a wider dtype, and equals the weight to one unit of the weight's precision.
    Copies in other forms raise an error. This waits for the device once, if there is anything to compare.
    """
    half = [weight for weight in weights if weight.tensor.dtype in _HALF]
    candidates = [(weight, key, value) for weight in half for key, value in _state_of(optimizer, weight).items()]
    attributes = [(weight, name, value) for weight in half for name, value in _copies(optimizer, weight)]
    flags = [_is_copy(weight.tensor, value) for weight, _, value in (*candidates, *attributes)]
    answers = torch.stack([flag.to(flags[0].device) for flag in flags]).tolist() if flags else []
    found: dict[str, Hashable] = {}
    for (weight, key, value), is_copy in zip(candidates, answers, strict=False):
        if is_copy and value.shape == weight.tensor.shape:
            found[weight.name] = key
        elif is_copy or _is_unknown_form(weight.tensor, key, value):
            raise TypeError(_refusal(optimizer, weight, f"its state {key!r}, as {_form(value)}"))
    for (weight, name, value), is_copy in zip(attributes, answers[len(candidates) :], strict=True):
        if is_copy and weight.name not in found:
            raise TypeError(_refusal(optimizer, weight, f"its attribute {name!r}, as {_form(value)}"))
    return found


def look_up(optimizer: Optimizer, weight: ConstrainedWeight, key: Hashable) -> Tensor:
    """The master of a weight as it is now."""
    master = optimizer.state.get(weight.tensor, {}).get(key)
    if master is None:
        raise RuntimeError(
            f"the state of {type(optimizer).__name__} no longer has the master weight {key!r} of {weight.name!r}: load "
            "the optimizer's state before you resume, or call detach() and attach again"
        )
    if master.dtype.itemsize <= weight.tensor.dtype.itemsize:
        raise RuntimeError(
            f"the master weight {key!r} of {weight.name!r} is {master.dtype} now: Optimizer.load_state_dict casts "
            "state to the weight's dtype unless the optimizer overrides it. Restore the master in float32 first"
        )
    assert isinstance(master, Tensor)
    return master


def has_second_iterate(optimizer: Optimizer) -> bool:
    """Whether an optimizer keeps a second set of weights of the same dtype, which no projection reaches."""
    names = {kind.__name__ for kind in type(optimizer).__mro__}
    return any("ScheduleFree" in name or "Lookahead" in name for name in names)


def _state_of(optimizer: Optimizer, weight: ConstrainedWeight) -> dict[Hashable, Tensor]:
    """The tensors in a weight's state that have as many elements as the weight."""
    state = optimizer.state.get(weight.tensor, {})
    return {
        key: value
        for key, value in state.items()
        if isinstance(value, Tensor) and value.numel() == weight.tensor.numel() and value.ndim > 0
    }


def _copies(optimizer: Optimizer, weight: ConstrainedWeight) -> Iterator[tuple[str, Tensor]]:
    """Wider tensors with as many elements that the optimizer keeps in attributes of its own."""
    for name, value in vars(optimizer).items():
        if name not in ("state", "param_groups", "defaults"):
            for tensor in _tensors_in(value):
                is_wider = tensor.is_floating_point() and tensor.dtype.itemsize > weight.tensor.dtype.itemsize
                if is_wider and tensor.numel() == weight.tensor.numel():
                    yield name, tensor


def _tensors_in(value: Any, depth: int = 3) -> Iterator[Tensor]:
    """The tensors in nested lists and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, Mapping):
        for inner in value.values():
            yield from _tensors_in(inner, depth - 1)
    elif depth and isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for inner in value:
            yield from _tensors_in(inner, depth - 1)


@torch.no_grad()
def _is_copy(weight: Tensor, value: Tensor) -> Tensor:
    """Whether a tensor equals a weight to one unit of its precision. Zeros do not: a fresh moment looks alike."""
    if dtensor.is_sharded(weight):
        weight = weight.to_local()
    if dtensor.is_sharded(value):
        value = value.to_local()
    if (
        value.dtype.itemsize <= weight.dtype.itemsize
        or not value.is_floating_point()
        or value.numel() != weight.numel()
    ):
        return torch.zeros((), dtype=torch.bool, device=weight.device)
    own = weight.to(value.dtype).flatten()
    unit = own.abs().mul_(torch.finfo(weight.dtype).eps).clamp_(min=torch.finfo(weight.dtype).tiny)
    return ((value.to(own.device).flatten() - own).abs() <= unit).all() & own.any()


def _is_unknown_form(weight: Tensor, key: Hashable, value: Tensor) -> bool:
    """Whether a tensor is named a master, or is the lower half of one, and cannot be projected."""
    is_lower_half = value.dtype in (torch.int16, torch.uint16) and value.shape == weight.shape
    is_wide = value.is_floating_point() and value.dtype.itemsize > weight.dtype.itemsize
    return is_lower_half or ("master" in str(key).lower() and not is_wide)


def _refusal(optimizer: Optimizer, weight: ConstrainedWeight, where: str) -> str:
    return (
        f"{type(optimizer).__name__} keeps master weights of {weight.name!r} in {where}, which cannot be projected. "
        f"{_ADVICE}"
    )


def _form(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
