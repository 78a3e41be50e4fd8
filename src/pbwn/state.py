"""The saved state of a projection: its versioned fields, and the checks against the projection that resumes."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from torch import Tensor

from pbwn.axes import Axes
from pbwn.constraint import Constraint, MaxNorm, Radius
from pbwn.selection import ConstrainedWeight
from pbwn.warning import warn

VERSION = 2


@dataclass(frozen=True)
class State:
    """What a resumed run needs. Plain values and tensors, safe to load with `torch.load(..., weights_only=True)`.

    Args:
        constraint: its kind and its settings.
        weights: the neuron axes of each constrained weight, by name.
        zero: the weights that were left alone because all of their elements were zero at attach.
        every: the interval of projections.
        gradient: the gradient that the optimizer sees.
        step: how the optimizer's updates are applied.
        steps: the number of real steps, for each optimizer.
        projected: whether its weights have been projected since its last step, for each optimizer.
        radius_steps: the number of steps at its last projection, for each optimizer, which a radius may depend on.
        radii: one per neuron, gathered over all processes, where neurons have their own or are free.
        masters: the key of its master weight in the optimizer's state, where a weight has one.
        follow: which batch normalisations were seen to follow which weights.
    """

    constraint: dict[str, Any]
    weights: dict[str, dict[str, Any]]
    every: int | None
    gradient: str
    steps: list[int]
    projected: list[bool]
    radii: dict[str, Tensor]
    masters: dict[str, Hashable] = field(default_factory=dict)
    step: str = "plain"
    zero: list[str] = field(default_factory=list)
    radius_steps: list[int] = field(default_factory=list)
    follow: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields and the version."""
        return {"version": VERSION, **{entry.name: getattr(self, entry.name) for entry in fields(self)}}


def read(state: Mapping[str, Any]) -> State:
    """Read a saved state of this or an earlier version."""
    if not isinstance(state, Mapping):
        raise TypeError(f"a state must be what projection.state_dict() returned; got {type(state).__name__}")
    version = state.get("version")
    known = {entry.name for entry in fields(State)}
    required = {entry.name for entry in fields(State) if entry.default is entry.default_factory is MISSING}
    if version == 1:
        state = _from_version_1(state)
    elif version != VERSION and "version" in state:
        raise ValueError(f"the state has version {version}; this pbwn reads versions 1 and {VERSION}: update pbwn")
    missing = {"version", *required} - set(state)
    if missing:
        raise ValueError(f"this is not the state of a projection: {', '.join(sorted(missing))} missing")
    found = State(**{name: state[name] for name in known if name in state})
    if not all(isinstance(count, int) and count >= 0 for count in found.steps):
        raise ValueError(f"steps must be non-negative integers; got {found.steps}")
    return found


def describe(thing: Constraint | Axes) -> dict[str, Any]:
    """Return a constraint, or the axes of a weight, as plain values."""
    if isinstance(thing, Axes):
        grouped = {"grouped": thing.grouped} if thing.grouped else {}
        return {"neurons": list(thing.neurons), "groups": thing.groups, **grouped}
    if isinstance(thing, MaxNorm):
        return {"kind": "max-norm", "limit": thing.limit}
    radius = thing.radius
    if isinstance(radius, Mapping):
        return {"kind": "unit-norm", "radius": {pattern: _plain(value) for pattern, value in radius.items()}}
    return {"kind": "unit-norm", "radius": _plain(radius)}


def _plain(radius: Radius) -> float | str:
    """Return a radius as a plain value; a function of the step is passed again when a run resumes."""
    return "a function of the step" if callable(radius) else radius


def check(saved: State, current: State, weights: Sequence[ConstrainedWeight]) -> None:
    """Refuse a state of another projection, and warn about settings that differ from those it was saved with."""
    if not len(saved.steps) == len(saved.projected) == len(current.steps):
        raise ValueError(f"the state is of {len(saved.steps)} optimizers; this projection has {len(current.steps)}")
    if saved.constraint != current.constraint:
        raise ValueError(
            f"the state is of the constraint {_words(saved.constraint)}, this projection of "
            f"{_words(current.constraint)}: attach with the same constraint, or without state= to start over"
        )
    differing = set(saved.weights) ^ set(current.weights)
    if differing:
        raise ValueError(
            f"the state is of other weights than this projection (differing: {', '.join(sorted(differing)[:5])}): "
            "attach with the same only, also, skip, axes and output_layer as in the run that saved it, and with the "
            "same weights frozen (requires_grad=False); what was frozen only after attach then has to be frozen after "
            "attach now"
        )
    for weight in weights:
        axes = saved.weights[weight.name]
        if axes and axes != current.weights[weight.name]:  # the first states had no axes
            raise ValueError(
                f"the state has axes {_words(axes)} for {weight.name}, this projection {weight.axes}: attach with the "
                "same axes, direction and per as in the run that saved it"
            )
        radii = saved.radii.get(weight.name)
        if radii is None and saved.constraint.get("radius") == "initial":
            raise ValueError(f"the state has no radii for {weight.name}: attach without state= to start over")
        if radii is not None and tuple(radii.shape) != weight.axes.neuron_shape(weight.shape):
            raise ValueError(f"the state has radii of shape {tuple(radii.shape)} for {weight.name}, {weight.shape}")
    settings = [(name, getattr(saved, name), getattr(current, name)) for name in ("every", "gradient", "step")]
    changed = [f"{name}={old!r}, now {new!r}" for name, old, new in settings if old not in ("unknown", new)]
    if changed:
        warn(f"resumed with other settings than those that the state was saved with: {'; '.join(changed)}")


def _from_version_1(state: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a state of version 1, with its constraint and axes as text, and neither interval nor gradient."""
    missing = {"constraint", "weights", "steps", "projected", "radii"} - set(state)
    if missing:
        raise ValueError(f"this is not the state of a projection: {', '.join(sorted(missing))} missing")
    kind, _, setting = str(state["constraint"]).removesuffix(")").partition("(")
    name, _, value = setting.partition("=")
    return {
        "version": VERSION,
        "constraint": {"kind": {"UnitNorm": "unit-norm", "MaxNorm": "max-norm"}[kind], name: literal_eval(value)},
        "weights": {weight: _axes_from_text(state.get("axes", {}).get(weight, "")) for weight in state["weights"]},
        "every": "unknown",
        "gradient": "unknown",
        "masters": {},
        "step": "unknown",
        "zero": list(state.get("zero", ())),
        **{name: state[name] for name in ("steps", "projected", "radii")},
    }


def _axes_from_text(text: str) -> dict[str, Any]:
    """Parse axes such as `(1,), groups=2` into plain values."""
    neurons, _, groups = text.partition(", groups=")
    return {"neurons": list(literal_eval(neurons)), "groups": int(groups or 1)} if text else {}


def _words(settings: Mapping[str, Any]) -> str:
    """Format settings for a message."""
    return ", ".join(f"{value}" if name == "kind" else f"{name} {value}" for name, value in settings.items())
