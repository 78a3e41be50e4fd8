"""Many weights a call: the meaning of `projection`, faster.

Weights in the CPU's memory take the fast path: norms in the weights' own precision (half precision in float32), into
one buffer with a number per neuron, through views that are kept between calls. It is right for norms within `_SAFE`,
where no square overflows or loses digits; a weight with a norm beyond goes through `projection`. So do weights on
accelerators, where a look at the norms would mean waiting for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from pbwn import projection, sharded
from pbwn.axes import Axes
from pbwn.constraint import Constraint
from pbwn.selection import ConstrainedWeight

# How far rounding alone can take a row that was just projected, relative to its radius.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 8e-3}
# How many squares float32 adds up within two units in the last place.
_LONGEST_SUM = {"one stretch": 2048, "scattered": 64}
_SAFE = {torch.float32: (1e-15, 1e15), torch.float64: (1e-140, 1e140)}


class Batch:
    """Weights that are projected together."""

    def __init__(
        self, weights: Sequence[ConstrainedWeight], constraint: Constraint, radii: Mapping[str, Tensor] | None = None
    ) -> None:
        """`radii` holds, by the weight's name, a number per neuron where each neuron has a radius of its own."""
        self._weights = weights
        self._constraint = constraint
        self._radii = radii or {}
        self._plans: dict[torch.dtype, _Plan] = {}

    @torch.no_grad()
    def project_(self) -> None:
        """Project all weights, in place: equation (10)."""
        fast: dict[torch.dtype, list[ConstrainedWeight]] = {}
        spread: list[ConstrainedWeight] = []
        for weight in self._weights:
            tensor = weight.tensor
            if sharded.is_sharded(tensor):
                spread.append(weight)
            elif tensor.device.type == "cpu" and tensor.numel():
                fast.setdefault(_norm_dtype(tensor), []).append(weight)
            else:
                projection.project_(tensor, weight.axes, self._constraint, radii=self._radius(weight))
        self._plans = {dtype: self._plan(dtype, weights) for dtype, weights in fast.items()}
        for plan in self._plans.values():
            plan.project_(self._constraint)
        if spread:
            shards = [sharded.Shard.of(weight.tensor, weight.axes) for weight in spread]
            sharded.project_(shards, self._constraint, [self._radius(weight) for weight in spread])

    @torch.no_grad()
    def settle_(self) -> None:
        """Project the rows that are off by more than rounding, and leave the others bit for bit."""
        for weight in self._weights:
            tensor, radii = weight.tensor, self._radius(weight)
            tolerance = TOLERANCE[tensor.dtype]
            if sharded.is_sharded(tensor):
                shard = sharded.Shard.of(tensor, weight.axes)
                sharded.project_([shard], self._constraint, [radii], leave_within=tolerance)
            else:
                projection.project_(tensor, weight.axes, self._constraint, radii=radii, leave_within=tolerance)

    @torch.no_grad()
    def tangent_(self) -> None:
        """Make the gradients of all weights tangent to their spheres, in place: equation (7)."""
        spread: list[ConstrainedWeight] = []
        for weight in self._weights:
            tensor = weight.tensor
            if tensor.grad is None:
                continue
            if sharded.is_sharded(tensor):
                spread.append(weight)
            elif tensor.grad.is_sparse:
                tensor.grad = _sparse_tangent(tensor.grad, tensor, weight.axes, self._radius(weight))
            else:
                projection.tangent_(tensor.grad, tensor, weight.axes, radii=self._radius(weight))
        if spread:
            shards = [sharded.Shard.of(weight.tensor, weight.axes) for weight in spread]
            gradients = [sharded.local_gradient(weight.tensor) for weight in spread]
            sharded.tangent_(shards, gradients, [self._radius(weight) for weight in spread])

    def _radius(self, weight: ConstrainedWeight) -> Tensor | None:
        radii = self._radii.get(weight.name)
        return None if radii is None else radii.to(weight.tensor.device)

    def _plan(self, dtype: torch.dtype, weights: list[ConstrainedWeight]) -> _Plan:
        """The views of these weights: those of the last call, unless a weight was replaced, moved or restrided."""
        tensors = [weight.tensor for weight in weights]
        plan = self._plans.get(dtype)
        if plan is None or not plan.fits(tensors):
            axes, radii = [weight.axes for weight in weights], [self._radius(weight) for weight in weights]
            with torch.inference_mode(False):  # the plan outlives the mode that it happens to be made in
                plan = _Plan(dtype, tensors, axes, radii)
        return plan


@dataclass(frozen=True, eq=False)
class _Entry:
    """One weight of a plan; `per_row` are its numbers in the buffer, shaped to broadcast over its rows."""

    tensor: Tensor
    axes: Axes
    radii: Tensor | None
    pointer: int
    tensor_shape: torch.Size
    stride: tuple[int, ...]
    rows: Tensor
    fan_in: tuple[int, ...]
    per_row: Tensor
    pieces: _Pieces | None

    def shows(self, tensor: Tensor) -> bool:
        """Whether the views still show the memory of this weight."""
        return (
            tensor is self.tensor
            and tensor.data_ptr() == self.pointer
            and tensor.stride() == self.stride
            and tensor.shape == self.tensor_shape
            and tensor.dtype == self.rows.dtype
        )

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


class _Plan:
    """Views of the weights whose norms have one dtype, and the buffer for these norms."""

    def __init__(self, dtype: torch.dtype, tensors: list[Tensor], axes: list[Axes], radii: list[Tensor | None]) -> None:
        shapes = [one.neuron_shape(tuple(tensor.shape)) for tensor, one in zip(tensors, axes, strict=True)]
        counts = [prod(shape) for shape in shapes]
        given = [radius.flatten() for radius in radii if radius is not None]
        self._dtype = dtype
        self._buffer = torch.empty(sum(counts), dtype=dtype, device="cpu")
        self._radii = torch.cat(given).to(dtype) if given else None
        self._entries = [
            self._entry(*described)
            for described in zip(tensors, axes, radii, shapes, self._buffer.split(counts), strict=True)
        ]

    def _entry(
        self, tensor: Tensor, axes: Axes, radii: Tensor | None, shape: tuple[int, ...], numbers: Tensor
    ) -> _Entry:
        fan_in = axes.fan_in_dims(tensor)
        per_row = numbers.view(*shape, *(1 for _ in fan_in))
        rows = axes.rows(tensor.detach())
        pieces = _pieces(rows, fan_in)
        where = tensor.data_ptr(), tensor.shape, tensor.stride()
        return _Entry(tensor, axes, radii, *where, rows, fan_in, per_row, pieces)

    def fits(self, tensors: list[Tensor]) -> bool:
        """Whether the views still show the memory of these weights."""
        return len(tensors) == len(self._entries) and all(
            entry.shows(tensor) for entry, tensor in zip(self._entries, tensors, strict=True)
        )

    def project_(self, constraint: Constraint) -> None:
        """Norms of all weights, factors of all neurons at once, then the products."""
        for entry in self._entries:
            entry.norms_(self._dtype)
        safe, unsafe = self._entries, []
        if not _is_safe(self._buffer):
            unsafe = [entry for entry in self._entries if not _is_safe(entry.per_row)]
            safe = [entry for entry in self._entries if entry not in unsafe]
        self._buffer.copy_(projection.safe_factors(constraint, self._buffer, self._radii))
        if safe:
            torch._foreach_mul_([entry.rows for entry in safe], [entry.per_row for entry in safe])
        for entry in unsafe:
            projection.project_(entry.tensor, entry.axes, constraint, radii=entry.radii)


def neuron_norms(weight: Tensor, axes: Axes) -> Tensor:
    """The norms of the neurons of a weight, or of those that this process's shard has a part of."""
    if sharded.is_sharded(weight):
        return sharded.row_norms([sharded.Shard.of(weight, axes)])[0]
    return projection.row_norms(weight, axes)


def _is_safe(norms: Tensor) -> bool:
    low, high = _SAFE[norms.dtype]
    smallest, largest = norms.aminmax()
    return low <= smallest.item() and largest.item() <= high  # false where one is NaN


def _norm_dtype(weight: Tensor) -> torch.dtype:
    return torch.float64 if weight.dtype == torch.float64 else torch.float32


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
