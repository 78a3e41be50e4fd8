"""The path that serves any weight: `projection`, weight by weight, and gradients of any kind."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pbwn import projection
from pbwn.axes import Axes
from pbwn.constraint import Constraint
from pbwn.layout import Whereabouts


class ReferenceWeights:
    """Weights that go through `projection` one after the other, wherever they are and whatever they share."""

    def __init__(
        self, tensors: Sequence[Tensor], axes: Sequence[Axes], radii: Sequence[Tensor | None], constraint: Constraint
    ) -> None:
        self._weights = list(zip(tensors, axes, radii, strict=True))
        self._constraint = constraint
        self.fits = Whereabouts(tensors).hold

    def project_(self) -> None:
        """Project all weights: equation (10)."""
        for tensor, axes, radii in self._weights:
            projection.project_(tensor, axes, self._constraint, radii=radii)

    def tangent_(self) -> None:
        """Make the gradients of all weights tangent: equation (7)."""
        for tensor, axes, radii in self._weights:
            tangent_gradient_(tensor, axes, radii)


def is_laid_out(
    gradient: Tensor, shape: torch.Size, stride: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> bool:
    """Whether a gradient lies in the memory of this device with this shape, these strides and this dtype."""
    return (
        gradient.layout is torch.strided
        and gradient.shape == shape
        and gradient.stride() == stride
        and gradient.dtype == dtype
        and gradient.device == device
    )


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
