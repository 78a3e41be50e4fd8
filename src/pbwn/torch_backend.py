"""The path that needs torch alone: views of all weights, norms into one buffer, one product for all.

Norms are computed in the weights' own precision (half precision in float32) and are right within `_SAFE`, where no
square overflows or loses digits; a weight with a norm beyond goes through `projection`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from pbwn import projection
from pbwn.axes import Axes
from pbwn.constraint import Constraint

# How many squares float32 adds up within two units in the last place.
_LONGEST_SUM = {"one stretch": 2048, "scattered": 64}
_SAFE = {torch.float32: (1e-15, 1e15), torch.float64: (1e-140, 1e140)}


@dataclass(frozen=True, eq=False)
class _Entry:
    """One weight; `per_row` are its numbers in the buffer, shaped to broadcast over its rows."""

    tensor: Tensor
    axes: Axes
    radii: Tensor | None
    rows: Tensor
    fan_in: tuple[int, ...]
    per_row: Tensor
    pieces: _Pieces | None

    def norms_(self, dtype: torch.dtype) -> None:
        """Write the norms of all rows into the buffer."""
        if self.pieces is None:
            torch.linalg.vector_norm(self.rows, 2, self.fan_in, True, dtype=dtype, out=self.per_row)
        else:
            rows, within, across = self.pieces
            parts = torch.linalg.vector_norm(rows, 2, within, True, dtype=dtype)
            whole = torch.linalg.vector_norm(parts, 2, across, True, dtype=torch.float64)
            self.per_row.copy_(whole.view(self.per_row.shape))


class _Pieces(NamedTuple):
    """Rows cut into pieces that are short enough to be summed in float32: the dimensions within them, and across."""

    rows: Tensor
    within: tuple[int, ...]
    across: tuple[int, ...]


def _pieces(rows: Tensor, fan_in: tuple[int, ...]) -> _Pieces | None:
    """Cut long rows into pieces that lie together in memory; None where they are short enough as they are.

    torch adds up in blocks where a row is one stretch of memory, and number by number elsewhere.
    """
    outwards = sorted(fan_in, key=rows.stride)
    count = prod(rows.shape[dim] for dim in fan_in)
    stretch = 1 + sum((rows.shape[dim] - 1) * rows.stride(dim) for dim in fan_in)
    limit = _LONGEST_SUM["one stretch" if stretch == count else "scattered"]
    if count <= limit:
        return None
    length = 1
    for position, dim in enumerate(outwards):
        size = rows.shape[dim]
        if length * size > limit:
            part = max(divisor for divisor in range(1, limit // length + 1) if size % divisor == 0)
            cut = rows.unflatten(dim, (-1, part))
            moved = [other + (other > dim) for other in outwards]
            return _Pieces(cut, (*moved[:position], dim + 1), (dim, *moved[position + 1 :]))
        length *= size
    return None


class TorchWeights:
    """Views of weights in the CPU's memory whose norms have one dtype, and the buffer for these norms.

    Whoever keeps it must make sure that the weights are still where they were.
    """

    def __init__(
        self, tensors: Sequence[Tensor], axes: Sequence[Axes], radii: Sequence[Tensor | None], constraint: Constraint
    ) -> None:
        shapes = [one.neuron_shape(tuple(tensor.shape)) for tensor, one in zip(tensors, axes, strict=True)]
        counts = [prod(shape) for shape in shapes]
        given = [radius.flatten() for radius in radii if radius is not None]
        self._constraint = constraint
        self._dtype = norm_dtype(tensors[0])
        self._buffer = torch.empty(sum(counts), dtype=self._dtype, device="cpu")
        self._radii = torch.cat(given).to(self._dtype) if given else None
        self._entries = [
            _entry(*described)
            for described in zip(tensors, axes, radii, shapes, self._buffer.split(counts), strict=True)
        ]
        self._rows = [entry.rows for entry in self._entries]
        self._factors = [entry.per_row for entry in self._entries]

    @torch.no_grad()
    def project_(self) -> None:
        """Norms of all weights, factors of all neurons at once, then the products: equation (10)."""
        for entry in self._entries:
            entry.norms_(self._dtype)
        if _is_safe(self._buffer):
            known_good = self._radii is None  # such norms give factors that need no second look
            factors = self._constraint.factors if known_good else partial(projection.safe_factors, self._constraint)
            self._buffer.copy_(factors(self._buffer, self._radii))
            torch._foreach_mul_(self._rows, self._factors)
            return
        unsafe = {index for index, norms in enumerate(self._factors) if not _is_safe(norms)}
        self._buffer.copy_(projection.safe_factors(self._constraint, self._buffer, self._radii))
        for index, entry in enumerate(self._entries):
            if index in unsafe:
                projection.project_(entry.tensor, entry.axes, self._constraint, radii=entry.radii)
            else:
                entry.rows.mul_(entry.per_row)

    def tangent_(self) -> None:
        """Make the gradients of all weights tangent: equation (7)."""
        for entry in self._entries:
            tangent_gradient_(entry.tensor, entry.axes, entry.radii)


class ReferenceWeights:
    """Weights that go through `projection` one after the other, wherever they are and whatever they share."""

    def __init__(
        self, tensors: Sequence[Tensor], axes: Sequence[Axes], radii: Sequence[Tensor | None], constraint: Constraint
    ) -> None:
        self._weights = list(zip(tensors, axes, radii, strict=True))
        self._constraint = constraint

    def project_(self) -> None:
        """Project all weights: equation (10)."""
        for tensor, axes, radii in self._weights:
            projection.project_(tensor, axes, self._constraint, radii=radii)

    def tangent_(self) -> None:
        """Make the gradients of all weights tangent: equation (7)."""
        for tensor, axes, radii in self._weights:
            tangent_gradient_(tensor, axes, radii)


def norm_dtype(weight: Tensor) -> torch.dtype:
    """The precision of a weight's norms on this path."""
    return torch.float64 if weight.dtype == torch.float64 else torch.float32


@torch.no_grad()
def tangent_gradient_(weight: Tensor, axes: Axes, radii: Tensor | None) -> None:
    """Make a weight's gradient tangent, if it has one, be it dense or sparse."""
    gradient = weight.grad
    if gradient is None:
        return
    if gradient.is_sparse:
        weight.grad = _sparse_tangent(gradient, weight, axes, radii)
    else:
        projection.tangent_(gradient, weight, axes, radii=radii)


def _entry(tensor: Tensor, axes: Axes, radii: Tensor | None, shape: tuple[int, ...], numbers: Tensor) -> _Entry:
    fan_in = axes.fan_in_dims(tensor)
    per_row = numbers.view(*shape, *(1 for _ in fan_in))
    rows = axes.rows(tensor.detach())
    return _Entry(tensor, axes, radii, rows, fan_in, per_row, _pieces(rows, fan_in))


def _is_safe(norms: Tensor) -> bool:
    low, high = _SAFE[norms.dtype]
    smallest, largest = norms.aminmax()
    return low <= smallest.item() and largest.item() <= high  # false where one is NaN


def _sparse_tangent(gradient: Tensor, weight: Tensor, axes: Axes, radii: Tensor | None) -> Tensor:
    """The tangent gradient of the rows that a sparse gradient holds, such as an embedding's."""
    if axes != Axes((0,)):
        raise ValueError(f"a sparse gradient of a weight with axes {axes} cannot be made tangent: only (0,) can")
    gradient = gradient.coalesce()
    [rows] = gradient.indices()
    some = None if radii is None else radii[rows]
    values = projection.tangent_(gradient.values(), weight[rows], axes, radii=some)
    return torch.sparse_coo_tensor(
        gradient.indices(), values, gradient.shape, is_coalesced=True, check_invariants=False
    )
