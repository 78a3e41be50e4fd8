"""Refusing what cannot work, with a sentence on what to do instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from pbwn import sharded
from pbwn.constraint import Constraint, MaxNorm, UnitNorm
from pbwn.selection import ConstrainedWeight
from pbwn.selection.rules import SUPPORTED_DTYPES

STATE_VERSION = 1
_ZERO_PARTITIONS = ("single_partition_of_fp32_groups", "fp32_groups_flat_partition")  # of DeepSpeed's stages
_FRAMEWORKS = ("accelerate", "deepspeed", "lightning", "lightning_fabric", "pytorch_lightning")


def hookable(optimizer: Optimizer | Iterable[Optimizer]) -> list[Optimizer]:
    """The optimizers as a list, each freed of wrappers that have no step hooks of their own."""
    if isinstance(optimizer, nn.Module):
        raise TypeError(f"the model comes first, then the optimizer: found {type(optimizer).__name__} in its place")
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
    """The torch optimizer inside: wrappers of frameworks keep it in an attribute `optimizer`."""
    inner, seen = optimizer, []
    while not _fires_hooks(inner):
        if any(hasattr(inner, name) for name in _ZERO_PARTITIONS):
            raise TypeError(
                f"{type(inner).__name__} moves flat partitions of the weights, in which rows are lost, and copies "
                "them back after its step: use torch.distributed.fsdp.fully_shard (FSDP2) instead of DeepSpeed ZeRO"
            )
        seen.append(inner)
        inner = getattr(inner, "optimizer", None)
        if not _is_transparent(seen[-1], inner):
            raise TypeError(
                f"{type(seen[-1]).__name__} never calls step hooks, so nothing would be projected, or too soon: attach "
                "to the optimizer that it is built on, with every=None, and call projection.project() after each step; "
                "without every=None only where nothing moves the weights after that optimizer's step"
            )
        if inner is None or any(inner is other for other in seen):
            raise TypeError(
                f"{type(optimizer).__name__} has no step hooks: pass the torch.optim.Optimizer that it is built on"
            )
    return cast(Optimizer, inner)


def _fires_hooks(optimizer: object) -> bool:
    """Whether it has hooks, and a step that `Optimizer.__init__` has made to call them."""
    if _own_hooks(optimizer) is None:
        return False
    if any(getattr(vars(kind).get("step"), "hooked", False) for kind in type(optimizer).__mro__):
        return True
    # The class's step was replaced after construction, and `Optimizer.__init__` still ran. Wrappers such as Fabric's
    # copy the attributes of the optimizer inside, and this mark with them: hence the second test.
    return "_zero_grad_profile_name" in vars(optimizer) and not hasattr(optimizer, "optimizer")


def _is_transparent(wrapper: object, inner: object) -> bool:
    """Whether the last thing that moves weights in a wrapper's step is the step of the optimizer inside.

    A framework's wrapper and one that shares the hooks of the optimizer inside are taken at their word; an optimizer of
    its own, such as Lookahead, moves the weights once more.
    """
    if _own_hooks(wrapper) is not None:
        return _own_hooks(wrapper) is _own_hooks(inner)
    return not isinstance(wrapper, Optimizer) or type(wrapper).__module__.partition(".")[0] in _FRAMEWORKS


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
        dtype = weight.tensor.dtype
        misfit = (
            constraint.misfit(dtype, weight.fan_in)
            if dtype in SUPPORTED_DTYPES
            else f"its dtype {dtype} is not supported"
        )
        if misfit is not None:
            raise ValueError(f"weight {weight.name!r}: {misfit}")


def refuse_gathered(weights: Iterable[ConstrainedWeight]) -> None:
    """Refuse weights that were spread over processes and are whole now: what is written to such copies is lost."""
    for weight in weights:
        if not sharded.is_sharded(weight.tensor):
            raise RuntimeError(
                f"weight {weight.name!r} was spread over processes, and a gathered copy is in its place: attach to the "
                "whole model that fully_shard was called on, which has its shards put back before they are projected"
            )


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
    if not isinstance(state, Mapping):
        raise TypeError(f"a state is what projection.state_dict() gave; found {type(state).__name__}")
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
            "attach with the same only, also, skip, axes and output_layer as in the run that saved it, and with the "
            "same weights frozen (requires_grad=False); freeze after attach what was frozen after it there"
        )
    for weight in weights:
        axes = state.get("axes", {}).get(weight.name, str(weight.axes))
        if axes != str(weight.axes):
            raise ValueError(
                f"the state has axes {axes} for {weight.name}, this projection {weight.axes}: attach with the same "
                "axes and direction as in the run that saved it"
            )
        radii = state["radii"].get(weight.name)
        if radii is None and constraint == UnitNorm(radius="initial"):
            raise ValueError(f"the state has no radii for {weight.name}: attach without state= to begin anew")
        if radii is not None and tuple(radii.shape) != weight.axes.neuron_shape(weight.shape):
            raise ValueError(f"the state has radii of shape {tuple(radii.shape)} for {weight.name}, {weight.shape}")
