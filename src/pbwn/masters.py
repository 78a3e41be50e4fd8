"""Master weights: wider copies of weights that an optimizer keeps in its state and updates.

The next step starts from the master, so the master is what is projected, and the weight is its rounded copy.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from pbwn.paths import dtensor
from pbwn.selection import ConstrainedWeight

_ADVICE = (
    "Projecting the weight alone would be undone by the next step. Use an optimizer that keeps no copy, with the model "
    "in float32 (with autocast, if you like), or one whose state of the weight holds a wider tensor of its shape"
)
# How a tensor compares with a weight. Zeros and empty tensors decide nothing, and an equal tensor may be a copy for
# another purpose, such as an average; a tensor with digits that the weight lost in rounding is what the weight was
# rounded from.
_DIFFERS, _ZERO, _EQUAL, _MORE_DIGITS = range(4)


class _Candidate(NamedTuple):
    """A tensor with as many elements as a weight, where the optimizer keeps it, and its key if it is in the state."""

    weight: ConstrainedWeight
    value: Tensor
    where: str
    key: Hashable = None

    @property
    def is_wider(self) -> bool:
        return self.value.is_floating_point() and self.value.dtype.itemsize > self.weight.tensor.dtype.itemsize

    @property
    def is_named(self) -> bool:
        """Whether its key names it a master, and it is not the weight itself."""
        if "master" not in str(self.key).lower():
            return False
        value, weight = dtensor.local(self.value), dtensor.local(self.weight.tensor)
        return value.numel() == 0 or value.data_ptr() != weight.data_ptr()

    @property
    def is_lower_half(self) -> bool:
        """Whether it looks like the lower 16 bits of a master."""
        is_integer = self.value.dtype in (torch.int16, torch.uint16)
        return is_integer and self.weight.tensor.dtype.itemsize == 2 and self.key is not None


def find_masters(
    optimizer: Optimizer, weights: Iterable[ConstrainedWeight], known: Collection[Hashable] = ()
) -> tuple[dict[str, Hashable], list[ConstrainedWeight]]:
    """Return the key of each weight's master in the optimizer's state, by weight name, and the undecided weights.

    A master has the weight's shape and a wider dtype. It has a master's name and equals the weight to one unit of the
    weight's precision; or it rounds to the weight and has more digits; or it equals the weight and has the key of
    another weight's master, of which some may be `known`. An equal tensor without any of these decides nothing: an
    average of the weight is no different before the weight has moved. Masters in other forms raise an error.

    This waits for the device once, if there is anything to compare.
    """
    candidates = list(_candidates(optimizer, [weight for weight in weights if weight.tensor.dtype.itemsize < 8]))
    compared = list(zip(candidates, _compare(candidates), strict=True))
    keys = {*known, *(candidate.key for candidate, result in compared if result == _MORE_DIGITS)}
    found: dict[str, Hashable] = {}
    for candidate, result in compared:
        is_master = result == _MORE_DIGITS or (result != _DIFFERS and (candidate.key in keys or candidate.is_named))
        if is_master and candidate.key is not None and candidate.value.shape == candidate.weight.tensor.shape:
            found[candidate.weight.name] = candidate.key
    undecided: dict[ConstrainedWeight, None] = {}
    for candidate, result in compared:
        if candidate.weight.name in found:
            continue
        if result == _MORE_DIGITS or candidate.is_named or candidate.is_lower_half:
            form = f"{str(candidate.value.dtype).removeprefix('torch.')} of shape {tuple(candidate.value.shape)}"
            raise TypeError(
                f"{type(optimizer).__name__} keeps master weights of {candidate.weight.name!r} in "
                f"{candidate.where}, as {form}, which cannot be projected. {_ADVICE}"
            )
        if result != _DIFFERS and dtensor.local(candidate.value).numel():
            undecided[candidate.weight] = None
    return found, list(undecided)


def look_up(optimizer: Optimizer, weight: ConstrainedWeight, key: Hashable) -> Tensor:
    """Return the current master of a weight."""
    master = optimizer.state.get(weight.tensor, {}).get(key)
    if master is None:
        raise RuntimeError(
            f"the state of {type(optimizer).__name__} no longer has the master weight {key!r} of {weight.name!r}: load "
            "the optimizer's state before you resume, or call detach() and attach again"
        )
    if master.dtype.itemsize <= weight.tensor.dtype.itemsize:
        raise RuntimeError(
            f"the master weight {key!r} of {weight.name!r} is {master.dtype} now: Optimizer.load_state_dict casts "
            "state to the weight's dtype unless the optimizer overrides it. Restore the master in its own dtype first"
        )
    assert isinstance(master, Tensor)
    return master


def has_second_iterate(optimizer: Optimizer) -> bool:
    """Whether an optimizer keeps a second set of weights of the same dtype, which no projection reaches."""
    names = {kind.__name__ for kind in type(optimizer).__mro__}
    return any("ScheduleFree" in name or "Lookahead" in name for name in names)


def _candidates(optimizer: Optimizer, weights: Sequence[ConstrainedWeight]) -> Iterator[_Candidate]:
    """Yield the tensors with as many elements as a weight: those in its state, and wider ones anywhere else."""
    elsewhere: dict[int, list[tuple[str, Tensor]]] = {}  # by their number of elements
    pieces: dict[int, list[tuple[str, Tensor]]] = {}  # by the identity of the parameter that they may be of
    for where, value in _elsewhere(optimizer):
        for tensor in _tensors_in(value):
            elsewhere.setdefault(tensor.numel(), []).append((where, tensor))
            for parameter, piece in _pieces(optimizer, tensor):
                pieces.setdefault(id(parameter), []).append((f"a piece of {where}", piece))
    for weight in weights:
        size = weight.tensor.numel()
        others = [*elsewhere.get(size, ()), *pieces.get(id(weight.tensor), ())]
        for key, value in optimizer.state.get(weight.tensor, {}).items():
            if not isinstance(value, Tensor):
                others += [(f"its state {key!r}", tensor) for tensor in _tensors_in(value) if tensor.numel() == size]
            elif value.numel() == size and value.ndim > 0:
                yield _Candidate(weight, value, f"its state {key!r}", key)
        for where, tensor in others:
            if (candidate := _Candidate(weight, tensor, where)).is_wider:
                yield candidate


def _elsewhere(optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
    """Yield what an optimizer keeps outside its state, in attributes of its own and in its parameter groups."""
    for name, value in vars(optimizer).items():
        if name not in ("state", "param_groups", "defaults"):
            yield f"its attribute {name!r}", value
    for group in optimizer.param_groups:
        yield from ((f"its parameter group's {key!r}", value) for key, value in group.items() if key != "params")


def _pieces(optimizer: Optimizer, buffer: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter's piece of a flat buffer, read as all parameters of one group, or of all groups, in order.

    The buffer may be padded at its end.
    """
    if buffer.ndim != 1:
        return
    flat, groups = dtensor.local(buffer), [group["params"] for group in optimizer.param_groups]
    for parameters in (*groups, [parameter for group in groups for parameter in group]):
        sizes = [dtensor.local(parameter).numel() for parameter in parameters]
        if sum(sizes) <= flat.numel():
            yield from zip(parameters, flat[: sum(sizes)].split(sizes), strict=True)


def _tensors_in(value: Any, depth: int = 3) -> Iterator[Tensor]:
    """Yield the tensors in nested lists and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, Mapping):
        for inner in value.values():
            yield from _tensors_in(inner, depth - 1)
    elif depth and isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for inner in value:
            yield from _tensors_in(inner, depth - 1)


@torch.no_grad()
def _compare(candidates: Sequence[_Candidate]) -> list[int]:
    """Compare candidates with their weights, with one synchronisation; those that are not wider count as differing."""
    wider = [candidate for candidate in candidates if candidate.is_wider]
    flags = [_equals(dtensor.local(candidate.weight.tensor), dtensor.local(candidate.value)) for candidate in wider]
    read = iter(torch.stack([flag.to(flags[0].device) for flag in flags]).tolist() if flags else ())
    return [next(read) if candidate.is_wider else _DIFFERS for candidate in candidates]


def _equals(weight: Tensor, value: Tensor) -> Tensor:
    if value.numel() != weight.numel():
        return torch.tensor(_DIFFERS, device=weight.device)
    own, limits = weight.to(value.dtype).flatten(), torch.finfo(weight.dtype)
    value = value.to(own.device).flatten()
    is_close = value.isclose(own, rtol=limits.eps, atol=limits.tiny, equal_nan=True).all()
    rounds = value.to(weight.dtype).to(value.dtype).isclose(own, rtol=0, atol=0, equal_nan=True).all()
    has_more_digits = rounds & ~value.isclose(own, rtol=0, atol=0, equal_nan=True).all()
    return is_close * (_ZERO + own.any() * (1 + has_more_digits.long()))
