"""The sets that a neuron's weights are kept in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Literal, TypeAlias

import torch
from torch import Tensor


@dataclass(frozen=True)
class UnitNorm:
    """The sphere: every neuron's weights have norm `radius` (equation 3: ddiag(W Wᵀ) = I).

    `radius="initial"` gives each neuron the norm that it has when the constraint is attached, which is what a
    pretrained model wants. A neuron that is zero at that moment, not finite, or too small for all the digits of its
    dtype, has no norm to keep and stays free.

    >>> UnitNorm().factors(torch.tensor([0.5, 4.0]))
    tensor([2.0000, 0.2500])
    """

    radius: float | Literal["initial"] = 1.0

    def __post_init__(self) -> None:
        if self.radius != "initial":
            object.__setattr__(self, "radius", _length("radius", self.radius, '1.0, or "initial"'))

    def factors(self, norms: Tensor, radii: Tensor | None = None) -> Tensor:
        """What each neuron is multiplied by, `r / |w|`. `radii` are the neurons' own, where radius is "initial"."""
        return _quotients(self._radius(radii), norms)

    def deviations(self, norms: Tensor, radii: Tensor | None = None) -> Tensor:
        """How far each neuron is from the sphere, relative to its radius; a free neuron is never off."""
        deviation = (norms / self._radius(radii) - 1).abs()
        return deviation if radii is None else deviation.where(radii > 0, 0)

    @property
    def length(self) -> float | Literal["initial"]:
        """The radius."""
        return self.radius

    def misfit(self, dtype: torch.dtype, fan_in: int) -> str | None:
        """Say why so many weights of this dtype cannot have this norm, or None where they can."""
        return None if self.radius == "initial" else _misfit(f"radius {self.radius}", self.radius, dtype, fan_in)

    def _radius(self, radii: Tensor | None) -> float | Tensor:
        if self.radius != "initial":
            return self.radius
        if radii is None:
            raise ValueError('radius="initial" needs the radii that were measured at attach')
        return radii


@dataclass(frozen=True)
class MaxNorm:
    """The ball: no neuron's weights are longer than `limit`; shorter ones are left bit for bit.

    >>> MaxNorm(2.0).factors(torch.tensor([0.5, 4.0]))
    tensor([1.0000, 0.5000])
    """

    limit: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit", _length("limit", self.limit, "3.0"))

    def factors(self, norms: Tensor, radii: Tensor | None = None) -> Tensor:
        """What each neuron is multiplied by, 1 inside the ball and `limit / |w|` outside."""
        return _quotients(self.limit, norms).clamp_(max=1)

    def deviations(self, norms: Tensor, radii: Tensor | None = None) -> Tensor:
        """How far each neuron sticks out of the ball, relative to the limit."""
        return (norms / self.limit - 1).clamp(min=0)

    @property
    def length(self) -> float:
        """The limit."""
        return self.limit

    def misfit(self, dtype: torch.dtype, fan_in: int) -> str | None:
        """Say why so many weights of this dtype cannot lie on the ball's surface, or None where they can."""
        large = torch.finfo(dtype).max  # beyond which nothing is ever shortened
        return _misfit(f"limit {self.limit}", min(self.limit, large), dtype, fan_in)


Constraint: TypeAlias = UnitNorm | MaxNorm


def _quotients(length: float | Tensor, norms: Tensor) -> Tensor:
    """`length / norms`, rounded once: torch multiplies a number by the reciprocal, and 49 * (1 / 49) is not 1."""
    return (length if isinstance(length, Tensor) else torch.full_like(norms, length)) / norms


def smallest_length(dtype: torch.dtype, fan_in: int) -> float:
    """The norm of so many equal weights that are the smallest normal numbers of their dtype."""
    return torch.finfo(dtype).tiny * math.sqrt(fan_in)


def _misfit(what: str, length: float, dtype: torch.dtype, fan_in: int) -> str | None:
    """Weights of equal size have all their digits if each is a normal number of its dtype."""
    limits, name = torch.finfo(dtype), str(dtype).removeprefix("torch.")
    if length > limits.max:
        return f"{what} is beyond what {name} can hold"
    if length < smallest_length(dtype, fan_in):
        return f"{what} over {fan_in:,} weights is below what {name} can hold with all its digits"
    return None


def _length(name: str, length: object, example: str) -> float:
    """A length as Python's own float: it is compared with, and saved as, its text."""
    if isinstance(length, bool) or not isinstance(length, Real) or not 0 < float(length) < math.inf:
        raise ValueError(f"{name} is a positive number, such as {example}; found {length!r}")
    return float(length)
