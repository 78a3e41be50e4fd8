"""The path that needs torch alone: kept views of the weights, norms into a buffer, products of many weights at once.

Norms are computed in the weights' own precision (half precision in float32) and are right within `_SAFE`, where no
square overflows or loses digits; a chunk of rows with a norm outside goes through `projection`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor
from torch.linalg import vector_norm

from pbwn import projection
from pbwn.axes import Axes
from pbwn.backends.reference_weights import is_laid_out, tangent_gradient_
from pbwn.constraint import Constraint, UnitNorm
from pbwn.layout import Whereabouts

# How many squares float32 adds up within two units in the last place; within six where all are equal, so that rounding
# errors have one sign, and within 17 where one that is many times as large as these swallows part of each.
_LONGEST_PIECE, _MOST_PIECES = 256, 32
_SHORTEST_PIECE = 24  # shorter ones take more time than the squares of their numbers in one sum
# Torch adds up eight numbers side by side and those left over one by one, each rounded to the whole sum. That takes one
# in some thousand rows beyond four units in the last place, unless they are very short or cut into several pieces.
_LANES, _FEW, _FEW_PIECES = 8, 32, 4
_GROUP_BYTES = 6 * 1024 * 1024  # a group is scaled while it is in a cache; smaller ones take more calls
_UNIT = UnitNorm()
_SAFE = {torch.float32: (1e-15, 1e15), torch.float64: (1e-140, 1e140)}


class TorchWeights:
    """Weights in the CPU's memory whose norms have one dtype, in groups of neurons that fit into a cache.

    Whoever keeps it must make sure that the weights are still where they were.
    """

    def __init__(
        self, tensors: Sequence[Tensor], axes: Sequence[Axes], radii: Sequence[Tensor | None], constraint: Constraint
    ) -> None:
        self._weights = list(zip(tensors, axes, radii, strict=True))
        self._strides = [tensor.stride() for tensor in tensors]
        self._dtype = norm_dtype(tensors[0])
        self.fits = Whereabouts(tensors).hold
        members: list[list[_Rows]] = []
        filled = _GROUP_BYTES
        for index, weight in enumerate(self._weights):
            for some in _cut(index, *weight):
                size = some.view.numel() * some.view.element_size()
                if filled + size > _GROUP_BYTES:
                    members.append([])
                    filled = 0
                members[-1].append(some)
                filled += size
        self._groups = [_Group(group, constraint, self._dtype) for group in members]

    def project_(self) -> None:
        """Project all weights: equation (10). The views are detached: there is no gradient to turn off."""
        for group in self._groups:
            group.project_()

    @torch.no_grad()
    def tangent_(self) -> None:
        """Make the gradients of all weights tangent: equation (7)."""
        gradients = []
        for (tensor, axes, radii), stride in zip(self._weights, self._strides, strict=True):
            gradient = tensor.grad
            if gradient is None or not is_laid_out(gradient, tensor.shape, stride, self._dtype, tensor.device):
                tangent_gradient_(tensor, axes, radii)
                gradient = None
            gradients.append(gradient)
        for group in self._groups:
            group.tangent_(gradients)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Some neurons of a weight: a view with the neurons in front, `offset` numbers into the weight."""

    weight: int
    view: Tensor
    offset: int
    axes: Axes
    radii: Tensor | None
    is_weight: bool

    def of(self, gradient: Tensor) -> Tensor:
        """The same view of a gradient that is laid out like the weight."""
        if self.is_weight:
            return gradient
        return gradient.as_strided(self.view.shape, self.view.stride(), gradient.storage_offset() + self.offset)


def _cut(index: int, tensor: Tensor, axes: Axes, radii: Tensor | None) -> Iterator[_Rows]:
    """Cut a weight between its neurons, into pieces that are no larger than a group."""
    rows, in_front = axes.rows(tensor.detach()), Axes(tuple(range(axes.neuron_dims)))
    pieces = min(rows.shape[0], -(-rows.numel() * rows.element_size() // _GROUP_BYTES))
    own = None if radii is None else radii.tensor_split(pieces)
    is_weight = pieces == 1 and rows.shape == tensor.shape and rows.stride() == tensor.stride()
    for number, view in enumerate(rows.tensor_split(pieces)):
        offset = int(view.storage_offset() - tensor.storage_offset())
        yield _Rows(index, view, offset, in_front, None if own is None else own[number], is_weight)


def _measure(rows: Tensor, neuron_dims: int, norms: Tensor) -> Callable[[], object]:
    """What writes the norms of rows.

    A row that is too long to be added up in float32 is cut into pieces that lie together in memory. Where there are no
    such pieces, or only few and with numbers left over, torch's sum of the squares is more exact.
    """
    fan_in = sorted(range(neuron_dims, rows.ndim), key=rows.stride, reverse=True)
    row = rows.permute(*range(neuron_dims), *fan_in)
    first, together = row.ndim, 1
    while first > neuron_dims and (row.shape[first - 1] == 1 or row.stride(first - 1) == together):
        first -= 1
        together *= row.shape[first]
    count = prod(row.shape[neuron_dims:])
    dtype = None if norms.dtype == rows.dtype else norms.dtype
    whole = together == count <= _LONGEST_PIECE
    lengths = [length for length in range(_SHORTEST_PIECE, _LONGEST_PIECE + 1) if together % length == 0]
    length = count if whole else max(lengths, key=lambda length: (length % _LANES == 0, length), default=0)
    if length == 0 or (length % _LANES and _FEW < count < _FEW_PIECES * length):
        return partial(_measure_by_squares, rows, neuron_dims, norms)
    if whole:
        return partial(vector_norm, row, 2, tuple(range(neuron_dims, row.ndim)), dtype=dtype, out=norms)
    pieces = partial(vector_norm, row.flatten(first).unflatten(first, (-1, length)), 2, -1, dtype=dtype)
    left = tuple(range(neuron_dims, first + 1))
    if count // length <= _MOST_PIECES:
        return lambda: vector_norm(pieces(), 2, left, out=norms)
    return lambda: norms.copy_(vector_norm(pieces(), 2, left, dtype=torch.float64))


def _measure_by_squares(rows: Tensor, neuron_dims: int, norms: Tensor) -> None:
    """Write the norms of rows by torch's sum, whose rounding errors stay small along a single dimension."""
    squares = rows.to(norms.dtype).square()
    for dim in sorted(range(neuron_dims, rows.ndim), key=rows.size, reverse=True):
        squares = squares.sum(dim, keepdim=True)
    norms.copy_(projection.roots(squares.view(norms.shape).to(torch.float64)))


class _Group:
    """Some neurons of some weights, and a buffer with a number for each."""

    def __init__(self, members: Sequence[_Rows], constraint: Constraint, dtype: torch.dtype) -> None:
        self._members = members
        self._constraint = constraint
        self._rows = [rows.view for rows in members]
        self._fan_in = [rows.axes.fan_in_dims(rows.view) for rows in members]
        shapes = [rows.axes.neuron_shape(tuple(rows.view.shape)) for rows in members]
        self._buffer = torch.empty(sum(map(prod, shapes)), dtype=dtype, device="cpu")
        parts = self._buffer.split([prod(shape) for shape in shapes])
        norms = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        self._measures = [
            _measure(rows.view, rows.axes.neuron_dims, one) for rows, one in zip(members, norms, strict=True)
        ]
        self._per_row = [
            one.view(*one.shape, *(1 for _ in dims)) for one, dims in zip(norms, self._fan_in, strict=True)
        ]
        given = [rows.radii.flatten() for rows in members if rows.radii is not None]
        self._radii = torch.cat(given).to(torch.float64) if given else None
        length = constraint.length
        lengths = self._radii if length == "initial" else torch.tensor([length], dtype=torch.float64, device="cpu")
        low, high = _SAFE[dtype]
        self._is_usual = lengths is None or bool(((lengths == 0) | (lengths >= low) & (lengths <= high)).all())

    def project_(self) -> None:
        """Norms of all rows, what all neurons are multiplied by at once, then the products."""
        self._measure_()
        if not self._is_usual or not _is_safe(self._buffer):
            self._project_with_care_()
            return
        if self._constraint == _UNIT:
            self._buffer.reciprocal_()
        else:
            self._buffer.copy_(self._factors())
        torch._foreach_mul_(self._rows, self._per_row)  # from a cache, products take less time than quotients

    def tangent_(self, gradients: Sequence[Tensor | None]) -> None:
        """Norms of all rows and their products with the gradients, coefficients at once, then what is subtracted.

        `gradients` holds one for each weight, laid out like it, or None where there is nothing to do.
        """
        slopes = {
            index: rows.of(gradient)
            for index, rows in enumerate(self._members)
            if (gradient := gradients[rows.weight]) is not None
        }
        if not slopes:
            return
        dots = []
        for index, measure in enumerate(self._measures):
            if index in slopes:
                measure()
                dots.append((self._rows[index] * slopes[index]).sum(self._fan_in[index]).flatten())
            else:
                self._per_row[index].fill_(1)
                dots.append(torch.zeros_like(self._per_row[index]).flatten())
        products = torch.cat(dots)
        if not (_is_safe(self._buffer) and products.isfinite().all()):
            for index in list(slopes):
                if not (_is_safe(self._per_row[index]) and dots[index].isfinite().all()):
                    rows = self._members[index]
                    projection.tangent_(slopes.pop(index), rows.view, rows.axes, radii=rows.radii)
        self._buffer.copy_(projection.tangent_coefficients(self._buffer, products, self._radii))
        views, coefficients = ([kept[index] for index in slopes] for kept in (self._rows, self._per_row))
        if slopes:
            torch._foreach_addcmul_(list(slopes.values()), views, coefficients, -1)

    def _measure_(self) -> None:
        """Write the norms of all rows into the buffer."""
        for measure in self._measures:
            measure()

    def _factors(self) -> Tensor:
        """What each neuron is multiplied by: 1 where it is to be left as it is."""
        return projection.safe_factors(self._constraint, self._buffer.to(torch.float64), self._radii)

    def _project_with_care_(self) -> None:
        """Rows next to a norm that may have lost digits go through `projection`, as all do if the radius is extreme."""
        unsafe = [not self._is_usual or not _is_safe(norms) for norms in self._per_row]
        self._buffer.copy_(self._factors())
        for rows, factors, is_unsafe in zip(self._members, self._per_row, unsafe, strict=True):
            if is_unsafe:
                projection.project_(rows.view, rows.axes, self._constraint, radii=rows.radii)
            else:
                rows.view.mul_(factors)


def norm_dtype(weight: Tensor) -> torch.dtype:
    """The precision of a weight's norms on this path."""
    return torch.float64 if weight.dtype == torch.float64 else torch.float32


def _is_safe(norms: Tensor) -> bool:
    low, high = _SAFE[norms.dtype]
    smallest, largest = norms.aminmax()
    return low <= smallest.item() and largest.item() <= high  # false where one is NaN
