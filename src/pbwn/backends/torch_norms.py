"""Norms of the rows of many weights by torch's operations, as exact as these are without taking longer.

Torch's norm adds up eight squares side by side, each in one sum, and those left over one by one. In a long row every
square is rounded to a sum that is many times as large, so rows are measured in pieces, then the norms of these. Where a
row has no fitting ones, its squares are written down first: torch's sum of them is more exact, and takes longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import prod

import torch
from torch import Tensor
from torch.linalg import vector_norm

_LANES = 8
# How many squares float32 adds up within two units in the last place; within six where all are equal, so that rounding
# errors have one sign, and within 17 where one that is many times as large as these swallows part of each.
_LONGEST = 256
_SHORTEST, _SHORTEST_STRETCH = 96, 24  # shorter ones take more time than the squares
_FEW, _MANY = 32, 6  # in so few numbers, or in so many pieces, what is left over beside the eight does no harm


@dataclass(frozen=True, eq=False)
class Rows:
    """A view of a weight with its neurons in front, and how its rows are measured.

    `cut` has the numbers of a piece in its last dimension; None means by squares.
    """

    view: Tensor
    neuron_dims: int
    neurons: int
    cut: Tensor | None
    pieces: int

    @classmethod
    def of(cls, view: Tensor, neuron_dims: int) -> Rows:
        """Look for pieces."""
        neurons, cut = prod(view.shape[:neuron_dims]), _pieces(view, neuron_dims)
        return cls(view, neuron_dims, neurons, cut, 0 if cut is None else prod(cut.shape[:-1]) // neurons)

    @property
    def nbytes(self) -> int:
        """The memory that is gone through when they are measured."""
        return self.view.nbytes * (2 if self.cut is None else 1)

    @property
    def own_numbers(self) -> int:
        """How many numbers are needed for these rows alone: for each neuron, and for each of several pieces."""
        return self.neurons * (1 + (self.pieces if self.pieces > 1 else 0))


class Norms:
    """What writes the norms of many rows, a number for each neuron; rows with as many pieces stand together.

    These are followed by the norms of pieces, where rows have several, and by room for squares.
    """

    def __init__(self, rows: Sequence[Rows], numbers: Tensor) -> None:
        neurons = sum(some.neurons for some in rows)
        self.all, pieces, room = numbers.tensor_split([neurons, sum(some.own_numbers for some in rows)])
        first: list[Callable[[], object]] = []
        then: list[Callable[[], object]] = []
        remaining = self.all
        for count, group in groupby(rows, key=lambda some: some.pieces):
            alike = list(group)
            norms, remaining = remaining.tensor_split([sum(some.neurons for some in alike)])
            measured = norms
            if count == 0:
                then.append(norms.sqrt_)
            elif count > 1:
                measured, pieces = pieces.tensor_split([norms.numel() * count])
                then.append(partial(vector_norm, measured.view(-1, count), 2, -1, out=norms))
            for some, out in zip(alike, measured.split([some.neurons * max(count, 1) for some in alike]), strict=True):
                first.append(_sums_of_squares(some, out, room) if some.cut is None else _norms(some.cut, out))
        self._steps = first + then

    @staticmethod
    def numbers(rows: Sequence[Rows]) -> int:
        """How many numbers are needed for all these rows."""
        return sum(some.own_numbers for some in rows) + max(some.view.numel() * (some.cut is None) for some in rows)

    def measure_(self) -> None:
        """Write all of them."""
        for step in self._steps:
            step()


def _norms(cut: Tensor, norms: Tensor) -> Callable[[], object]:
    """What measures all pieces."""
    dtype = norms.dtype if norms.dtype != cut.dtype else None
    return partial(vector_norm, cut, 2, -1, dtype=dtype, out=norms.view(cut.shape[:-1]))


def _sums_of_squares(rows: Rows, sums: Tensor, room: Tensor) -> Callable[[], object]:
    """What squares all numbers and adds them up: along one dimension after the other, rounding errors stay small."""
    squares = _laid_out_like(rows.view, room)
    *others, last = sorted(range(rows.neuron_dims, squares.ndim), key=squares.size, reverse=True)
    sums = sums.view(rows.view.shape[: rows.neuron_dims] + (1,) * (squares.ndim - rows.neuron_dims))

    def add_up() -> None:
        if rows.view.dtype == squares.dtype:
            torch.mul(rows.view, rows.view, out=squares)
        else:
            squares.copy_(rows.view).square_()
        partial_sums = squares
        for dim in others:
            partial_sums = partial_sums.sum(dim, keepdim=True)
        torch.sum(partial_sums, last, keepdim=True, out=sums)

    return add_up


def _laid_out_like(view: Tensor, room: Tensor) -> Tensor:
    """Numbers in the order in memory that those of the view have, without gaps."""
    return room.as_strided(view.shape, torch.empty_like(view, device="meta").stride())


def _pieces(rows: Tensor, neuron_dims: int) -> Tensor | None:
    """A view of rows with the numbers of a piece in the last dimension.

    None where there is none: too few numbers lie together in memory, or their count has no fitting divisor.
    """
    if neuron_dims == rows.ndim:
        return rows.unsqueeze(-1)
    fan_in = sorted(range(neuron_dims, rows.ndim), key=rows.stride, reverse=True)
    row = rows.permute(*range(neuron_dims), *fan_in)
    first, together = row.ndim, 1
    while first > neuron_dims and (row.shape[first - 1] == 1 or row.stride(first - 1) == together):
        first -= 1
        together *= row.shape[first]
    stretches = prod(row.shape[neuron_dims:first])
    if first == row.ndim or (stretches > 1 and together < _SHORTEST_STRETCH):
        return None
    length = _length(together, stretches)
    return None if length is None else row.flatten(first).unflatten(first, (-1, length))


def _length(together: int, stretches: int = 1) -> int | None:
    """How long the pieces are, where so many numbers lie together and a row has so many of such stretches.

    >>> [_length(count) for count in (27, 144, 768, 4608, 707, 157, 709)]
    [27, 144, 256, 256, 101, None, None]
    """
    if together <= _FEW:
        return together
    lengths = [
        length
        for length in range(min(_SHORTEST, together), min(_LONGEST, together) + 1)
        if together % length == 0 and (length % _LANES == 0 or together // length * stretches >= _MANY)
    ]
    return max(lengths, key=lambda length: (length % _LANES == 0, length), default=None)
