"""Where the numbers of each neuron lie in memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from operator import attrgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pbwn.axes import Axes

Level: TypeAlias = "tuple[int, int]"


@dataclass(frozen=True)
class RowLayout:
    """Two levels of neurons and, within each, two levels of weights; a level is a count and a stride in numbers."""

    neurons: tuple[Level, Level]
    fan_in: tuple[Level, Level]


def row_layout(weight: Tensor, axes: Axes) -> RowLayout | None:
    """The layout of a weight's rows, or None where two levels do not describe it or numbers share their memory.

    Neurons keep their order; the weights of a neuron come in the order of memory, since norms and products do not
    depend on it.

    >>> row_layout(torch.empty(16, 3, 5, 5), Axes((0,)))
    RowLayout(neurons=((1, 0), (16, 75)), fan_in=((1, 0), (75, 1)))
    >>> row_layout(torch.empty(6, 4, 3, 3), Axes((1,)))
    RowLayout(neurons=((1, 0), (4, 9)), fan_in=((6, 36), (9, 1)))
    """
    rows = axes.rows(weight.detach())
    levels = list(zip(rows.shape, rows.stride(), strict=True))
    if any(count > 1 and stride == 0 for count, stride in levels):
        return None
    neurons = _merged(levels[: axes.neuron_dims])
    fan_in = _merged(sorted(levels[axes.neuron_dims :], key=lambda level: -level[1]))
    return None if neurons is None or fan_in is None else RowLayout(neurons, fan_in)


def overlapping(tensors: Sequence[Tensor]) -> set[int]:
    """The positions of tensors whose stretch of memory meets another's: these must not be written at the same time."""
    stretches = sorted((tensor.data_ptr(), _end(tensor), index) for index, tensor in enumerate(tensors))
    found: set[int] = set()
    reach, owner = 0, -1
    for start, end, index in stretches:
        if start < reach:
            found |= {owner, index}
        if end > reach:
            reach, owner = end, index
    return found


def sharing(tensors: Sequence[Tensor]) -> set[tuple[int, int]]:
    """The positions of pairs of plain tensors that have a number in common, as far as pairs are needed to see it.

    Tensors may meet in a stretch of memory and share no number, as the left and the right half of a matrix.
    """
    meeting = sorted(overlapping(tensors), key=lambda index: tensors[index].data_ptr())
    found: set[tuple[int, int]] = set()
    while meeting:
        first, reach = tensors[meeting[0]].data_ptr(), 0
        members: list[int] = []
        while meeting and (not members or tensors[meeting[0]].data_ptr() < reach):
            members.append(meeting.pop(0))
            reach = max(reach, _end(tensors[members[-1]]))
        unit = min(tensors[index].element_size() for index in members)
        owners = torch.zeros((reach - first) // unit, dtype=torch.int32, device="cpu")  # who has each last, from 1 up
        for index in members:
            tensor, units = tensors[index], tensors[index].element_size() // unit
            strides = [stride * units for stride in tensor.stride()]
            place = owners.as_strided((*tensor.shape, units), (*strides, 1), (tensor.data_ptr() - first) // unit)
            found |= {(owner - 1, index) for owner in place.unique().tolist() if owner}
            place.fill_(index + 1)
    return found


def memory_of(tensor: Tensor) -> Hashable:
    """What two tensors have in common that are the same numbers in the same places; None where that is not known."""
    if not is_plain(tensor) or not tensor.numel():
        return None
    return tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride()


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor has memory of its own that holds its numbers, as those of other people's types may not."""
    return (
        tensor.layout is torch.strided
        and not tensor.is_meta
        and type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__
    )


class Whereabouts:
    """Where tensors lay in memory, and how, when this was made."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        self._found = self._look()

    def hold(self) -> bool:
        """Whether everything is as it was. This runs in every step, over every weight: each look is one loop in C."""
        return self._look() == self._found

    def _look(self) -> list[list[Any]]:
        return [
            list(map(Tensor.data_ptr, self._tensors)),
            list(map(Tensor.stride, self._tensors)),
            list(map(Tensor.numel, self._tensors)),
            list(map(_dtype, self._tensors)),
        ]


_dtype = attrgetter("dtype")


def _merged(levels: Iterable[Level]) -> tuple[Level, Level] | None:
    """Join levels that continue one another; None where more than two are left."""
    joined: list[Level] = []
    for count, stride in levels:
        if count == 1:
            continue
        if joined and joined[-1][1] == count * stride:
            joined[-1] = (joined[-1][0] * count, stride)
        else:
            joined.append((count, stride))
    if len(joined) > 2:
        return None
    inner = joined.pop() if joined else (1, 1)
    outer = joined.pop() if joined else (1, 0)
    return outer, inner


def _end(tensor: Tensor) -> int:
    last = sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr() + (last + 1) * tensor.element_size() if prod(tensor.shape) else tensor.data_ptr()
