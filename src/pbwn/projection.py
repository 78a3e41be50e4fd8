"""The mathematics of the paper as pure functions of tensors.

This is the obviously right version: it works in float64 and rounds once. Every faster path is tested against it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pbwn.axes import Axes
from pbwn.constraint import Constraint, UnitNorm


def row_norms(weight: Tensor, axes: Axes) -> Tensor:
    """The norm of each neuron's weights, the square root of ddiag(W Wᵀ) in equation (3).

    Dividing by the largest entry first keeps the squares from overflowing and underflowing. They are added up by
    torch's sum, whose rounding errors do not grow with the length of a dimension as those of its norm do.

    >>> row_norms(torch.tensor([[3.0, 4.0], [0.0, 1e-30]]), Axes((0,))).tolist()
    [5.0, 1.0000000031710769e-30]
    """
    rows = axes.rows(weight.detach()).to(wide_dtype(weight))
    fan_in = axes.fan_in_dims(weight)
    if rows.numel() == 0:
        return rows.new_zeros(rows.shape[: axes.neuron_dims])
    largest = rows.abs().amax(fan_in, keepdim=True)
    largest = largest.where(largest.isfinite() & (largest > 0), 1)
    squares = (rows / largest).square_()
    for dim in sorted(fan_in, key=rows.size, reverse=True):
        squares = squares.sum(dim, keepdim=True)
    return (roots(squares) * largest).flatten(axes.neuron_dims).squeeze(-1)


def row_dots(weight: Tensor, other: Tensor, axes: Axes) -> Tensor:
    """The inner product of each neuron's weights with another tensor's, the diagonal of W Gᵀ in equation (5)."""
    dtype = wide_dtype(weight)
    products = axes.rows(weight.detach()).to(dtype) * axes.rows(other.detach()).to(dtype)
    return products.flatten(axes.neuron_dims).sum(-1)


@torch.no_grad()
def project_(
    weight: Tensor,
    axes: Axes,
    constraint: Constraint | None = None,
    *,
    radii: Tensor | None = None,
    leave_within: float = 0.0,
) -> Tensor:
    """Project each neuron's weights to the nearest point of the constraint, in place: w* = w / |w|, equation (10).

    A zero row and a row that is not finite have no nearest point and are left as they are, as is a row whose relative
    deviation is at most `leave_within` already.

    >>> project_(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), Axes((0,)))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    constraint = constraint or UnitNorm()
    factors = safe_factors(constraint, row_norms(weight, axes), radii, leave_within=leave_within)
    return scale_rows_(weight, axes, factors)


@torch.no_grad()
def tangent_(gradient: Tensor, weight: Tensor, axes: Axes, *, radii: Tensor | None = None) -> Tensor:
    """Make the gradient tangent to each neuron's sphere, in place: g - (w·g) w / |w|², equation (7) at any radius.

    Neurons that `radii` gives no radius are free: their gradient stays.

    >>> tangent_(torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 0.0]]), Axes((0,)))
    tensor([[0., 1.]])
    """
    coefficients = tangent_coefficients(row_norms(weight, axes), row_dots(weight, gradient, axes), radii)
    return subtract_rows_(gradient, weight, axes, coefficients)


def safe_factors(
    constraint: Constraint, norms: Tensor, radii: Tensor | None = None, *, leave_within: float = 0.0
) -> Tensor:
    """What each neuron is multiplied by: 1 where its norm is zero or not finite, where it is free or close enough."""
    factors = constraint.factors(norms, radii)
    move = factors.isfinite() & (factors > 0)
    if leave_within:
        move &= constraint.deviations(norms, radii) > leave_within
    return factors.where(move, 1)


def tangent_coefficients(norms: Tensor, dots: Tensor, radii: Tensor | None = None) -> Tensor:
    """The multiple (w·g) / |w|² of each neuron's weights that is normal to its sphere; 0 where there is none."""
    coefficients = (dots / norms / norms).nan_to_num_(0, 0, 0)
    return coefficients if radii is None else coefficients.where(radii > 0, 0)


def scale_rows_(weight: Tensor, axes: Axes, factors: Tensor) -> Tensor:
    """Multiply each neuron's weights by its factor, in place and rounded once."""
    rows = axes.rows(weight)
    rows.copy_(rows.to(factors.dtype) * _per_row(factors, rows))
    return weight


def subtract_rows_(gradient: Tensor, weight: Tensor, axes: Axes, coefficients: Tensor) -> Tensor:
    """Subtract each neuron's multiple of its weights from its gradient, in place; rows with a 0 stay bit for bit."""
    rows, dtype = axes.rows(gradient), coefficients.dtype
    coefficients = _per_row(coefficients, rows)
    tangent = rows.to(dtype) - coefficients * axes.rows(weight).to(dtype)
    rows.copy_(tangent.where(coefficients != 0, rows.to(dtype)))
    return gradient


def wide_dtype(weight: Tensor) -> torch.dtype:
    """float64, or float32 on MPS, which has no float64."""
    return torch.float32 if weight.device.type == "mps" else torch.float64


def roots(squares: Tensor) -> Tensor:
    """The square roots of numbers in float64.

    Not by torch.sqrt: it uses threads, however few numbers there are, and a forked process waits for them for ever.
    """
    return squares.rsqrt().reciprocal_()


def _per_row(values: Tensor, rows: Tensor) -> Tensor:
    return values.reshape(*values.shape, *(1,) * (rows.ndim - values.ndim))
