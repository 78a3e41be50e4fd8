"""The path that needs torch alone: kept views of the weights, norms into a buffer, one product for many weights.

Norms are computed in the weights' own precision (half precision in float32) and are right within `_SAFE`, where no
square overflows or loses digits; a weight with a norm beyond goes through `projection`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from pbwn import projection
from pbwn.axes import Axes
from pbwn.constraint import Constraint, MaxNorm
from pbwn.layout import row_layout

# How many squares float32 adds up within two units in the last place.
_LONGEST_SUM = {"one stretch": 2048, "scattered": 64}
_GROUP_BYTES = 2 * 1024 * 1024  # a group's norms are read, and its products written, while it is in a cache
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

    def norms_(self) -> None:
        """Write the norms of all rows into the buffer."""
        dtype = None if self.per_row.dtype == self.rows.dtype else self.per_row.dtype
        if self.pieces is None:
            torch.linalg.vector_norm(self.rows, 2, self.fan_in, True, dtype=dtype, out=self.per_row)
        else:
            rows, within, across = self.pieces
            parts = torch.linalg.vector_norm(rows, 2, within, True, dtype=dtype)
            few = prod(parts.shape[dim] for dim in across) <= _LONGEST_SUM["scattered"]
            whole = torch.linalg.vector_norm(parts, 2, across, True, dtype=None if few else torch.float64)
            self.per_row.copy_(whole.view(self.per_row.shape))

    @torch.no_grad()
    def tangent_(self) -> bool:
        """Make the gradient tangent in the weight's own precision, if it is laid out alike and that is exact enough."""
        gradient = self.tensor.grad
        if gradient is None or not _is_laid_out_like(gradient, self.tensor) or gradient.dtype != self.per_row.dtype:
            return False
        self.norms_()
        if not _is_safe(self.per_row):
            return False
        slopes = gradient.as_strided(self.rows.shape, self.rows.stride())
        dots = (self.rows * slopes).sum(self.fan_in, keepdim=True)
        radii = None if self.radii is None else self.radii.view_as(self.per_row)
        slopes.addcmul_(self.rows, projection.tangent_coefficients(self.per_row, dots, radii), value=-1)
        return True


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
    """Weights in the CPU's memory whose norms have one dtype, in groups that fit into a cache.

    Whoever keeps it must make sure that the weights are still where they were.
    """

    def __init__(
        self, tensors: Sequence[Tensor], axes: Sequence[Axes], radii: Sequence[Tensor | None], constraint: Constraint
    ) -> None:
        members: list[list[tuple[Tensor, Axes, Tensor | None]]] = []
        filled = _GROUP_BYTES
        for described in zip(tensors, axes, radii, strict=True):
            if filled >= _GROUP_BYTES:
                members.append([])
                filled = 0
            members[-1].append(described)
            filled += described[0].numel() * described[0].element_size()
        self._groups = [_Group(group, constraint) for group in members]

    @torch.no_grad()
    def project_(self) -> None:
        """Project all weights: equation (10)."""
        for group in self._groups:
            group.project_()

    def tangent_(self) -> None:
        """Make the gradients of all weights tangent: equation (7)."""
        for group in self._groups:
            for entry in group.entries:
                if not entry.tangent_():
                    tangent_gradient_(entry.tensor, entry.axes, entry.radii)


class _Group:
    """Views of some weights, and a buffer with a number for each of their neurons."""

    def __init__(self, weights: Sequence[tuple[Tensor, Axes, Tensor | None]], constraint: Constraint) -> None:
        counts = [prod(axes.neuron_shape(tuple(tensor.shape))) for tensor, axes, _ in weights]
        given = [radii.flatten() for _, _, radii in weights if radii is not None]
        dtype = norm_dtype(weights[0][0])
        self._constraint = constraint
        self._buffer = torch.empty(sum(counts), dtype=dtype, device="cpu")
        self._radii = torch.cat(given).to(dtype) if given else None
        length = constraint.limit if isinstance(constraint, MaxNorm) else constraint.radius
        self._length = None if length == "initial" else torch.tensor(length, dtype=dtype, device="cpu")
        self.entries = [_entry(*weight, part) for weight, part in zip(weights, self._buffer.split(counts), strict=True)]
        self._rows = [entry.rows for entry in self.entries]
        self._per_row = [entry.per_row for entry in self.entries]

    def project_(self) -> None:
        """Norms of all weights, factors of all neurons at once, then the products."""
        for entry in self.entries:
            entry.norms_()
        if not _is_safe(self._buffer):
            self._project_with_care_()
            return
        if self._length is None:
            self._buffer.copy_(projection.safe_factors(self._constraint, self._buffer, self._radii))
        else:  # the same in two calls fewer: such norms give factors that need no second look
            if isinstance(self._constraint, MaxNorm):
                self._buffer.clamp_(min=self._constraint.limit)
            torch.div(self._length, self._buffer, out=self._buffer)
        torch._foreach_mul_(self._rows, self._per_row)

    def _project_with_care_(self) -> None:
        """Weights with a norm that may have lost digits go through `projection`."""
        unsafe = [not _is_safe(norms) for norms in self._per_row]
        self._buffer.copy_(projection.safe_factors(self._constraint, self._buffer, self._radii))
        for entry, is_unsafe in zip(self.entries, unsafe, strict=True):
            if is_unsafe:
                projection.project_(entry.tensor, entry.axes, self._constraint, radii=entry.radii)
            else:
                entry.rows.mul_(entry.per_row)


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


def _is_laid_out_like(gradient: Tensor, weight: Tensor) -> bool:
    return gradient.layout is torch.strided and gradient.stride() == weight.stride()


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


def _entry(tensor: Tensor, axes: Axes, radii: Tensor | None, numbers: Tensor) -> _Entry:
    layout = row_layout(tensor, axes)
    if layout is not None and layout.neurons[0][0] == layout.fan_in[0][0] == 1:  # a matrix: torch is fastest with these
        (count, stride), (fan_in, step) = layout.neurons[1], layout.fan_in[1]
        matrix = tensor.detach().as_strided((count, fan_in), (stride, step))
        return _Entry(tensor, axes, radii, matrix, (1,), numbers[:, None], _pieces(matrix, (1,)))
    rows, dims = axes.rows(tensor.detach()), axes.fan_in_dims(tensor)
    per_row = numbers.view(*axes.neuron_shape(tuple(tensor.shape)), *(1 for _ in dims))
    return _Entry(tensor, axes, radii, rows, dims, per_row, _pieces(rows, dims))


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
