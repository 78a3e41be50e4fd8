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
    pretrained model wants. A neuron that is zero or not finite at that moment has no norm to keep and stays free.

    >>> UnitNorm().factors(torch.tensor([0.5, 4.0]))
    tensor([2.0000, 0.2500])
    """

    radius: float | Literal["initial"] = 1.0

    def __post_init__(self) -> None:
        if self.radius != "initial":
            object.__setattr__(self, "radius", _length("radius", self.radius, '1.0, or "initial"'))

    def factors(self, norms: Tensor, radii: Tensor | None = None) -> Tensor:
        """What each neuron is multiplied by, `r / |w|`. `radii` are the neurons' own, where radius is "initial"."""
        return self._radius(radii) / norms

    def deviations(self, norms: Tensor, radii: Tensor | None = None) -> Tensor:
        """How far each neuron is from the sphere, relative to its radius; a free neuron is never off."""
        deviation = (norms / self._radius(radii) - 1).abs()
        return deviation if radii is None else deviation.where(radii > 0, 0)

    def misfit(self, dtype: torch.dtype) -> str | None:
        """Say why weights of this dtype cannot have this norm, or None where they can."""
        limits = torch.finfo(dtype)
        if self.radius == "initial" or limits.tiny <= self.radius <= limits.max:
            return None
        return f"radius {self.radius} is beyond what {str(dtype).removeprefix('torch.')} can hold"

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
        return self.limit / norms.clamp(min=self.limit)

    def deviations(self, norms: Tensor, radii: Tensor | None = None) -> Tensor:
        """How far each neuron sticks out of the ball, relative to the limit."""
        return (norms / self.limit - 1).clamp(min=0)

    def misfit(self, dtype: torch.dtype) -> str | None:
        """Weights of any dtype can be in the ball."""
        return None


Constraint: TypeAlias = UnitNorm | MaxNorm


def _length(name: str, length: object, example: str) -> float:
    """A length as Python's own float: it is compared with, and saved as, its text."""
    if isinstance(length, bool) or not isinstance(length, Real) or not 0 < float(length) < math.inf:
        raise ValueError(f"{name} is a positive number, such as {example}; found {length!r}")
    return float(length)
