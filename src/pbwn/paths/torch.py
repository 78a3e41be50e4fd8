"""The path of torch's own operations, on any device: one norm and one product per weight, on kept views.

Norms are accumulated in float32 for float32, bfloat16 and float16, in float64 for float64. Off the CPU nothing waits
for the device. A projection allocates nothing that grows with a weight; a tangent gradient or a step rule allocates a
workspace of the size of the largest weight. Off the CPU, a row whose squares leave the range of that dtype, so that its
norm comes out infinite or zero, is multiplied by a power of two that brings it back into range, and is on the sphere
after the next projection. On the CPU, where reading the norms is free, such a weight goes through `functional` at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch.linalg import vector_norm

from pbwn import functional
from pbwn.axes import Axes
from pbwn.constraint import Constraint, MaxNorm

# The factors of rows whose norm is infinite, or zero; those of all other rows lie in between.
_LIMITS = {torch.float32: (2.0**-96, 2.0**105), torch.float64: (2.0**-768, 2.0**800)}
# Norms, and radii, whose squares and quotients neither overflow nor lose digits.
_SAFE = {torch.float32: (1e-15, 1e15), torch.float64: (1e-140, 1e140)}
# How many squares the CPU may add up, one after the other, before they lose more digits than check() allows. Where
# elements lie side by side, it does so in eight lanes.
_LONGEST_CHAIN, _LANES = 160, 8


Rates: TypeAlias = "Sequence[float | Tensor] | None"


@dataclass(frozen=True, eq=False)
class Entry:
    """A weight as the paths see it.

    Args:
        name: its name in the model.
        weight: the tensor that the next step starts from: the parameter, this process's shard of it, a master copy.
        axes: the axes of that tensor.
        radii: the norm of each row, one for all of them or one each; a row whose radius is 0 is free.
        factor: the current factor of the radii, where they change over the steps.
        get_gradient: returns the gradient that belongs to that tensor, or None.
        set_gradient: replaces that gradient.
    """

    name: str
    weight: Tensor
    axes: Axes
    radii: float | Tensor
    get_gradient: Callable[[], Tensor | None]
    set_gradient: Callable[[Tensor], None]
    factor: float = 1.0

    @property
    def row_radii(self) -> Tensor:
        """The radii, one for each row, in float64."""
        radii = functional.per_neuron(self.radii, self.weight, self.axes)
        return radii if self.factor == 1 else radii * self.factor


class FunctionalPath:
    """Weights that are projected together, by `functional`, one after the other: the reference for the faster paths.

    It serves weights whose radii cannot be divided by a norm in the dtype of the norms. Paths keep views and addresses:
    the owner of a path ensures that the weights stay where they are.
    """

    def __init__(self, entries: Sequence[Entry], constraint: Constraint) -> None:
        self._entries = list(entries)
        self._constraint = constraint

    def scale_radii_(self, factors: Sequence[float]) -> None:
        """Multiply the original radii of each weight by a factor."""
        pairs = zip(self._entries, factors, strict=True)
        self._entries = [replace(entry, factor=factor) for entry, factor in pairs]

    def project_(self, *, synchronize: bool = False) -> None:
        """Project all weights in place: equation (10).

        `synchronize` waits for the device, so that rows whose squares leave the range of their dtype are exact at once.
        """
        for entry in self._entries:
            functional.project_(entry.weight, entry.axes, self._constraint, radii=entry.row_radii)

    def tangent_(self) -> None:
        """Make the gradients of all weights tangent in place: equation (7)."""
        for entry in self._entries:
            tangent_gradient_(entry)

    def step_(self, before: Sequence[Tensor], rates: Rates) -> None:
        """Apply a step rule to the updates of all weights, and project them."""
        for index, (entry, old) in enumerate(zip(self._entries, before, strict=True)):
            if rates is None:
                functional.tangent_step_(entry.weight, old, entry.axes, entry.row_radii)
            else:
                functional.angle_step_(entry.weight, old, entry.axes, entry.row_radii, rates[index])


class TorchPath(FunctionalPath):
    """Weights on one device whose norms are accumulated in one dtype."""

    has_fallback = True  # whether a weight can go through `functional` by itself

    def __init__(self, entries: Sequence[Entry], constraint: Constraint, dtype: torch.dtype | None = None) -> None:
        super().__init__(entries, constraint)
        self._dtype = dtype or norm_dtype(entries[0].weight)
        self._is_cpu = entries[0].weight.device.type == "cpu"
        radii = [entry.row_radii.flatten() for entry in entries]
        self._counts = [each.numel() for each in radii]
        self._radii = torch.cat(radii).to(self._dtype)
        self._rounding = max(functional.ROUNDING[entry.weight.dtype] for entry in entries)
        self._is_free = self._radii == 0
        self._radii.masked_fill_(self._is_free, torch.nan)  # makes the factor NaN, whatever the norm, and then 1
        self._first_radii: Tensor | None = None  # before their factors, where they are scheduled
        self._norms = torch.empty_like(self._radii)
        self._rows = [Rows(*pair) for pair in zip(entries, self._norms.split(self._counts), strict=True)]
        self._before: Sequence[Tensor] | None = None
        # Rows of a ball that are too long to be measured end up outside it, for the next projection.
        self._limits = _LIMITS[self._dtype]
        if isinstance(constraint, MaxNorm):
            self._limits = (constraint.limit * 2.0**-64, 1.0)

    def scale_radii_(self, factors: Sequence[float]) -> None:
        """Multiply the original radii of each weight by a factor."""
        super().scale_radii_(factors)
        if self._first_radii is None:
            self._first_radii = self._radii.clone()
        if len(set(factors)) == 1:  # nearly always: one function for all weights
            torch.mul(self._first_radii, factors[0], out=self._radii)
            return
        parts = zip(self._first_radii.split(self._counts), self._radii.split(self._counts), factors, strict=True)
        for first, radii, factor in parts:
            torch.mul(first, factor, out=radii)

    def project_(self, *, synchronize: bool = False) -> None:
        """Project all weights in place: equation (10)."""
        self._rescale_(synchronize=synchronize)

    @torch.no_grad()
    def tangent_(self) -> None:
        """Make the gradients of all weights tangent in place: equation (7)."""
        gradients = [_strided_gradient(entry) for entry in self._entries]
        if all(gradient is None for gradient in gradients):
            return
        dots, workspace = self._multiples.zero_(), self._workspace()
        members = [
            list(zip(rows.blocks, rows.blocks_of(gradient), values, strict=True)) if gradient is not None else []
            for rows, gradient, values in zip(self._rows, gradients, self._values, strict=True)
        ]
        for rows, blocks in zip(self._rows, members, strict=True):
            rows.measure_()
            for block, gradient, out in blocks:
                _write_dots(block, gradient, out, workspace)
        self._combine_(self._norms, dots)
        unsafe = self._unsafe(dots) if self.has_fallback and self._is_cpu else []
        dots.div_(self._norms).div_(self._norms).nan_to_num_(0.0, 0.0, 0.0).masked_fill_(self._is_free, 0.0)
        for index, blocks in enumerate(members):
            if index in unsafe:
                tangent_gradient_(self._entries[index])
                continue
            for block, gradient, multiples in blocks:
                gradient.addcmul_(block, multiples, value=-1)

    @torch.no_grad()
    def step_(self, before: Sequence[Tensor], rates: Rates) -> None:
        """Apply a step rule to the updates of all weights, and project them.

        `before` holds the weights as they were, `rates` the learning rate of each for the rule "angle", and None for
        "tangent". An update whose squares underflow counts as zero; for "angle", one whose squares overflow counts as
        not finite.
        """
        if before is not self._before:
            self._keep_views(before)
        stays = self._take_tangent_() if rates is None else self._take_angle_(rates)
        self._rescale_(keep=stays)

    def _keep_views(self, before: Sequence[Tensor]) -> None:
        """Make the views that step rules need: of rows, of the same rows before the step, and of values for each."""
        self._before = before
        self._is_broken = torch.empty_like(self._is_free)
        self._steps: list[tuple[Tensor, ...]] = []
        self._measure_starts: list[Callable[[], object]] = []
        parts = self._is_broken.split(self._counts), self._norms.split(self._counts)
        for rows, old, multiples, is_broken, norms in zip(self._rows, before, self._values, *parts, strict=True):
            self._steps += zip(rows.blocks, rows.blocks_of(old), multiples, rows.values(is_broken), strict=True)
            self._measure_starts += rows.measuring(old, norms)

    def _take_angle_(self, rates: Sequence[float | Tensor]) -> Tensor:
        """Form w + lr R N(u) in place, and return a mask of the rows that stay as they were."""
        for row, start, _, _ in self._steps:
            row.sub_(start)
        self._measure_()
        torch.logical_or(self._norms.isfinite(), self._is_free, out=self._is_broken).logical_not_()
        multiples = torch.div(self._radii, self._norms, out=self._multiples).nan_to_num_(0.0, 0.0, 0.0)
        if all(rate is rates[0] for rate in rates):  # one parameter group
            multiples.mul_(rates[0])
        else:
            for part, rate in zip(multiples.split(self._counts), rates, strict=True):
                part.mul_(rate)
        stays = (multiples == 0).masked_fill_(self._is_free, False)
        multiples.masked_fill_(self._is_free, 1.0)
        clear = self._may_be_any(self._is_broken)
        for update, start, multiple, is_bad in self._steps:
            if clear:
                update.masked_fill_(is_bad, 0.0)
            torch.addcmul(start, update, multiple, out=update)
        return stays

    def _take_tangent_(self) -> Tensor:
        """Form w + u - (w·u) w / |w|² in place, and return a mask of the rows that stay as they were."""
        workspace, dots = self._workspace(), self._multiples
        for row, start, out, _ in self._steps:
            _write_dots(row, start, out, workspace)
        for measure in self._measure_starts:
            measure()
        self._combine_(self._norms, dots)
        torch.logical_or(dots.isfinite(), self._is_free, out=self._is_broken).logical_not_()
        dots.div_(self._norms).div_(self._norms).sub_(1.0).nan_to_num_(0.0, 0.0, 0.0).masked_fill_(self._is_free, 0.0)
        dots.masked_fill_(self._is_broken, -1.0)  # leaves only the start
        clear = self._may_be_any(self._is_broken)
        for row, start, multiple, is_bad in self._steps:
            if clear:
                row.masked_fill_(is_bad, 0.0)
            row.addcmul_(start, multiple, value=-1)
        return self._is_broken

    def _rescale_(self, *, synchronize: bool = False, keep: Tensor | None = None) -> None:
        """Bring each row to its radius, except rows of the mask `keep` that are there up to rounding."""
        self._measure_()
        unsafe = self._unsafe() if self.has_fallback and (synchronize or self._is_cpu) else []
        self._factors_()
        if keep is not None:
            keep &= torch.sub(self._norms, 1.0, out=self._multiples).abs_() <= self._rounding
            self._norms.masked_fill_(keep, 1.0)
        for index, rows in enumerate(self._rows):
            if index not in unsafe:
                rows.scale_()
        FunctionalPath([self._entries[index] for index in unsafe], self._constraint).project_()

    def _may_be_any(self, rows: Tensor) -> bool:
        """Whether a mask has any row set, or may have: a device is not waited for."""
        return not self._is_cpu or bool(rows.any())

    def _measure_(self) -> None:
        for rows in self._rows:
            rows.measure_()
        self._combine_(self._norms)

    def _factors_(self) -> None:
        """Replace each norm by the factor of its row, which is 1 where the quotient is NaN."""
        torch.div(self._radii, self._norms, out=self._norms)
        self._norms.clamp_(*self._limits).nan_to_num_(1.0)

    @cached_property
    def _multiples(self) -> Tensor:
        """The multiple of each row that its gradient or update loses; not needed by a projection."""
        with torch.inference_mode(False):  # it outlives the mode that it is created in
            return torch.empty_like(self._norms)

    @cached_property
    def _values(self) -> list[list[Tensor]]:
        """Views of the multiples for each weight, which broadcast over its rows."""
        with torch.inference_mode(False):
            parts = self._multiples.split(self._counts)
            return [rows.values(part) for rows, part in zip(self._rows, parts, strict=True)]

    def _workspace(self) -> tuple[Tensor, Tensor]:
        """Allocate memory for the products of the largest weight, and a 1 of its dtype."""
        return self._norms.new_empty(max(rows.largest for rows in self._rows)), self._norms.new_ones(1)

    def _combine_(self, norms: Tensor, dots: Tensor | None = None) -> None:
        """Combine the norms and products of rows that are cut over processes; here, rows are whole."""

    def _unsafe(self, dots: Tensor | None = None) -> list[int]:
        """Return the weights with a row whose norm may have lost digits or whose product with a gradient overflowed."""
        if _is_safe(self._norms) and (dots is None or bool(dots.isfinite().all())):
            return []
        norms = self._norms.split(self._counts)
        products = norms if dots is None else dots.split(self._counts)
        return [
            index
            for index, (norm, product) in enumerate(zip(norms, products, strict=True))
            if not (_is_safe(norm) and bool(product.isfinite().all()))
        ]


class Rows:
    """Views of a weight, its neurons in front, and of where their norms are written."""

    def __init__(self, entry: Entry, norms: Tensor) -> None:
        """`norms` has one element per neuron, of the dtype that norms are accumulated in."""
        weight = entry.weight.detach()
        self._axes = entry.axes
        self._rows = entry.axes.rows(weight)
        # Operations that widen their input copy it on the CPU, and reductions to float64 do everywhere.
        self._in_blocks = weight.dtype != norms.dtype and (weight.device.type == "cpu" or norms.dtype == torch.float64)
        self.blocks = self.blocks_of(weight)
        self.largest = max(block.numel() for block in self.blocks)
        self._measure = self.measuring(weight, norms)
        self._factors = self.values(norms)

    def measure_(self) -> None:
        """Write the norms."""
        for measure in self._measure:
            measure()

    def scale_(self) -> None:
        """Multiply each row by the factor that has replaced its norm."""
        for block, factors in zip(self.blocks, self._factors, strict=True):
            block.mul_(factors)

    def blocks_of(self, other: Tensor) -> list[Tensor]:
        """Return the rows of a tensor of the weight's shape, such as its gradient, in the same blocks."""
        return [block for [block] in self._cut(self._axes.rows(other))]

    def measuring(self, other: Tensor, norms: Tensor) -> list[Callable[[], object]]:
        """Return functions that write the norms of another tensor's rows."""
        return [_measuring(*pair) for pair in zip(self.blocks_of(other), self._parts(norms), strict=True)]

    def values(self, per_neuron: Tensor) -> list[Tensor]:
        """View one value per neuron, for each block, so that it broadcasts over the block's rows."""
        return [functional.per_row(part, self._rows) for part in self._parts(per_neuron)]

    def _parts(self, per_neuron: Tensor) -> list[Tensor]:
        neurons = per_neuron.view(self._rows.shape[: self._axes.neuron_dims])
        return [part for _, part in self._cut(self._rows, neurons)]

    def _cut(self, rows: Tensor, *others: Tensor) -> Iterable[tuple[Tensor, ...]]:
        return functional.blocks(self._axes.neuron_dims, rows, *others) if self._in_blocks else [(rows, *others)]


def _write_dots(rows: Tensor, others: Tensor, dots: Tensor, workspace: tuple[Tensor, Tensor]) -> None:
    """Write the inner products of rows; `dots` has one element for each, and size 1 in the other dimensions."""
    elements, one = workspace
    products = elements.narrow(0, 0, rows.numel()).view(rows.shape)
    if torch.result_type(rows, others) == elements.dtype:
        torch.mul(rows, others, out=products)
    else:  # of two half-precision tensors, the product would be rounded to half precision
        torch.mul(rows, one, out=products).mul_(others)
    torch.sum(products, [dim for dim, size in enumerate(dots.shape) if size == 1], keepdim=True, out=dots)


def norm_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype that a weight's norms are accumulated in."""
    return torch.float64 if weight.dtype == torch.float64 else torch.float32


def has_usual_radii(entry: Entry) -> bool:
    """Whether the quotients of a weight's radii and norms stay within their dtype; may wait for the device."""
    low, high = _SAFE[norm_dtype(entry.weight)]
    if not isinstance(entry.radii, Tensor):
        return low <= entry.radii <= high
    used = entry.radii.where(entry.radii > 0, 1)
    return bool(((used >= low) & (used <= high)).all())


def is_laid_out_like(gradient: Tensor, weight: Tensor) -> bool:
    """Whether a gradient has the shape, strides, dtype and device of its weight."""
    return (
        gradient.layout is torch.strided
        and gradient.shape == weight.shape
        and gradient.stride() == weight.stride()
        and gradient.dtype == weight.dtype
        and gradient.device == weight.device
    )


@torch.no_grad()
def tangent_gradient_(entry: Entry) -> None:
    """Make a weight's gradient tangent by `functional`, if it has one, dense or sparse."""
    gradient = entry.get_gradient()
    if gradient is None:
        return
    if gradient.is_sparse:
        entry.set_gradient(_sparse_tangent(gradient, entry))
    else:
        functional.tangent_(gradient, entry.weight, entry.axes, radii=entry.row_radii)


def _strided_gradient(entry: Entry) -> Tensor | None:
    """Return a weight's strided gradient, or None; one of another kind is made tangent here."""
    gradient = entry.get_gradient()
    if gradient is None or (gradient.layout is torch.strided and gradient.shape == entry.weight.shape):
        return gradient
    tangent_gradient_(entry)
    return None


def _sparse_tangent(gradient: Tensor, entry: Entry) -> Tensor:
    """Return the tangent gradient of the rows that a sparse gradient holds, such as an embedding's."""
    if entry.axes != Axes((0,)):
        raise ValueError(f"a sparse gradient of a weight with axes {entry.axes} cannot be made tangent: only (0,) can")
    gradient = gradient.coalesce()
    [rows] = gradient.indices()
    values = functional.tangent_(gradient.values(), entry.weight[rows], entry.axes, radii=entry.row_radii[rows])
    return torch.sparse_coo_tensor(
        gradient.indices(), values, gradient.shape, is_coalesced=True, check_invariants=False
    )


def _measuring(rows: Tensor, norms: Tensor) -> Callable[[], object]:
    """Return a function that writes the norms of rows. On the CPU, long rows go in pieces, or else by `functional`."""
    dims = tuple(range(norms.ndim, rows.ndim))
    if rows.device.type != "cpu" or rows.shape[norms.ndim :].numel() <= _LONGEST_CHAIN:
        return partial(vector_norm, rows, 2, dims, dtype=norms.dtype, out=norms)
    pieces = _pieces(rows, norms.ndim)
    if pieces is None:
        return lambda: norms.copy_(functional.row_norms(rows, Axes(tuple(range(norms.ndim)))))
    inner = tuple(range(norms.ndim + 1, pieces.ndim))
    if pieces.shape[norms.ndim] == 1:
        return partial(vector_norm, pieces.squeeze(norms.ndim), 2, dims[: len(inner)], dtype=norms.dtype, out=norms)

    def measure() -> None:
        norms.copy_(vector_norm(vector_norm(pieces, 2, inner, dtype=norms.dtype), 2, norms.ndim, dtype=torch.float64))

    return measure


def _pieces(rows: Tensor, neuron_dims: int) -> Tensor | None:
    """View rows as (neurons, pieces, elements of a piece), or return None where no pieces are short enough."""
    by_stride = sorted(range(neuron_dims, rows.ndim), key=rows.stride, reverse=True)
    longest = _LONGEST_CHAIN
    with suppress(RuntimeError):
        flat = rows.permute(*range(neuron_dims), *by_stride).view(*rows.shape[:neuron_dims], -1)
        if flat.stride(-1) == 1:
            rows, by_stride, longest = flat, [neuron_dims], _LONGEST_CHAIN * _LANES
    dim = max(by_stride, key=rows.size)
    size, others = rows.size(dim), rows.shape[neuron_dims:].numel() // rows.size(dim)
    length = next((length for length in range(min(size, longest // others), 0, -1) if size % length == 0), None)
    if length is None or others * length < 32:
        return None
    pieces: Tensor = rows.unflatten(dim, (-1, length)).movedim(dim, neuron_dims)
    return pieces


def _is_safe(norms: Tensor) -> bool:
    low, high = _SAFE[norms.dtype]
    smallest, largest = norms.aminmax()
    return low <= smallest.item() and largest.item() <= high  # false where one is NaN
