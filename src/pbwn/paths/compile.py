"""The path of torch's compiler, on request: `functional` as a few fused kernels for all weights of a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pbwn import functional
from pbwn.constraint import Constraint
from pbwn.paths.torch import Entry, FunctionalPath, Rates, is_laid_out_like, tangent_gradient_


class CompiledPath(FunctionalPath):
    """Weights on one device. The first call compiles, for seconds to minutes; so does the first after a change."""

    def __init__(self, entries: Sequence[Entry], constraint: Constraint) -> None:
        super().__init__(entries, constraint)
        self._weights = [(entry.weight.detach(), entry.axes, entry.row_radii.clone()) for entry in entries]
        self._project = torch.compile(self._project_all, fullgraph=True, dynamic=False)
        self._tangent = torch.compile(self._tangent_all, fullgraph=True, dynamic=False)
        self._step = torch.compile(self._step_all, fullgraph=True, dynamic=False)

    def scale_radii_(self, factors: Sequence[float]) -> None:
        """Multiply the original radii of each weight by a factor; the compiled kernels read them in each call."""
        super().scale_radii_(factors)
        for entry, (_, _, radii) in zip(self._entries, self._weights, strict=True):
            radii.copy_(entry.row_radii)

    def project_(self, *, synchronize: bool = False) -> None:
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

    def step_(self, before: Sequence[Tensor], rates: Rates) -> None:
        """Apply a step rule to the updates of all weights, and project them."""
        # Rates are tensors: a number would be compiled into the kernel, and compiled again whenever it changes.
        self._step(before, None if rates is None else [torch.as_tensor(rate) for rate in rates])

    def _step_all(self, before: Sequence[Tensor], rates: Sequence[Tensor] | None) -> None:
        for index, ((weight, axes, radii), old) in enumerate(zip(self._weights, before, strict=True)):
            if rates is None:
                functional.tangent_step_(weight, old, axes, radii)
            else:
                functional.angle_step_(weight, old, axes, radii, rates[index])

    def _project_all(self) -> None:
        for weight, axes, radii in self._weights:
            functional.project_(weight, axes, self._constraint, radii=radii)

    def _tangent_all(self, gradients: Sequence[Tensor | None]) -> None:
        for (weight, axes, radii), gradient in zip(self._weights, gradients, strict=True):
            if gradient is not None:
                functional.tangent_(gradient, weight, axes, radii=radii)
