"""The radii: the norm that each weight's neurons are projected to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import sqrt
from typing import Literal

import torch
from torch import Tensor

from pbwn.constraint import Constraint, MaxNorm, Radius, Schedule, UnitNorm, scheduled_radius, smallest_length
from pbwn.paths import dtensor
from pbwn.selection import ConstrainedWeight
from pbwn.selection.names import matches, suggestion


def chosen_radii(
    constraint: Constraint, weights: Sequence[ConstrainedWeight], measured: Collection[str] = ()
) -> dict[str, float]:
    """Return the radius of each weight that has one number for all of its neurons, by name, except the `measured`.

    A radius that changes over the steps is 1 here, which its schedule multiplies.
    """
    if isinstance(constraint, MaxNorm):
        return {weight.name: constraint.limit for weight in weights}
    _refuse_idle_patterns(constraint.radius, weights)
    radii = {weight.name: _radius_of(constraint.radius, weight) for weight in weights if weight.name not in measured}
    numbers = {name: 1.0 if callable(radius) else radius for name, radius in radii.items()}
    return {name: radius for name, radius in numbers.items() if not isinstance(radius, str)}


def schedules(constraint: Constraint, weights: Sequence[ConstrainedWeight]) -> dict[str, Schedule]:
    """Return the schedule of each weight whose radius changes over the steps, by name."""
    if isinstance(constraint, MaxNorm) or not constraint.is_scheduled:
        return {}
    radii = {weight.name: _radius_of(constraint.radius, weight) for weight in weights}
    return {name: radius for name, radius in radii.items() if callable(radius)}


def scheduled_radii(schedules: Mapping[str, Schedule], step: int) -> dict[str, float]:
    """Return scheduled radii for a number of steps, by weight name; a schedule of several weights is called once."""
    distinct = {id(schedule): schedule for schedule in schedules.values()}
    values = {key: scheduled_radius(schedule, step) for key, schedule in distinct.items()}
    return {name: values[id(schedule)] for name, schedule in schedules.items()}


def keeps_initial_norms(constraint: Constraint, weight: ConstrainedWeight) -> bool:
    """Whether a weight's radii are the norms that its neurons had at attach."""
    return isinstance(constraint, UnitNorm) and _radius_of(constraint.radius, weight) == "initial"


def measure_radii(
    constraint: Constraint, weights: Sequence[ConstrainedWeight], stored: Mapping[str, Tensor]
) -> dict[str, float | Tensor]:
    """Return the radius of each weight, by name: a number, or a tensor of one per neuron where they differ or are free.

    A row of zeros is free: the first step away from zero would be scaled up to the sphere. `stored` has the tensors
    that the next step starts from. Where weights are sharded, every process has to call this.
    """
    chosen = chosen_radii(constraint, weights)
    radii: dict[str, float | Tensor] = {**chosen}
    if isinstance(constraint, MaxNorm) or not weights:
        return radii
    norms = {weight.name: dtensor.row_norms(stored[weight.name], weight.axes) for weight in weights}
    whole = [dtensor.gather(norms[weight.name], stored[weight.name], weight.axes) for weight in weights]
    flags = [(norm == 0).any() for norm in whole]
    has_zero_rows = torch.stack([flag.to(flags[0].device) for flag in flags]).tolist()
    for weight, zero_rows in zip(weights, has_zero_rows, strict=True):
        norm, radius = norms[weight.name], chosen.get(weight.name)
        if radius is None:
            has_radius = norm.isfinite() & (norm >= smallest_length(weight.tensor.dtype, weight.fan_in))
            radii[weight.name] = norm.where(has_radius, 0)
        elif zero_rows:
            radii[weight.name] = torch.full_like(norm, radius).where(norm != 0, 0)
    return radii


def _radius_of(
    radius: Radius | Mapping[str, Radius], weight: ConstrainedWeight
) -> float | Literal["initial"] | Schedule:
    if isinstance(radius, Mapping):
        names = (weight.name, *weight.others)
        found = {pattern: value for pattern, value in radius.items() if any(matches(pattern, name) for name in names)}
        first = next(iter(found.values()), 1.0)
        if any(value != first for value in found.values()):
            listed = ", ".join(f"{pattern!r}: {value}" for pattern, value in found.items())
            raise ValueError(f"weight {weight.name!r} is given several radii ({listed}): keep one")
        return _radius_of(first, weight)
    return sqrt(weight.fan_in) if radius == "sqrt-fan-in" else radius


def _refuse_idle_patterns(radius: Radius | Mapping[str, Radius], weights: Sequence[ConstrainedWeight]) -> None:
    if isinstance(radius, Mapping):
        names = [name for weight in weights for name in (weight.name, *weight.others)]
        for pattern in radius:
            if not any(matches(pattern, name) for name in names):
                raise ValueError(
                    f"radius={{{pattern!r}: ...}} matches no constrained weight: {suggestion(pattern, names)}"
                )
