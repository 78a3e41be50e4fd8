"""The constraints: the sets that a neuron's weights are kept in."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, TypeAlias, TypeGuard, cast

import torch
from torch import Tensor

# How far rounding alone can take a row that was just projected, relative to its radius.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 8e-3}

Schedule: TypeAlias = Callable[[int], float]
Radius: TypeAlias = 'float | Literal["initial", "sqrt-fan-in"] | Schedule'
_RADIUS_WORDS = ("initial", "sqrt-fan-in")
_SCHEDULED_RANGE = (1e-15, 1e15)  # radii whose quotients with norms are in the range of every path


@dataclass(frozen=True, repr=False)
class UnitNorm:
    """The sphere: every neuron's weights have norm `radius` (equation 3: ddiag(W Wᵀ) = I).

    Args:
        radius: a number; "initial", the norm that each neuron has when the constraint is attached, as pretrained
            models need; "sqrt-fan-in", the square root of the number of a neuron's weights, so that they have a mean
            square of 1; a function of the number of steps taken, such as `lambda step: 1 + step / 1000`; or a mapping
            from patterns of weight names to these (1 where none matches).

    With "initial", a neuron that is zero at attach, not finite, or too small for the full precision of its dtype has no
    norm to keep and stays free.

    >>> UnitNorm().factors(torch.tensor([0.5, 4.0]))
    tensor([2.0000, 0.2500])
    """

    radius: Radius | Mapping[str, Radius] = 1.0

    def __post_init__(self) -> None:
        radius = self.radius
        if isinstance(radius, Mapping):
            if not radius or not all(isinstance(pattern, str) for pattern in radius):
                raise ValueError(
                    f"radius maps patterns of weight names to radii, such as {{'*.attn': 2.0}}: {radius!r}"
                )
            checked: Any = {pattern: _radius(value) for pattern, value in radius.items()}
        else:
            checked = _radius(radius)
        object.__setattr__(self, "radius", checked)

    def factors(self, norms: Tensor, radii: float | Tensor | None = None) -> Tensor:
        """Return each neuron's factor `r / |w|`. `radii` are the neurons' own, where `radius` is not a number."""
        return _quotients(self.length if radii is None else radii, norms)

    def deviations(self, norms: Tensor, radii: float | Tensor | None = None) -> Tensor:
        """Return each neuron's distance from the sphere, relative to its radius; 0 for a free neuron."""
        radii = self.length if radii is None else radii
        deviation = (norms / radii - 1).abs()
        return deviation.where(radii > 0, 0) if isinstance(radii, Tensor) else deviation

    @property
    def is_scheduled(self) -> bool:
        """Whether a radius changes over the steps."""
        return any(map(callable, self.radius.values() if isinstance(self.radius, Mapping) else [self.radius]))

    def __repr__(self) -> str:
        if not isinstance(self.radius, Mapping):
            return f"UnitNorm(radius={_shown(self.radius)})"
        listed = ", ".join(f"{pattern!r}: {_shown(value)}" for pattern, value in self.radius.items())
        return f"UnitNorm(radius={{{listed}}})"

    @property
    def length(self) -> float:
        """The radius, where it is one number for all weights."""
        if not isinstance(self.radius, float):
            raise ValueError(f"{self} needs the radii of the weight's own neurons")
        return self.radius


@dataclass(frozen=True)
class MaxNorm:
    """The ball: no neuron's weights are longer than `limit`; shorter ones are unchanged bit for bit.

    >>> MaxNorm(2.0).factors(torch.tensor([0.5, 4.0]))
    tensor([1.0000, 0.5000])
    """

    limit: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit", _length("limit", self.limit, "3.0"))

    def factors(self, norms: Tensor, radii: float | Tensor | None = None) -> Tensor:
        """Return each neuron's factor, 1 inside the ball and `limit / |w|` outside."""
        return _quotients(self.limit, norms).clamp_(max=1)

    def deviations(self, norms: Tensor, radii: float | Tensor | None = None) -> Tensor:
        """Return each neuron's distance from the ball, relative to the limit."""
        return (norms / self.limit - 1).clamp(min=0)

    @property
    def length(self) -> float:
        """The limit."""
        return self.limit


Constraint: TypeAlias = UnitNorm | MaxNorm


def _quotients(length: float | Tensor, norms: Tensor) -> Tensor:
    """`length / norms`, rounded once: torch multiplies by the reciprocal of a scalar, and 49 * (1 / 49) is not 1."""
    return (length if isinstance(length, Tensor) else torch.full_like(norms, length)) / norms


def smallest_length(dtype: torch.dtype, fan_in: int) -> float:
    """Return the norm of `fan_in` weights that are all the smallest normal number of their dtype."""
    return torch.finfo(dtype).tiny * math.sqrt(fan_in)


def mismatch(length: float, dtype: torch.dtype, fan_in: int) -> str | None:
    """Return why `fan_in` weights of this dtype cannot have this norm, or None if they can.

    Weights of equal size have full precision if each is a normal number of its dtype.
    """
    limits, name = torch.finfo(dtype), str(dtype).removeprefix("torch.")
    if length > limits.max:
        return f"a norm of {length} is beyond what {name} can hold"
    if length < smallest_length(dtype, fan_in):
        return f"a norm of {length} over {fan_in:,} weights is below what {name} can hold with all its digits"
    return None


def scheduled_radius(schedule: Schedule, step: int) -> float:
    """Return the radius that a schedule gives for a number of steps.

    >>> scheduled_radius(lambda step: 1 + step / 10, 5)
    1.5
    """
    low, high = _SCHEDULED_RANGE
    found = schedule(step)
    if _is_length(found) and low <= float(found) <= high:
        return float(found)
    raise ValueError(
        f"radius={_shown(schedule)} returned {found!r} for step {step}: a radius that changes over the steps is a "
        f"number from {low:g} to {high:g}"
    )


def _radius(radius: object) -> Radius:
    if callable(radius) and not isinstance(radius, type):
        _refuse_other_arguments(radius)
        return cast(Radius, radius)
    if isinstance(radius, str) and radius in _RADIUS_WORDS:
        return cast(Radius, radius)
    return _length("radius", radius, '1.0, "initial", "sqrt-fan-in" or a function of the step')


def _refuse_other_arguments(schedule: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(schedule)
    except ValueError:  # functions written in C may have no signature
        return
    try:
        signature.bind(0)
    except TypeError as error:
        raise ValueError(
            f"radius={_shown(schedule)} cannot be called with the number of steps taken ({error}): pass a function of "
            "one argument, such as lambda step: 1 + step / 1000"
        ) from None


def _shown(radius: Any) -> str:
    """Return a radius as it is printed: a function by its name."""
    return getattr(radius, "__name__", type(radius).__name__) if callable(radius) else repr(radius)


def _length(name: str, length: object, example: str) -> float:
    """Check a length and return it as a Python float."""
    if not _is_length(length):
        raise ValueError(f"{name} must be a positive number, such as {example}; got {length!r}")
    return float(length)


def _is_length(value: object) -> TypeGuard[Real]:
    return not isinstance(value, bool) and isinstance(value, Real) and 0 < float(value) < math.inf
