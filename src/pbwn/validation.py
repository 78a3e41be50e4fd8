"""Refusing what cannot work, with a sentence on what to do instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from torch.optim import Optimizer

from pbwn.constraint import Constraint, MaxNorm, UnitNorm
from pbwn.selection import ConstrainedWeight

STATE_VERSION = 1


def hookable(optimizer: Optimizer | Iterable[Optimizer]) -> list[Optimizer]:
    """The optimizers as a list, each freed of wrappers that have no step hooks of their own."""
    if isinstance(optimizer, Iterable) and not hasattr(optimizer, "param_groups"):
        found = [_unwrapped(one) for one in optimizer]
    else:
        found = [_unwrapped(optimizer)]
    if not found:
        raise ValueError("attach needs an optimizer; found an empty list")
    if len(set(map(id, found))) < len(found):
        raise ValueError("an optimizer is given twice: name each once")
    return found


def _unwrapped(optimizer: Any) -> Optimizer:
    """The torch optimizer inside: Accelerate, Lightning and DeepSpeed all keep it in an attribute `optimizer`."""
    inner, seen = optimizer, []
    # A wrapper may pass on what it is asked for: only an optimizer that owns its hooks calls them.
    while "_optimizer_step_post_hooks" not in getattr(inner, "__dict__", {}):
        seen.append(inner)
        inner = getattr(inner, "optimizer", None)
        if inner is None or any(inner is other for other in seen):
            raise TypeError(
                f"{type(optimizer).__name__} has no step hooks: pass the torch.optim.Optimizer that it is built on"
            )
    return cast(Optimizer, inner)


def check_constraint(constraint: object) -> None:
    """Refuse what is no constraint."""
    if not isinstance(constraint, (UnitNorm, MaxNorm)):
        raise TypeError(f"constraint is pbwn.UnitNorm(...) or pbwn.MaxNorm(...); found {constraint!r}")


def refuse_misfits(constraint: Constraint, weights: Iterable[ConstrainedWeight]) -> None:
    """Refuse weights without values, and those whose dtype cannot hold what the constraint asks for."""
    for weight in weights:
        if weight.tensor.is_meta:
            raise ValueError(f"parameter {weight.name!r} is on the meta device and has no values: materialise it first")
        misfit = constraint.misfit(weight.tensor.dtype)
        if misfit is not None:
            raise ValueError(f"weight {weight.name!r}: {misfit}")


def check_state(
    state: Mapping[str, Any], num_optimizers: int, constraint: Constraint, weights: Sequence[ConstrainedWeight]
) -> None:
    """Refuse a state that is not of this projection."""
    missing = {"version", "constraint", "weights", "steps", "projected", "radii"} - set(state)
    if missing:
        raise ValueError(f"this is not the state of a projection: {', '.join(sorted(missing))} missing")
    if state["version"] != STATE_VERSION:
        raise ValueError(f"the state has version {state['version']}; this pbwn reads version {STATE_VERSION}")
    if not len(state["steps"]) == len(state["projected"]) == num_optimizers:
        raise ValueError(f"the state is of {len(state['steps'])} optimizers; this projection has {num_optimizers}")
    if not all(isinstance(count, int) and count >= 0 for count in state["steps"]):
        raise ValueError(f"steps are whole numbers from 0 up; found {state['steps']}")
    if state["constraint"] != str(constraint):
        raise ValueError(
            f"the state is of {state['constraint']}, this projection of {constraint}: attach with the same constraint, "
            "or without state= to begin anew"
        )
    differing = set(state["weights"]) ^ {weight.name for weight in weights}
    if differing:
        raise ValueError(
            f"the state is of other weights than this projection (differing: {', '.join(sorted(differing)[:5])}): "
            "attach with the same include, skip, axes and output_layer as in the run that saved it"
        )
    for weight in weights:
        radii = state["radii"].get(weight.name)
        if radii is not None and tuple(radii.shape) != weight.axes.neuron_shape(weight.shape):
            raise ValueError(f"the state has radii of shape {tuple(radii.shape)} for {weight.name}, {weight.shape}")
