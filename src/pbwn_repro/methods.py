"""The compared methods, each an object: what it does to a model, which optimizer it takes, when it projects.

A method of your own is a class derived from `Method`, in any module that can be imported:
`pbwn train --method mypackage.mymethods:Mine`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol

import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim import Optimizer

import pbwn
from pbwn_repro.errors import UsageError
from pbwn_repro.importing import imported, is_own
from pbwn_repro.models.family import Layers, listed


class OptimizerSettings(Protocol):
    """The optimizer part of a configuration."""

    lr: float
    weight_decay: float

    def make(self, model: nn.Module) -> Optimizer:
        """The optimizer of the model's parameters that the configuration asks for."""


class Method:
    """Plain training, and what every method derives from; each of the four steps may be replaced.

    `layers` are the arguments of `pbwn.select` that name the weights which the method is to constrain in this model.
    Everything that a method has to remember belongs into the model, the optimizer or the projection: these are saved.
    """

    constraint: pbwn.UnitNorm | pbwn.MaxNorm | None = None
    """What the weights are kept on by a projection; None where they are free."""
    projects_after_each_epoch = False
    """Whether `after_epoch` projects."""
    reparametrizes = False
    """Whether the model's parameters are others than the plain network's, so that their shards cannot be exported."""

    def __init__(self, title: str = "") -> None:
        """`title` is what tables call the method; the name of its class if not given."""
        self.title = title or type(self).__name__

    def prepare(self, model: nn.Module, layers: Layers) -> None:
        """Change the model itself, before its optimizer is made: parameters may get new names or values."""

    def optimizer(self, model: nn.Module, settings: OptimizerSettings, layers: Layers) -> Optimizer:
        """The optimizer; the engine sets the `lr` of all its groups before each step, by the schedule."""
        return settings.make(model)

    def attach(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        layers: Layers,
        *,
        initial: bool = True,
        state: Mapping[str, Any] | None = None,
    ) -> pbwn.NormProjection | None:
        """Register what happens around each step, and return the projection if there is one.

        initial: whether weights may be projected before the first step.
        state: that of a saved projection, to resume from.
        """
        return None

    def after_epoch(self, projection: pbwn.NormProjection | None) -> None:
        """Do what is due after each epoch but the last; the model was evaluated just before."""


class WeightNormalization(Method):
    """Weights are normalised inside the forward pass, each neuron with a learned scale."""

    reparametrizes = True

    def prepare(self, model: nn.Module, layers: Layers) -> None:
        """Parametrize the weights; the scales start at 1, as in the paper, where torch takes the weights' norms."""
        for weight in pbwn.select(model, **layers).constrained:
            [dim] = weight.axes.neurons
            parametrizations.weight_norm(weight.module, weight.attribute, dim=dim)
            with torch.no_grad():
                weight.module.get_parameter(f"parametrizations.{weight.attribute}.original0").fill_(1.0)


class UnitStart(Method):
    """Rows are scaled to norm 1 once, before the first step, and are free from then on."""

    def prepare(self, model: nn.Module, layers: Layers) -> None:
        """Project once."""
        pbwn.project_(model, **layers)


class Projection(Method):
    """Weights are projected onto a set after steps, as `pbwn.attach` does.

    Args:
        every: the interval in steps; None where projections come after each epoch.
        gradient: the gradient that the optimizer sees.
        step: what becomes of the optimizer's update.
        per: whether each neuron has a norm of its own, or each whole matrix.
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
    ) -> None:
        """Take the settings of `pbwn.attach`."""
        super().__init__(title)
        self.constraint, self.every, self._gradient, self._step, self._per = constraint, every, gradient, step, per
        self.projects_after_each_epoch = every is None

    def optimizer(self, model: nn.Module, settings: OptimizerSettings, layers: Layers) -> Optimizer:
        """The usual one; with steps by angle, without a decay of the constrained weights, as pbwn advises."""
        optimizer = settings.make(model)
        if self._step == "angle":
            weights = pbwn.select(model, per=self._per, **layers).constrained
            _spare_decay(optimizer, [getattr(weight.module, weight.attribute) for weight in weights])
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
        """Attach the projection. As in the authors' code, with an interval the weights start as they are."""
        assert self.constraint is not None
        return pbwn.attach(
            model,
            optimizer,
            every=self.every,
            gradient=self._gradient,
            step=self._step,
            per=self._per,
            constraint=self.constraint,
            initial=initial and self.every == 1,
            state=state,
            **layers,
        )

    def after_epoch(self, projection: pbwn.NormProjection | None) -> None:
        """Project, if that is when."""
        if self.projects_after_each_epoch and projection is not None:
            projection.project()


def _spare_decay(optimizer: Optimizer, weights: Iterable[nn.Parameter]) -> None:
    """Move weights into groups of their own that have no weight decay and are alike in everything else."""
    spared = {id(weight) for weight in weights}
    for group in list(optimizer.param_groups):
        ours = [weight for weight in group["params"] if id(weight) in spared]
        if ours and group["weight_decay"]:
            group["params"] = [weight for weight in group["params"] if id(weight) not in spared]
            optimizer.add_param_group({**group, "params": ours, "weight_decay": 0.0})
            if not group["params"]:
                optimizer.param_groups.remove(group)


class ProjectionByProducts(Projection):
    """PBWN-Riem with the gradient formed as in the authors' code: a product of n x n elements for n neurons."""

    def attach(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        layers: Layers,
        *,
        initial: bool = True,
        state: Mapping[str, Any] | None = None,
    ) -> pbwn.NormProjection | None:
        """Attach the projection, and form the gradient before each step."""
        projection = super().attach(model, optimizer, layers, initial=initial, state=state)
        assert projection is not None
        weights = projection.selection.constrained
        optimizer.register_step_pre_hook(lambda *_: _make_tangent_by_products(weights))
        return projection


@torch.no_grad()
def _make_tangent_by_products(weights: Iterable[Any]) -> None:
    """Equation (7) as the authors' code computes it: two products of about 2 n^2 p FLOPs each for n rows of p elements.

    The first has all n x n inner products of rows and gradients, of which the diagonal is kept; the second multiplies
    the weight by that diagonal as a full matrix. Dividing by the squared norms, which are 1 on the sphere, makes it the
    same gradient as `gradient="riemannian"` before the first projection too.
    """
    for weight in weights:
        tensor = getattr(weight.module, weight.attribute)
        if tensor.grad is None:
            continue
        rows = weight.axes.rows(tensor)
        in_memory = (0, *sorted(range(1, rows.ndim), key=rows.stride, reverse=True))  # channels_last is not copied
        gradients = weight.axes.rows(tensor.grad).permute(in_memory)
        rows = rows.permute(in_memory).flatten(1)
        inner = (rows @ gradients.flatten(1).T) * torch.eye(len(rows), dtype=rows.dtype, device=rows.device)
        normal = (inner @ rows) / rows.square().sum(dim=1, keepdim=True)
        gradients -= normal.view(gradients.shape)


_SPHERE = pbwn.UnitNorm()
METHODS: Mapping[str, Method] = {
    "normal": Method("Normal"),
    "wn": WeightNormalization("WN"),
    "pbwn-riem": Projection("PBWN-Riem", _SPHERE, gradient="riemannian"),
    "pbwn": Projection("PBWN", _SPHERE),
    "pbwn-epoch": Projection("PBWN-Epoch", _SPHERE, every=None),
    "pbwn-riem-nxn": ProjectionByProducts("PBWN-Riem, n x n", _SPHERE),
    "pbwn-tangent": Projection("PBWN, tangent", _SPHERE, step="tangent"),
    "pbwn-angle": Projection("PBWN, angle", _SPHERE, step="angle"),
    "pbwn-angle-matrix": Projection("Angle per matrix", pbwn.UnitNorm(radius="initial"), step="angle", per="matrix"),
    "unit-start": UnitStart("Unit start"),
    "max-norm": Projection("Max-norm", pbwn.MaxNorm(3.0)),
}
_INTERVAL = re.compile(r"pbwn-t([1-9]\d*)")
_LIMIT = re.compile(r"max-norm-(\d+(?:\.\d+)?)")
OWN_EXAMPLE = "MODULE:CLASS, such as mypackage.mymethods:Mine"


def names() -> tuple[str, ...]:
    """The methods by name; pbwn-t<k> and max-norm-<c> name one too, for any interval k and any limit c."""
    return tuple(METHODS)


def check_name(name: str) -> None:
    """Raise unless a method can be called so; one of the user's own is not imported."""
    if not is_own(name):
        method(name)


def title(name: str) -> str:
    """What tables call a method; one of the user's own, which need not be here any more, by its class."""
    return name.rpartition(":")[2] if is_own(name) else method(name).title


def method(name: str) -> Method:
    """Look up a method: pbwn-t<k> projects after every k steps, max-norm-<c> keeps norms at most c.

    >>> method("pbwn-t20").title
    'PBWN-T20'
    >>> method("max-norm-0.5").constraint
    MaxNorm(limit=0.5)
    """
    if is_own(name):
        return _own(name)
    interval = _INTERVAL.fullmatch(name)
    if interval:
        return Projection(f"PBWN-T{interval[1]}", _SPHERE, every=int(interval[1]))
    limit = _LIMIT.fullmatch(name)
    if limit and float(limit[1]) > 0:
        return Projection(f"Max-norm {limit[1]}", pbwn.MaxNorm(float(limit[1])))
    if name not in METHODS:
        raise UsageError(
            f"unknown method {name!r}: {listed(name, METHODS)}, pbwn-t<k> such as pbwn-t20, "
            f"and max-norm-<c> such as max-norm-1.5. For one of your own, write {OWN_EXAMPLE}"
        )
    return METHODS[name]


def _own(name: str) -> Method:
    found = imported(name, kind="method", example=OWN_EXAMPLE)
    if isinstance(found, type) and issubclass(found, Method):
        try:
            found = found()
        except Exception as error:
            raise UsageError(f"{name}() failed with {type(error).__name__}: {error}") from error
    if not isinstance(found, Method):
        raise UsageError(
            f"{name} is {found!r}: a class derived from pbwn_repro.methods.Method, or an object of one, is needed"
        )
    return found
