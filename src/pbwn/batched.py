"""Many weights per call, with the results of `projection` up to rounding.

Each weight takes one of the paths in `backends`. What a path keeps between calls, such as views and addresses, holds
while the weights stay where they are: that is looked at in each call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import attrgetter, is_

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from pbwn import backends, projection, sharded
from pbwn.axes import Axes
from pbwn.backends import Backend
from pbwn.constraint import Constraint, UnitNorm
from pbwn.selection import ConstrainedWeight
from pbwn.validation import refuse_gathered, refuse_misfits, refuse_radii

# How far rounding alone can take a row that was just projected, relative to its radius.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 8e-3}


class Batch:
    """Weights that are projected together."""

    def __init__(
        self,
        weights: Sequence[ConstrainedWeight],
        constraint: Constraint,
        radii: Mapping[str, Tensor] | None = None,
        *,
        backend: Backend = "auto",
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """`radii` holds, by the weight's name, a number per neuron; asked for where the radius is "initial".

        `on_change` is called when weights are found to be replaced or moved, before they are looked at anew.
        """
        self._weights = weights
        self._constraint = constraint
        self._radii = radii if radii and constraint == UnitNorm(radius="initial") else {}
        self._backend: Backend = backend
        self._on_change = on_change
        self._plan: _Plan | None = None

    def project_(self) -> None:
        """Project all weights, in place: equation (10)."""
        for part in self._current_plan().parts:
            part.project_()

    @torch.no_grad()
    def settle_(self) -> None:
        """Project the rows that are off by more than rounding, and leave the others bit for bit."""
        for weight in self._weights:
            tensor, radii = weight.tensor, self._radius(weight)
            tolerance = TOLERANCE[tensor.dtype]
            if sharded.is_sharded(tensor):
                shard = sharded.Shard.of(tensor, weight.axes)
                sharded.project_([shard], self._constraint, [radii], leave_within=tolerance)
                increment_version(tensor)
            else:
                projection.project_(tensor, weight.axes, self._constraint, radii=radii, leave_within=tolerance)

    def tangent_(self) -> None:
        """Make the gradients of all weights tangent to their spheres, in place: equation (7)."""
        for part in self._current_plan().parts:
            part.tangent_()

    def _radius(self, weight: ConstrainedWeight) -> Tensor | None:
        radii = self._radii.get(weight.name)
        return None if radii is None else radii.to(weight.tensor.device, projection.wide_dtype(weight.tensor))

    def _current_plan(self) -> _Plan:
        """The plan of the last call, unless a weight was replaced, moved, restrided or cast since."""
        plan = self._plan
        if plan is None or not plan.fits():
            if self._on_change is not None:
                self._on_change()
            refuse_gathered([] if plan is None else plan.spread)
            refuse_misfits(self._constraint, self._weights)
            refuse_radii(self._constraint, self._weights, self._radii)
            radii = [self._radius(weight) for weight in self._weights]
            with torch.inference_mode(False):  # the plan outlives the mode that it happens to be made in
                plan = self._plan = _Plan(self._weights, radii, self._constraint, self._backend)
        return plan


class _Plan:
    """Which path each weight takes, and what the paths keep; `spread` are the weights that DTensors hold."""

    def __init__(
        self,
        weights: Sequence[ConstrainedWeight],
        radii: Sequence[Tensor | None],
        constraint: Constraint,
        backend: Backend,
    ) -> None:
        tensors = [weight.tensor for weight in weights]
        self._modules = [weight.module for weight in weights]
        self._attributes = [weight.attribute for weight in weights]
        self._tensors = tensors
        self.spread = [weight for weight in weights if sharded.is_sharded(weight.tensor)]
        paths = backends.paths(weights, backend)
        members: dict[tuple[str, Hashable], list[int]] = {}
        for index, (tensor, path) in enumerate(zip(tensors, paths, strict=True)):
            members.setdefault((path, backends.share(tensor, path)), []).append(index)
        self.parts = [
            backends.part(path)(
                [tensors[index] for index in indices],
                [weights[index].axes for index in indices],
                [radii[index] for index in indices],
                constraint,
            )
            for (path, _), indices in members.items()
        ]

    def fits(self) -> bool:
        """Whether the weights are the same, and their memory is where it was, laid out as it was.

        This runs in every step, over every weight: the look is one loop in C.
        """
        found = map(dict.get, map(_parameters, self._modules), self._attributes)
        return all(map(is_, found, self._tensors)) and all(part.fits() for part in self.parts)


_parameters = attrgetter("_parameters")


def neuron_norms(weight: Tensor, axes: Axes) -> Tensor:
    """The norms of the neurons of a weight, or of those that this process's shard has a part of."""
    if sharded.is_sharded(weight):
        return sharded.row_norms([sharded.Shard.of(weight, axes)])[0]
    return projection.row_norms(weight, axes)
