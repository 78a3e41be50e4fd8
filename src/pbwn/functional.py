"""The mathematics of the paper as functions of tensors: the reference for everything else.

Everything here is computed in float64 and rounded once, and every faster path is tested against it. A weight is
processed in blocks of neurons, so that the float64 copies stay small.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

from pbwn.axes import Axes
from pbwn.constraint import TOLERANCE, Constraint, UnitNorm

_BLOCK = 1 << 22  # elements that are widened at once
# The deviation up to which a step rule leaves a row as it was: half of what `check()` allows, as norms are not exact.
ROUNDING = {dtype: tolerance / 2 for dtype, tolerance in TOLERANCE.items()}


@torch.no_grad()
def row_norms(weight: Tensor, axes: Axes) -> Tensor:
    """Return the norm of each neuron's weights, the square root of ddiag(W Wᵀ) in equation (3).

    >>> row_norms(torch.tensor([[3.0, 4.0], [0.0, 1e-30]]), Axes((0,))).tolist()
    [5.0, 1.0000000031710769e-30]
    """
    if axes.neuron_dims == 0 and weight.ndim > 1:  # a whole matrix: by rows, which are widened in blocks
        return _norms(row_norms(weight, Axes((0,))), 0)
    rows = axes.rows(weight.detach())
    norms = [_norms(block.to(wide_dtype(weight)), axes.neuron_dims) for [block] in blocks(axes.neuron_dims, rows)]
    return norms[0] if len(norms) == 1 else torch.cat(norms)


@torch.no_grad()
def row_dots(weight: Tensor, other: Tensor, axes: Axes) -> Tensor:
    """Return the inner product of each neuron's weights with another tensor's, diag(W Gᵀ) in equation (5)."""
    wide = wide_dtype(weight)
    pairs = blocks(axes.neuron_dims, axes.rows(weight.detach()), axes.rows(other.detach()))
    dots = [_dots(rows.to(wide), others.to(wide), axes.neuron_dims) for rows, others in pairs]
    return dots[0] if len(dots) == 1 else torch.cat(dots)


@torch.no_grad()
def project_(
    weight: Tensor,
    axes: Axes,
    constraint: Constraint | None = None,
    *,
    radii: float | Tensor | None = None,
) -> Tensor:
    """Project each neuron's weights to the nearest point of the constraint, in place: w* = w / |w|, equation (10).

    A zero row and a row that is not finite have no nearest point and are left as they are. `radii` replaces the
    constraint's radius by that of each neuron; a neuron whose radius is 0 is free.

    >>> project_(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), Axes((0,)))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    constraint = constraint or UnitNorm()
    return scale_rows_(weight, axes, safe_factors(constraint, row_norms(weight, axes), radii))


@torch.no_grad()
def tangent_(gradient: Tensor, weight: Tensor, axes: Axes, *, radii: Tensor | None = None) -> Tensor:
    """Make the gradient tangent to each neuron's sphere, in place: g - (w·g) w / |w|², equation (7) at any radius.

    A neuron whose radius is 0 is free: its gradient stays.

    >>> tangent_(torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 0.0]]), Axes((0,)))
    tensor([[0., 1.]])
    """
    lengths = per_neuron(1.0 if radii is None else radii, weight, axes)
    for rows, old, length in blocks(axes.neuron_dims, axes.rows(gradient), axes.rows(weight), lengths):
        weights, gradients = old.to(lengths.dtype), rows.to(lengths.dtype)
        norms, dots = _norms(weights, axes.neuron_dims), _dots(weights, gradients, axes.neuron_dims)
        multiples = per_row((dots / norms / norms).nan_to_num_(0, 0, 0).where(length > 0, 0), rows)
        tangent = gradients - multiples * weights
        rows.copy_(tangent.where(multiples != 0, gradients))  # rows that are tangent already stay bit for bit
    return gradient


@torch.no_grad()
def tangent_step_(weight: Tensor, before: Tensor, axes: Axes, radii: float | Tensor) -> Tensor:
    """Remove from each neuron's update u = weight - before the part along its weights, then project, in place.

    w <- R N(w + u - (w·u) w / |w|²), with w the weights before the step; where they are zero, no part of the update is
    along them. A neuron whose update is zero or not finite stays as it was before, and is projected where that was off
    the sphere by more than rounding; one whose radius is 0 is free and keeps its update.

    >>> tangent_step_(torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0, 0.0]]), Axes((0,)), 1.0)
    tensor([[0.7071, 0.7071]])
    """
    return _step_(weight, before, axes, radii, None)


@torch.no_grad()
def angle_step_(weight: Tensor, before: Tensor, axes: Axes, radii: float | Tensor, rate: float | Tensor) -> Tensor:
    """Take of each neuron's update u = weight - before only its direction, then project, in place.

    w <- R N(w + lr R N(u)): the step turns a neuron by about `rate` radians. A neuron whose update is zero or not
    finite stays as it was before, and all do where the rate is 0, projected where that was off the sphere by more than
    rounding; one whose radius is 0 is free and keeps its update.

    >>> angle_step_(torch.tensor([[1.0, 7.0]]), torch.tensor([[1.0, 0.0]]), Axes((0,)), 1.0, 0.75)
    tensor([[0.8000, 0.6000]])
    """
    return _step_(weight, before, axes, radii, rate)


def _step_(weight: Tensor, before: Tensor, axes: Axes, radii: float | Tensor, rate: float | Tensor | None) -> Tensor:
    lengths = per_neuron(radii, weight, axes)
    for rows, old, length in blocks(axes.neuron_dims, axes.rows(weight), axes.rows(before), lengths):
        start = old.to(lengths.dtype)
        update = rows.to(lengths.dtype) - start
        start_size, size = _norms(start, axes.neuron_dims), _norms(update, axes.neuron_dims)
        divisor = start_size.where(start_size != 0, 1)  # no part of an update is along a row of zeros
        along = _dots(start, update, axes.neuron_dims) / divisor  # the update's part along the weights
        across = roots((size - along.abs()).clamp(min=0)) * roots(size + along.abs())
        if rate is None:
            kept, multiple = 1 - along / divisor, torch.ones_like(size)
        else:
            kept, multiple = torch.ones_like(size), rate * length / size
        factors = length / torch.hypot(kept * start_size + multiple * along, multiple * across)
        moves = (size > 0) & size.isfinite() & (multiple != 0) & (factors > 0) & factors.isfinite()
        rest = safe_factors(UnitNorm(), start_size, length, leave_within=ROUNDING[weight.dtype])
        kept, multiple = (kept * factors).where(moves, rest), (multiple * factors).where(moves, 0)
        update = update.where(per_row(moves, start), 0)
        moved = per_row(kept, start) * start + per_row(multiple, start) * update
        rows.copy_(moved.where(per_row(length > 0, start), rows.to(lengths.dtype)))
    return weight


def safe_factors(
    constraint: Constraint, norms: Tensor, radii: float | Tensor | None = None, *, leave_within: float = 0.0
) -> Tensor:
    """Return each neuron's factor: 1 where its norm is zero or not finite, or where it is free or close enough."""
    factors = constraint.factors(norms, radii)
    move = factors.isfinite() & (factors > 0)
    if leave_within:
        move &= constraint.deviations(norms, radii) > leave_within
    return factors.where(move, 1)


@torch.no_grad()
def scale_rows_(weight: Tensor, axes: Axes, factors: Tensor) -> Tensor:
    """Multiply each neuron's weights by its factor, in place and rounded once."""
    for rows, factor in blocks(axes.neuron_dims, axes.rows(weight), factors):
        rows.copy_(rows.to(factors.dtype) * per_row(factor, rows))
    return weight


def wide_dtype(weight: Tensor) -> torch.dtype:
    """Return float64, or float32 on MPS, which has no float64."""
    return torch.float32 if weight.device.type == "mps" else torch.float64


def roots(squares: Tensor) -> Tensor:
    """Return the square roots of a float64 tensor.

    Not by torch.sqrt: it uses threads, however few elements there are, and a forked process waits for them forever.
    """
    return squares.rsqrt().reciprocal_()


def blocks(neuron_dims: int, rows: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut a view with its neurons in front, and tensors with the same neurons, into blocks of a few million elements.

    >>> [block.shape[0] for [block] in blocks(1, torch.empty(3, 3 << 20))]
    [1, 1, 1]
    """
    if neuron_dims == 0 or rows.numel() <= _BLOCK or torch.compiler.is_compiling():  # compiled, nothing is copied
        yield rows, *others
        return
    length = max(1, _BLOCK // prod(rows.shape[1:]))
    yield from zip(rows.split(length), *(other.split(length) for other in others), strict=True)


def per_row(values: Tensor, rows: Tensor) -> Tensor:
    """View one value per neuron so that it broadcasts over the neuron's weights."""
    return values.reshape(*values.shape, *(1,) * (rows.ndim - values.ndim))


def _norms(rows: Tensor, neuron_dims: int) -> Tensor:
    """Return the norms of rows in float64.

    Dividing by the largest entry first keeps the squares from overflowing and underflowing. They are added up by
    torch's sum, whose rounding errors do not grow with the length of a dimension as those of its norm do.
    """
    fan_in = tuple(range(neuron_dims, rows.ndim))
    if rows.numel() == 0:
        return rows.new_zeros(rows.shape[:neuron_dims])
    largest = rows.abs().amax(fan_in, keepdim=True)
    largest = largest.where(largest.isfinite() & (largest > 0), 1)
    squares = (rows / largest).square_()
    for dim in sorted(fan_in, key=rows.size, reverse=True):
        squares = squares.sum(dim, keepdim=True)
    return (roots(squares) * largest).flatten(neuron_dims).squeeze(-1)


def _dots(rows: Tensor, others: Tensor, neuron_dims: int) -> Tensor:
    """Return the inner product of each row with another tensor's."""
    return (rows * others).flatten(neuron_dims).sum(-1)


def per_neuron(radii: float | Tensor, weight: Tensor, axes: Axes) -> Tensor:
    """Expand radii to one for each neuron, in float64."""
    radii = torch.as_tensor(radii, dtype=wide_dtype(weight), device=weight.device)
    return radii.expand(axes.neuron_shape(tuple(weight.shape)))
