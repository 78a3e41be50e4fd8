"""The paper's two-weight model y = w2 w1 x (section 2.1): its loss, and its Hessian in closed form.

With the squared loss L = E[(w2 w1 x - t)^2] / 2, the moments s = E[x^2], c = E[x t] and the product p = w1 w2:

    dL/dw1 = r w2      dL/dw2 = r w1      with the residual r = s p - c

        | s w2^2    s p + r |
    H = |                   |      trace = s (w1^2 + w2^2),   determinant = -r (2 s p + r)
        | s p + r   s w1^2  |

Scaling to (alpha w1, w2 / alpha) leaves p, r and the determinant as they are, while the trace grows like alpha^2: the
condition number trace^2 / |determinant| grows like alpha^4. On the curve of minima r = 0, the determinant vanishes: one
eigenvalue is 0 along the curve, the other is s (w1^2 + w2^2), and it too grows like alpha^2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDING = 1e-12  # an eigenvalue that is smaller than this share of the largest one is 0 but for rounding


@dataclass(frozen=True)
class Moments:
    """What the loss needs to know of the data: E[x^2], E[x t] and E[t^2]."""

    xx: float
    xt: float
    tt: float

    @classmethod
    def of(cls, x: Tensor, t: Tensor) -> Moments:
        """The moments of a sample."""
        return cls(x.square().mean().item(), (x * t).mean().item(), t.square().mean().item())

    @property
    def best_product(self) -> float:
        """The product w1 w2 of all minima."""
        return self.xt / self.xx

    def loss(self, w1: float, w2: float) -> float:
        """The loss in closed form."""
        product = w1 * w2
        return (self.xx * product**2 - 2 * self.xt * product + self.tt) / 2

    def gradient(self, w1: float, w2: float) -> tuple[float, float]:
        """The gradient in closed form."""
        residual = self.xx * w1 * w2 - self.xt
        return residual * w2, residual * w1

    def eigenvalues(self, w1: float, w2: float) -> tuple[float, float]:
        """The Hessian's eigenvalues in closed form, the smaller one first."""
        product = w1 * w2
        residual = self.xx * product - self.xt
        trace = self.xx * (w1**2 + w2**2)
        determinant = -residual * (2 * self.xx * product + residual)
        larger = (trace + math.sqrt(trace**2 - 4 * determinant)) / 2
        return determinant / larger, larger  # subtracting instead would lose the smaller one's digits


def loss(weights: Tensor, x: Tensor, t: Tensor) -> Tensor:
    """The loss as the data give it; `weights` holds w1 and w2."""
    return (weights[1] * weights[0] * x - t).square().mean() / 2


def projected_loss(weights: Tensor, x: Tensor, t: Tensor) -> Tensor:
    """The loss after the hidden unit's incoming weight was divided by its norm."""
    return loss(torch.stack([weights[0] / weights[0].abs(), weights[1]]), x, t)


def condition(eigenvalues: tuple[float, float]) -> float | None:
    """The largest over the smallest eigenvalue in absolute terms; None where the smallest is 0."""
    smallest, largest = sorted(map(abs, eigenvalues))
    return largest / smallest if smallest > ROUNDING * largest else None
