"""PBWN and its variants: weights projected onto a set after steps, or once before training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

import pbwn
from pbwn_repro.methods.method import Method, OptimizerSettings, exempt_from_decay
from pbwn_repro.models.family import Layers


class UnitStart(Method):
    """Rows are scaled to norm 1 once, before the first step, and are not constrained afterwards."""

    about = "rows scaled to norm 1 at the start only"

    def prepare(self, model: nn.Module, layers: Layers) -> None:
        """Project the weights once."""
        pbwn.project_(model, **layers)


class Projection(Method):
    """Weights are projected onto a set after steps, by `pbwn.attach`.

    Args:
        title: the method's name in tables.
        constraint: the set.
        every: the interval in steps; None projects after each epoch.
        gradient: the gradient that the optimizer receives.
        step: how the optimizer's update is applied.
        per: whether the norm is constrained per neuron or per whole matrix.
        direction: whether a neuron's incoming or outgoing weights are constrained.
    """

    def __init__(
        self,
        title: str,
        constraint: pbwn.UnitNorm | pbwn.MaxNorm,
        *,
        every: int | None = 1,
        gradient: Literal["ordinary", "riemannian"] = "ordinary",
        step: Literal["plain", "tangent", "angle"] = "plain",
        per: Literal["neuron", "matrix"] = "neuron",
        direction: Literal["incoming", "outgoing"] = "incoming",
    ) -> None:
        """Store the arguments of `pbwn.attach`."""
        super().__init__(title)
        self.constraint, self.every, self._gradient, self._step = constraint, every, gradient, step
        self._per, self._direction = per, direction
        self.projects_after_each_epoch = every is None

    @property
    def about(self) -> str:  # type: ignore[override]
        """A short description."""
        rows = "matrices" if self._per == "matrix" else "columns" if self._direction == "outgoing" else "rows"
        moment = {None: "each epoch", 1: "each step"}.get(self.every, f"every {self.every} steps")
        if isinstance(self.constraint, pbwn.MaxNorm):
            return f"{rows} of norm at most {self.constraint.limit:g}, projected after {moment}"
        norm = "of their initial norm" if self.constraint == pbwn.UnitNorm("initial") else "of norm 1"
        gradient = ", with the tangent gradient" if self._gradient == "riemannian" else ""
        step = {"plain": "", "tangent": ", with tangent steps", "angle": ", with steps by angle"}
        return f"{rows} {norm}, projected after {moment}{gradient}{step[self._step]}"

    def optimizer(self, model: nn.Module, settings: OptimizerSettings, layers: Layers) -> Optimizer:
        """Create the configured optimizer; with steps by angle, without weight decay on the constrained weights."""
        optimizer = settings.make(model)
        if self._step == "angle":
            weights = pbwn.select(model, per=self._per, **layers).constrained
            exempt_from_decay(optimizer, [getattr(weight.module, weight.attribute) for weight in weights])
        return optimizer

    def attach(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        layers: Layers,
        *,
        initial: bool = True,
        state: Mapping[str, Any] | None = None,
    ) -> pbwn.NormProjection | None:
        """Attach the projection. As in the authors' code, projections at intervals have no initial projection."""
        assert self.constraint is not None
        return pbwn.attach(
            model,
            optimizer,
            every=self.every,
            gradient=self._gradient,
            step=self._step,
            per=self._per,
            direction=self._direction,
            constraint=self.constraint,
            initial=initial and self.every == 1,
            state=state,
            **layers,
        )

    def after_epoch(self, projection: pbwn.NormProjection | None) -> None:
        """Project, if projections follow epochs."""
        if self.projects_after_each_epoch and projection is not None:
            projection.project()


class ProjectionByProducts(Projection):
    """PBWN-Riem with the gradient computed as in the authors' code, by an n x n product for n neurons."""

    about = "as PBWN-Riem, with the n x n product of the authors' code"

    def attach(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        layers: Layers,
        *,
        initial: bool = True,
        state: Mapping[str, Any] | None = None,
    ) -> pbwn.NormProjection | None:
        """Attach the projection, and compute the tangent gradient before each step."""
        projection = super().attach(model, optimizer, layers, initial=initial, state=state)
        assert projection is not None
        weights = projection.selection.constrained
        optimizer.register_step_pre_hook(lambda *_: _make_tangent_by_products(weights))
        return projection


@torch.no_grad()
def _make_tangent_by_products(weights: Iterable[Any]) -> None:
    """Apply equation (7) as the authors' code does: two products of about 2 n^2 p FLOPs each for n rows of p elements.

    The first computes all n x n inner products of rows and gradients, of which the diagonal is kept; the second
    multiplies the weight by that diagonal as a full matrix. Dividing by the squared norms, which are 1 on the sphere,
    makes the gradient equal to that of `gradient="riemannian"` before the first projection too.
    """
    for weight in weights:
        tensor = getattr(weight.module, weight.attribute)
        if tensor.grad is None:
            continue
        rows = weight.axes.rows(tensor)
        memory_order = (
            0,
            *sorted(range(1, rows.ndim), key=rows.stride, reverse=True),
        )  # avoids copies in channels_last
        gradients = weight.axes.rows(tensor.grad).permute(memory_order)
        rows = rows.permute(memory_order).flatten(1)
        inner = (rows @ gradients.flatten(1).T) * torch.eye(len(rows), dtype=rows.dtype, device=rows.device)
        normal = (inner @ rows) / rows.square().sum(dim=1, keepdim=True)
        gradients -= normal.view(gradients.shape)


_SPHERE = pbwn.UnitNorm()
METHODS: Mapping[str, Method] = {
    "pbwn": Projection("PBWN", _SPHERE),
    "pbwn-riem": Projection("PBWN-Riem", _SPHERE, gradient="riemannian"),
    "pbwn-epoch": Projection("PBWN-Epoch", _SPHERE, every=None),
    "pbwn-riem-nxn": ProjectionByProducts("PBWN-Riem, n x n", _SPHERE),
    "pbwn-tangent": Projection("PBWN, tangent", _SPHERE, step="tangent"),
    "pbwn-angle": Projection("PBWN, angle", _SPHERE, step="angle"),
    "pbwn-angle-matrix": Projection("Angle per matrix", pbwn.UnitNorm("initial"), step="angle", per="matrix"),
    "unit-start": UnitStart("Unit start"),
    "max-norm": Projection("Max-norm", pbwn.MaxNorm(3.0)),
    "pbwn-outgoing": Projection("PBWN, outgoing", _SPHERE, direction="outgoing"),
    "pbwn-initial": Projection("PBWN, initial radius", pbwn.UnitNorm("initial")),
}
