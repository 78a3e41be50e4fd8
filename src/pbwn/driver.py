"""An optimizer's share of a projection: the weights that its steps move, and what is known of those steps."""

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
from pbwn.monitor import Watched
from pbwn.optimizer_hooks import StepHooks
from pbwn.paths import dtensor
from pbwn.paths.batch import Batch
from pbwn.radii import scheduled_radii
from pbwn.selection import ConstrainedWeight, held_by
from pbwn.warning import warn


def nothing() -> None:
    """Stand in for what is missing or gone; a function, so that it can be pickled."""


@dataclass(eq=False)
class Driver:
    """An optimizer's share: the weights that its steps move, its count of steps, and whether they are projected.

    The optimizer holds the hooks, and they the projection. So these are weak references: all of them are freed with the
    optimizer.
    """

    weights: tuple[ConstrainedWeight, ...]
    schedules: Mapping[str, Schedule] = field(default_factory=dict)  # of those whose radius changes, by name
    hooks: Callable[[], StepHooks | None] = nothing
    optimizer_ref: Callable[[], Optimizer | None] = nothing  # hooked or not
    batch: Batch | None = None
    steps: int = 0
    projected: bool = False
    radius_step: int = 0  # the number of steps at the last projection
    masters: dict[str, Hashable] = field(default_factory=dict)
    unsearched: Sequence[ConstrainedWeight] | None = None  # for masters, for lack of state; None: nothing is searched
    undecided: Sequence[ConstrainedWeight] = ()  # weights with a copy that may be a master once they have moved
    has_begun: bool = False
    before: list[Tensor] | None = None  # the weights as a step found them, while it is taken
    watched: Watched | None = None  # a step that is recorded, while it is taken

    @property
    def is_hooked(self) -> bool:
        """Whether its optimizer calls the hooks."""
        hooks = self.hooks()
        return hooks is not None and hooks.in_place

    @property
    def optimizer(self) -> Optimizer | None:
        """Its optimizer, while it lives and is hooked."""
        hooks = self.hooks()
        return None if hooks is None else hooks.optimizer

    def find_masters(self) -> None:
        """Recognise master weights: of each weight once its optimizer has state of it, elsewhere in the first step."""
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
        """Forget the masters that another optimizer does not have; its own are found in its first step."""
        state: Mapping[Any, Any] = optimizer.state
        found = {weight.name: state.get(weight.tensor, {}) for weight in self.weights}
        self.masters = {name: key for name, key in self.masters.items() if key in found[name]}

    def master_finders(self) -> dict[str, Callable[[], Tensor]]:
        """What looks up the master of each weight that has one."""
        return {
            weight.name: partial(_master, self.optimizer_ref, weight, self.masters[weight.name])
            for weight in self.weights
            if weight.name in self.masters
        }

    def rates(self) -> list[float | Tensor]:
        """The learning rate of each weight: that of its parameter group, as it is now; 0 if no group holds it now."""
        optimizer = self.optimizer_ref()
        assert optimizer is not None
        rates: dict[int, Any] = {
            id(each): group.get("lr") for group in optimizer.param_groups for each in group["params"]
        }
        return [rates.get(id(weight.tensor), 0.0) for weight in self.weights]

    def refuse_half_precision(self, step: str) -> None:
        """Refuse weights of which most of a small update is rounding, unless the optimizer keeps masters of them."""
        for weight in self.weights:
            is_lost = weight.tensor.dtype.itemsize < 4 and weight.name not in self.masters
            if is_lost and weight not in self.undecided:  # which has not moved
                raise TypeError(
                    f'step="{step}" needs updates that are not lost in rounding, but weight {weight.name!r} is '
                    f"{weight.tensor.dtype}: keep the model in float32 (with autocast), use an optimizer that keeps "
                    'float32 master weights in its state, or step="plain"'
                )

    def stalled(self) -> tuple[str, ...]:
        """The weights with NaN in their optimizer's state, whose updates are never finite again."""
        optimizer = self.optimizer_ref()
        state: Mapping[Any, Any] = {} if optimizer is None else optimizer.state
        found = {weight.name: state.get(weight.parameter_or_none, {}).values() for weight in self.weights}
        return tuple(name for name, values in found.items() if any(map(_has_nan, values)))

    def not_held(self) -> list[ConstrainedWeight]:
        """The weights that its optimizer no longer holds."""
        optimizer = self.optimizer
        if optimizer is None:
            return []
        held = held_by([optimizer])
        found = {weight: weight.parameter_or_none for weight in self.weights}
        return [weight for weight, parameter in found.items() if parameter is not None and id(parameter) not in held]

    def radius_factors(self) -> dict[str, float]:
        """What the radii of scheduled weights were multiplied by at the last projection."""
        return scheduled_radii(self.schedules, self.radius_step)

    def check_angle(self, optimizer: Optimizer) -> None:
        """Refuse an optimizer without a learning rate, which is the angle of a step, and warn of weight decay."""
        names = {id(weight.tensor): weight.name for weight in self.weights}
        decay = 0.0
        for group in optimizer.param_groups:
            ours = [names[id(each)] for each in group["params"] if id(each) in names]
            if ours and group.get("lr") is None:
                raise ValueError(
                    f'step="angle" turns each neuron by the learning rate, and the parameter group of {ours[0]!r} '
                    'has no "lr": add it to the group, or use step="plain" or "tangent"'
                )
            if ours:
                decay = decay or group.get("weight_decay", 0.0)
        if decay:
            warn(
                f'step="angle" takes the direction of the whole update, and weight_decay={decay} is part of it: set '
                "weight_decay=0 for the constrained weights, whose norm is fixed anyway"
            )

    def forget_curvature(self) -> None:
        """Make LBFGS start over: its curvature history belongs to points that were not projected."""
        optimizer = self.optimizer
        if isinstance(optimizer, LBFGS):
            for state in optimizer.state.values():
                if state and "n_iter" not in state:
                    warn("this torch keeps the count of LBFGS's iterations elsewhere: its curvature is not forgotten")
                state["n_iter"] = 0


def moved_by(optimizer: Optimizer, weights: Iterable[ConstrainedWeight]) -> tuple[ConstrainedWeight, ...]:
    """Those of the weights that an optimizer holds."""
    held = held_by([optimizer])
    return tuple(weight for weight in weights if id(weight.tensor) in held)


def _has_nan(value: Any) -> bool:
    """Whether a tensor holds NaN, as far as this process has it."""
    part = dtensor.local(value) if isinstance(value, Tensor) else None
    return part is not None and is_plain(part) and part.is_floating_point() and bool(part.isnan().any())


def _master(optimizer_ref: Callable[[], Optimizer | None], weight: ConstrainedWeight, key: Hashable) -> Tensor:
    """The master of a weight; the weight itself once the optimizer is gone, since no step starts from it any more."""
    optimizer = optimizer_ref()
    return weight.tensor if optimizer is None else look_up(optimizer, weight, key)
