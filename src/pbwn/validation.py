"""Refusing what cannot work, with a sentence on what to do instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer

from pbwn import sharded
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
    while not _fires_hooks(inner):
        seen.append(inner)
        hooks, inner = _own_hooks(inner), getattr(inner, "optimizer", None)
        # Hooks of its own that it never calls: a step of its own too, which would come after that of the one inside.
        if hooks is not None and hooks is not _own_hooks(inner):
            raise TypeError(
                f"{type(seen[-1]).__name__} never calls its step hooks, so nothing would be projected: attach to the "
                "optimizer inside if that takes the last step; if not, attach to it with every=None, and call "
                "projection.project() after each step"
            )
        if inner is None or any(inner is other for other in seen):
            raise TypeError(
                f"{type(optimizer).__name__} has no step hooks: pass the torch.optim.Optimizer that it is built on"
            )
    return cast(Optimizer, inner)


def _fires_hooks(optimizer: object) -> bool:
    """Whether it has hooks, and a step that `Optimizer.__init__` has made to call them."""
    step = getattr(type(optimizer), "step", None)
    return _own_hooks(optimizer) is not None and getattr(step, "hooked", False)


def _own_hooks(optimizer: object) -> Any:
    """The hooks that it holds itself: a wrapper may hand on what it is asked for."""
    return getattr(optimizer, "__dict__", {}).get("_optimizer_step_post_hooks")


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


def refuse_radii(constraint: Constraint, weights: Iterable[ConstrainedWeight], radii: Mapping[str, Tensor]) -> None:
    """Refuse weights whose neurons are no longer those that the initial radii were measured of."""
    if constraint != UnitNorm(radius="initial"):
        return
    for weight in weights:
        neurons, own = sharded.neuron_shape(weight.tensor, weight.axes), radii.get(weight.name)
        measured = None if own is None else tuple(own.shape)
        if measured != neurons:
            raise RuntimeError(
                f"weight {weight.name!r} has neurons of shape {neurons}, and initial radii of shape {measured}: it was "
                "cut, grown or sharded after attach. Call detach() on the projection and attach anew."
            )


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
            "attach with the same include, skip, axes and output_layer as in the run that saved it, and with the same "
            "weights frozen (requires_grad=False); freeze after attach what was frozen after it there"
        )
    for weight in weights:
        radii = state["radii"].get(weight.name)
        if radii is None and constraint == UnitNorm(radius="initial"):
            raise ValueError(f"the state has no radii for {weight.name}: attach without state= to begin anew")
        if radii is not None and tuple(radii.shape) != weight.axes.neuron_shape(weight.shape):
            raise ValueError(f"the state has radii of shape {tuple(radii.shape)} for {weight.name}, {weight.shape}")
