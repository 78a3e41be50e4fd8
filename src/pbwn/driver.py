"""An optimizer's share of the constrained weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch.optim import Optimizer

from pbwn.batched import Batch
from pbwn.selection import ConstrainedWeight, held_by
from pbwn.step_hooks import StepHooks


def no_hooks() -> None:
    """Stand for hooks that are not there; a function, so that it can be pickled."""


@dataclass(eq=False)
class Driver:
    """One optimizer's share: the weights that its steps move, its count of steps, and whether they are projected.

    The optimizer holds the hooks, and they the projection. So this only refers to them: all of them go at once when the
    user lets go of the optimizer.
    """

    weights: tuple[ConstrainedWeight, ...]
    batch: Batch
    hooks: Callable[[], StepHooks | None] = no_hooks
    steps: int = 0
    projected: bool = False

    @property
    def is_hooked(self) -> bool:
        """Whether its optimizer tells of its steps."""
        hooks = self.hooks()
        return hooks is not None and hooks.in_place

    @property
    def optimizer(self) -> Optimizer | None:
        """Its optimizer, while it lives and is hooked."""
        hooks = self.hooks()
        return None if hooks is None else hooks.optimizer

    def orphans(self) -> list[ConstrainedWeight]:
        """The weights that its optimizer does not hold any more."""
        optimizer = self.optimizer
        if optimizer is None:
            return []
        held = held_by([optimizer])
        return [weight for weight in self.weights if weight.found is not None and id(weight.found) not in held]


def moved_by(optimizer: Optimizer, weights: Iterable[ConstrainedWeight]) -> tuple[ConstrainedWeight, ...]:
    """Those of the weights that an optimizer holds."""
    held = held_by([optimizer])
    return tuple(weight for weight in weights if id(weight.tensor) in held)
