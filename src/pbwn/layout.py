"""The memory of tensors: which of them overlap, and whether any has moved."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor


def overlapping(tensors: Sequence[Tensor]) -> set[int]:
    """Return the indices of tensors whose range of memory overlaps another's: they must not be written concurrently."""
    return {index for members in _overlapping_groups(tensors) for index in members}


def sharing(tensors: Sequence[Tensor]) -> set[tuple[int, int]]:
    """Return pairs of indices of plain tensors that share an element; of three or more that do, not every pair.

    Ranges may overlap without a shared element, as those of the left and the right half of a matrix do.
    """
    found: set[tuple[int, int]] = set()
    for members in _overlapping_groups(tensors):
        first, end = tensors[members[0]].data_ptr(), max(_end(tensors[index]) for index in members)
        unit = min(tensors[index].element_size() for index in members)
        owners = torch.zeros((end - first) // unit, dtype=torch.int32, device="cpu")  # 1 + the last owner
        for index in members:
            tensor, units = tensors[index], tensors[index].element_size() // unit
            strides = [stride * units for stride in tensor.stride()]
            view = owners.as_strided((*tensor.shape, units), (*strides, 1), (tensor.data_ptr() - first) // unit)
            found |= {(owner - 1, index) for owner in view.unique().tolist() if owner}
            view.fill_(index + 1)
    return found


def _overlapping_groups(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Group the indices of tensors whose ranges of memory overlap, in order of address."""
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
    """Return a key that is equal for tensors of the same memory and layout; None where the memory is unknown."""
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
    """Addresses, strides, shapes and dtypes of tensors at one time; of a DTensor, those of this process's shard."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._sharded: list[Any] = [tensor for tensor in tensors if hasattr(tensor, "to_local")]
        self._whole = [tensor for tensor in tensors if not hasattr(tensor, "to_local")]
        self._plain = [tensor for tensor in self._whole if is_plain(tensor)]
        self._found = self._read()

    def is_unchanged(self) -> bool:
        """Whether nothing has changed. This runs in every step, over every weight: each list is one loop in C."""
        return self._read() == self._found

    def _read(self) -> list[list[Any]]:
        with torch.no_grad():
            shards = [tensor.to_local() for tensor in self._sharded]
        return [
            list(map(Tensor.data_ptr, self._plain)),
            list(map(Tensor.stride, self._whole)),
            list(map(_shape, self._whole)),
            list(map(_dtype, self._whole)),
            [(shard.data_ptr(), shard.stride(), shard.shape, shard.dtype) for shard in shards],
        ]


_dtype, _shape = attrgetter("dtype"), attrgetter("shape")


def _end(tensor: Tensor) -> int:
    last = sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr() + (last + 1) * tensor.element_size() if tensor.numel() else tensor.data_ptr()
