"""What a method is: four steps around a model and its optimizer, each of which a class of its own may replace."""

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
    about = "free weights"
    """What it does, in a few words."""

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


def constrained_weights(model: nn.Module, layers: Layers) -> Sequence[ConstrainedWeight]:
    """The weights that PBWN would constrain; without any, a method would be plain training under another name."""
    selection = pbwn.select(model, **layers)
    if not selection.constrained:
        raise UsageError(f"nothing to constrain: every parameter is left alone.\n\n{selection.text(max_rows=20)}")
    return selection.constrained


class Decay(Method):
    """Weight decay alone, of the weights that PBWN would constrain and of no others (section 3.2).

    How much is the weight decay of the configuration: with 0 it is Normal.
    """

    about = "free weights with weight decay, of matrices alone"

    def optimizer(self, model: nn.Module, settings: OptimizerSettings, layers: Layers) -> Optimizer:
        """The configuration's optimizer, with groups of parameters that do not decay beside those that do."""
        optimizer = settings.make(model)
        weights = {id(weight.tensor) for weight in constrained_weights(model, layers)}
        spare_decay(optimizer, [each for each in model.parameters() if id(each) not in weights])
        return optimizer


def spare_decay(optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Move parameters into groups of their own that have no weight decay and are alike in everything else."""
    spared = {id(parameter) for parameter in parameters}
    for group in list(optimizer.param_groups):
        ours = [each for each in group["params"] if id(each) in spared]
        if ours and group["weight_decay"]:
            group["params"] = [each for each in group["params"] if id(each) not in spared]
            optimizer.add_param_group({**group, "params": ours, "weight_decay": 0.0})
            if not group["params"]:
                optimizer.param_groups.remove(group)


METHODS: Mapping[str, Method] = {"normal": Method("Normal"), "decay": Decay("Weight decay")}
