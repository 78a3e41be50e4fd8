"""What torch's compiler makes of the functional form: a few fused kernels for all weights of a device, on request."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pbwn import functional
from pbwn.constraint import Constraint
from pbwn.paths.torch import Entry, is_laid_out_like, tangent_gradient_


class CompiledPath:
    """Weights on one device. The first call compiles, which takes seconds to minutes; so does one after a change."""

    def __init__(self, entries: Sequence[Entry], constraint: Constraint) -> None:
        self._entries = list(entries)
        self._weights = [(entry.weight.detach(), entry.axes, entry.row_radii) for entry in entries]
        self._constraint = constraint
        self._project = torch.compile(self._project_all, fullgraph=True, dynamic=False)
        self._tangent = torch.compile(self._tangent_all, fullgraph=True, dynamic=False)

    def project_(self, *, look: bool = False) -> None:
        """Project all weights in place: equation (10)."""
        self._project()

    def tangent_(self) -> None:
        """Make the gradients of all weights tangent in place: equation (7)."""
        gradients: list[Tensor | None] = []
        for entry in self._entries:
            gradient = entry.get_gradient()
            if gradient is not None and not is_laid_out_like(gradient, entry.weight):
                tangent_gradient_(entry)
                gradient = None
            gradients.append(gradient)
        self._tangent(gradients)

    def _project_all(self) -> None:
        for weight, axes, radii in self._weights:
            functional.project_(weight, axes, self._constraint, radii=radii)

    def _tangent_all(self, gradients: Sequence[Tensor | None]) -> None:
        for (weight, axes, radii), gradient in zip(self._weights, gradients, strict=True):
            if gradient is not None:
                functional.tangent_(gradient, weight, axes, radii=radii)
