"""An optimizer's share of a projection: the weights that its steps move, and the state of those steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor
from torch.optim import LBFGS, Optimizer

from pbwn.constraint import Schedule
from pbwn.layout import is_plain
from pbwn.masters import find_masters, look_up
from pbwn.monitor import StepMeasurement
from pbwn.optimizer_hooks import StepHooks
from pbwn.paths import dtensor
from pbwn.paths.batch import Batch
from pbwn.radii import scheduled_radii
from pbwn.selection import ConstrainedWeight, held_by
from pbwn.warning import warn


def nothing() -> None:
    """Stand in for a reference that is missing or dead; a function, so that it can be pickled."""


@dataclass(eq=False)
class Driver:
    """An optimizer's share: the weights that its steps move, its number of steps, and whether they are projected.

    The optimizer holds the hooks, and the hooks hold the projection. The references back are weak, so that all of them
    are freed with the optimizer.
    """

    weights: tuple[ConstrainedWeight, ...]
    schedules: Mapping[str, Schedule] = field(default_factory=dict)  # of weights whose radius changes, by name
    hooks: Callable[[], StepHooks | None] = nothing
    optimizer_ref: Callable[[], Optimizer | None] = nothing  # hooked or not
    batch: Batch | None = None
    steps: int = 0
    projected: bool = False
    radius_step: int = 0  # the number of steps at the last projection
    masters: dict[str, Hashable] = field(default_factory=dict)
    unsearched: Sequence[ConstrainedWeight] | None = None  # for masters, as they have no state yet; None: all
    undecided: Sequence[ConstrainedWeight] = ()  # weights with a copy that may prove to be a master once they move
    has_started: bool = False
    before: list[Tensor] | None = None  # copies of the weights from before the step, while it is taken
    measurement: StepMeasurement | None = None  # of a recorded step, while it is taken

    @property
    def is_hooked(self) -> bool:
        """Whether its optimizer calls the hooks."""
        hooks = self.hooks()
        return hooks is not None and hooks.in_place

    @property
    def optimizer(self) -> Optimizer | None:
        """Its optimizer, while it is alive and hooked."""
        hooks = self.hooks()
        return None if hooks is None else hooks.optimizer

    def find_masters(self) -> None:
        """Find master weights: in the state of each weight once it exists, elsewhere in the first step."""
        optimizer = self.optimizer_ref()
        if optimizer is None or not (self.unsearched is None or self.undecided or optimizer.state):
            return
        unsearched = self.weights if self.unsearched is None else self.unsearched
        state: Mapping[Any, Any] = optimizer.state  # a weight that is gone has none
        stateless = [weight for weight in unsearched if not state.get(weight.parameter_or_none)]
        if self.unsearched is None or self.undecided or len(stateless) < len(unsearched):
            unknown = [weight for weight in (*unsearched, *self.undecided) if weight.name not in self.masters]
            found, self.undecided = find_masters(optimizer, dict.fromkeys(unknown), set(self.masters.values()))
            self.masters |= found
            self.batch = None if found else self.batch
        self.unsearched = stateless

    def keep_masters_of(self, optimizer: Optimizer) -> None:
        """Drop the masters that a new optimizer does not have; its own are found in its first step."""
        state: Mapping[Any, Any] = optimizer.state
        found = {weight.name: state.get(weight.tensor, {}) for weight in self.weights}
        self.masters = {name: key for name, key in self.masters.items() if key in found[name]}

    def master_finders(self) -> dict[str, Callable[[], Tensor]]:
        """Return a function that looks up the master of each weight that has one, by weight name."""
        return {
            weight.name: partial(_master, self.optimizer_ref, weight, self.masters[weight.name])
            for weight in self.weights
            if weight.name in self.masters
        }

    def rates(self) -> list[float | Tensor]:
        """Return the current learning rate of each weight's parameter group; 0 if no group holds the weight."""
        optimizer = self.optimizer_ref()
        assert optimizer is not None
        rates: dict[int, Any] = {
            id(parameter): group.get("lr") for group in optimizer.param_groups for parameter in group["params"]
        }
        return [rates.get(id(weight.tensor), 0.0) for weight in self.weights]

    def refuse_half_precision(self, step: str) -> None:
        """Refuse weights whose dtype loses small updates to rounding, unless the optimizer keeps masters of them."""
        for weight in self.weights:
            is_lost = weight.tensor.dtype.itemsize < 4 and weight.name not in self.masters
            if is_lost and weight not in self.undecided:  # an undecided weight has not moved yet
                raise TypeError(
                    f'step="{step}" needs updates that are not lost in rounding, but weight {weight.name!r} is '
                    f"{weight.tensor.dtype}: keep the model in float32 (with autocast), use an optimizer that keeps "
                    'float32 master weights in its state, or step="plain"'
                )

    def stalled(self) -> tuple[str, ...]:
        """Return the weights with NaN in their optimizer's state, whose updates will never be finite again."""
        optimizer = self.optimizer_ref()
        state: Mapping[Any, Any] = {} if optimizer is None else optimizer.state
        found = {weight.name: state.get(weight.parameter_or_none, {}).values() for weight in self.weights}
        return tuple(name for name, values in found.items() if any(map(_has_nan, values)))

    def not_held(self) -> list[ConstrainedWeight]:
        """Return the weights that the optimizer no longer holds."""
        optimizer = self.optimizer
        if optimizer is None:
            return []
        held = held_by([optimizer])
        found = {weight: weight.parameter_or_none for weight in self.weights}
        return [weight for weight, parameter in found.items() if parameter is not None and id(parameter) not in held]

    def radius_factors(self) -> dict[str, float]:
        """Return the factors of scheduled radii at the last projection, by weight name."""
        return scheduled_radii(self.schedules, self.radius_step)

    def check_angle(self, optimizer: Optimizer) -> None:
        """Refuse an optimizer without a learning rate, which is the angle of a step, and warn about weight decay."""
        names = {id(weight.tensor): weight.name for weight in self.weights}
        decay = 0.0
        for group in optimizer.param_groups:
            constrained = [names[id(parameter)] for parameter in group["params"] if id(parameter) in names]
            if constrained and group.get("lr") is None:
                raise ValueError(
                    'step="angle" turns each neuron by the learning rate, and the parameter group of '
                    f'{constrained[0]!r} has no "lr": add it to the group, or use step="plain" or "tangent"'
                )
            if constrained:
                decay = decay or group.get("weight_decay", 0.0)
        if decay:
            warn(
                f'step="angle" takes the direction of the whole update, and weight_decay={decay} is part of it: set '
                "weight_decay=0 for the constrained weights, whose norm is fixed anyway"
            )

    def forget_curvature(self) -> None:
        """Reset LBFGS: its curvature history belongs to points that were not projected."""
        optimizer = self.optimizer
        if isinstance(optimizer, LBFGS):
            for state in optimizer.state.values():
                if state and "n_iter" not in state:
                    warn("this version of torch keeps LBFGS's iteration count elsewhere: its history is not reset")
                state["n_iter"] = 0


def moved_by(optimizer: Optimizer, weights: Iterable[ConstrainedWeight]) -> tuple[ConstrainedWeight, ...]:
    """Return those of the weights that an optimizer holds."""
    held = held_by([optimizer])
    return tuple(weight for weight in weights if id(weight.tensor) in held)


def _has_nan(value: Any) -> bool:
    """Whether this process's part of a tensor holds NaN."""
    part = dtensor.local(value) if isinstance(value, Tensor) else None
    return part is not None and is_plain(part) and part.is_floating_point() and bool(part.isnan().any())


def _master(optimizer_ref: Callable[[], Optimizer | None], weight: ConstrainedWeight, key: Hashable) -> Tensor:
    """Look up the master of a weight; the weight itself once the optimizer is gone, as no step uses the master then."""
    optimizer = optimizer_ref()
    return weight.tensor if optimizer is None else look_up(optimizer, weight, key)
