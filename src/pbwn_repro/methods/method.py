"""The base class of methods: four hooks around a model and its optimizer, each of which a subclass may override."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

import pbwn
from pbwn.selection import ConstrainedWeight
from pbwn_repro.errors import UsageError
from pbwn_repro.models.family import Layers


class OptimizerSettings(Protocol):
    """The optimizer section of a configuration."""

    lr: float
    weight_decay: float

    def make(self, model: nn.Module) -> Optimizer:
        """Create the configured optimizer for the model's parameters."""


class Method:
    """Plain training, and the base class of every method; each of the four hooks may be overridden.

    `layers` holds the arguments of `pbwn.select` that choose the weights to constrain in the model. A method must keep
    all of its state in the model, the optimizer or the projection, because only these are saved in checkpoints.
    """

    constraint: pbwn.UnitNorm | pbwn.MaxNorm | None = None
    """The set onto which a projection keeps the weights; None without a projection."""
    projects_after_each_epoch = False
    """Whether `after_epoch` projects."""
    reparametrizes = False
    """Whether the model's parameters differ from the plain network's, so that their shards cannot be exported."""
    about = "unconstrained weights"
    """A short description."""

    def __init__(self, title: str = "") -> None:
        """`title` is the method's name in tables; by default the name of its class."""
        self.title = title or type(self).__name__

    def prepare(self, model: nn.Module, layers: Layers) -> None:
        """Change the model before its optimizer is created; parameters may get new names or values."""

    def optimizer(self, model: nn.Module, settings: OptimizerSettings, layers: Layers) -> Optimizer:
        """Create the optimizer; before each step, the engine sets the `lr` of all its groups by the schedule."""
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
        """Register the hooks around each step, and return the projection if there is one.

        `initial` allows a projection before the first step; `state` is the saved state of a projection to resume.
        """
        return None

    def after_epoch(self, projection: pbwn.NormProjection | None) -> None:
        """Run after the evaluation at the end of each epoch, except the last."""


def constrained_weights(model: nn.Module, layers: Layers) -> Sequence[ConstrainedWeight]:
    """Return the weights that PBWN would constrain; having none is an error, as the method would be plain training."""
    selection = pbwn.select(model, **layers)
    if not selection.constrained:
        raise UsageError(f"nothing to constrain: every parameter is left alone.\n\n{selection.text(max_rows=20)}")
    return selection.constrained


class Decay(Method):
    """Weight decay on only those weights that PBWN would constrain (section 3.2).

    The amount is the configuration's weight decay; with 0 this is Normal.
    """

    about = "unconstrained weights, with weight decay on matrices only"

    def optimizer(self, model: nn.Module, settings: OptimizerSettings, layers: Layers) -> Optimizer:
        """Create the configured optimizer, with the other parameters in groups without weight decay."""
        optimizer = settings.make(model)
        weights = {id(weight.tensor) for weight in constrained_weights(model, layers)}
        exempt_from_decay(optimizer, [each for each in model.parameters() if id(each) not in weights])
        return optimizer


def exempt_from_decay(optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Move parameters into separate groups without weight decay and with otherwise identical settings."""
    exempt = {id(parameter) for parameter in parameters}
    for group in list(optimizer.param_groups):
        moved = [each for each in group["params"] if id(each) in exempt]
        if moved and group["weight_decay"]:
            group["params"] = [each for each in group["params"] if id(each) not in exempt]
            optimizer.add_param_group({**group, "params": moved, "weight_decay": 0.0})
            if not group["params"]:
                optimizer.param_groups.remove(group)


METHODS: Mapping[str, Method] = {"normal": Method("Normal"), "decay": Decay("Weight decay")}
