"""The memory of tensors: which of them share some, and whether it is where it was."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor


def overlapping(tensors: Sequence[Tensor]) -> set[int]:
    """The positions of tensors whose range of memory overlaps another's: these must not be written at the same time."""
    return {index for members in _meeting(tensors) for index in members}


def sharing(tensors: Sequence[Tensor]) -> set[tuple[int, int]]:
    """The positions of pairs of plain tensors that have an element in common, as far as pairs are needed to see it.

    Ranges may overlap without a common element, as those of the left and the right half of a matrix do.
    """
    found: set[tuple[int, int]] = set()
    for members in _meeting(tensors):
        first, end = tensors[members[0]].data_ptr(), max(_end(tensors[index]) for index in members)
        unit = min(tensors[index].element_size() for index in members)
        owners = torch.zeros((end - first) // unit, dtype=torch.int32, device="cpu")  # who has each last, from 1 up
        for index in members:
            tensor, units = tensors[index], tensors[index].element_size() // unit
            strides = [stride * units for stride in tensor.stride()]
            place = owners.as_strided((*tensor.shape, units), (*strides, 1), (tensor.data_ptr() - first) // unit)
            found |= {(owner - 1, index) for owner in place.unique().tolist() if owner}
            place.fill_(index + 1)
    return found


def _meeting(tensors: Sequence[Tensor]) -> list[list[int]]:
    """The positions of tensors whose ranges of memory overlap, from the first to the last address."""
    groups: list[list[int]] = []
    reach = 0
    for start, end, index in sorted((tensor.data_ptr(), _end(tensor), index) for index, tensor in enumerate(tensors)):
        if start < reach:
            groups[-1].append(index)
        else:
            groups.append([index])
        reach = max(reach, end)
    return [group for group in groups if len(group) > 1]


def memory_of(tensor: Tensor) -> Hashable:
    """A key that tensors of the same memory and layout have in common; None where the memory is not known."""
    if not is_plain(tensor) or not tensor.numel():
        return None
    return tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride()


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor has strided memory that holds its elements, as tensor subclasses may not."""
    return (
        tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_meta
        and type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__
    )


class MemorySnapshot:
    """Addresses, strides, shapes and dtypes of tensors at one moment; of a DTensor, those of this process's shard."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._sharded: list[Any] = [tensor for tensor in tensors if hasattr(tensor, "to_local")]
        self._whole = [tensor for tensor in tensors if not hasattr(tensor, "to_local")]
        self._placed = [tensor for tensor in self._whole if is_plain(tensor)]
        self._found = self._find()

    def is_unchanged(self) -> bool:
        """Whether all of it is the same now. This runs in every step, over every weight: each list is one loop in C."""
        return self._find() == self._found

    def _find(self) -> list[list[Any]]:
        with torch.no_grad():
            shards = [tensor.to_local() for tensor in self._sharded]
        return [
            list(map(Tensor.data_ptr, self._placed)),
            list(map(Tensor.stride, self._whole)),
            list(map(_shape, self._whole)),
            list(map(_dtype, self._whole)),
            [(shard.data_ptr(), shard.stride(), shard.shape, shard.dtype) for shard in shards],
        ]


_dtype, _shape = attrgetter("dtype"), attrgetter("shape")


def _end(tensor: Tensor) -> int:
    last = sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr() + (last + 1) * tensor.element_size() if tensor.numel() else tensor.data_ptr()
