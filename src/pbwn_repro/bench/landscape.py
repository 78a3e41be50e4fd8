"""Figure 1: error landscapes of the two-weight model, and how its conditioning depends on alpha.

The model is y = w2 w1 x (section 2.1). With the squared loss L = E[(w2 w1 x - t)^2] / 2, the moments s = E[x^2] and
c = E[x t], and the product p = w1 w2:

    dL/dw1 = r w2      dL/dw2 = r w1      with the residual r = s p - c

        | s w2^2    s p + r |
    H = |                   |      trace = s (w1^2 + w2^2),   determinant = -r (2 s p + r)
        | s p + r   s w1^2  |

Scaling to (alpha w1, w2 / alpha) leaves p, r and the determinant as they are, while the trace grows like alpha^2: the
condition number trace^2 / |determinant| grows like alpha^4. On the curve of minima r = 0, the determinant vanishes: one
eigenvalue is 0 along the curve, the other is s (w1^2 + w2^2), and it too grows like alpha^2.

The result:

    x_squared, best_product      E[x^2], and the product w1 w2 of all minima
    start                        [w1, w2], the point of equal magnitude that alpha scales, away from the minima
    surfaces                     equal, scaled and projected, in this order; each
        name, title, alpha
        w1, w2                   the grid's coordinates
        loss                     rows follow w2, columns w1
        minima                   points [w1, w2] on the curve of minima, within the grid
    alpha                        the values to which the entries of all following lists belong
    general                      at (alpha w1, w2 / alpha), which is not a minimum
        condition                {analytic, measured}: the Hessian's condition number
        gradient_ratio           |dL/dw2| / |dL/dw1|
    minimum                      at the minimum (alpha m, m / alpha)
        condition                null throughout: the Hessian is singular along the curve of minima
        largest_eigenvalue       {analytic, measured}: the step size of gradient descent must stay below 2 / this
        curvature_ratio          {analytic, measured}: of the curvatures along w2 and along w1
    projected                    the same starting point after `pbwn.project_`: w1 is a sign, w2 is free, w2 / alpha
        condition                {analytic, measured}: of the directions in which the loss still changes
        largest_eigenvalue       {analytic, measured}
        directions_left          the number of these: 1 of 2 (none if the output weight were constrained too)
    largest_difference           the largest relative difference between analytic and measured values above
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, hessian

import pbwn
from pbwn_repro.bench.parts import Parts, Progress

ROUNDING = 1e-12  # an eigenvalue below this share of the largest one is 0 up to rounding


@dataclass(frozen=True)
class Moments:
    """The moments of the data that determine the loss's derivatives: E[x^2] and E[x t]."""

    xx: float
    xt: float

    @classmethod
    def of(cls, x: Tensor, t: Tensor) -> Moments:
        """Compute the moments of a sample."""
        return cls(x.square().mean().item(), (x * t).mean().item())

    @property
    def best_product(self) -> float:
        """The product w1 w2 of all minima."""
        return self.xt / self.xx

    def eigenvalues(self, w1: float, w2: float) -> tuple[float, float]:
        """Return the Hessian's eigenvalues in closed form, the smaller one first."""
        product = w1 * w2
        residual = self.xx * product - self.xt
        trace = self.xx * (w1**2 + w2**2)
        determinant = -residual * (2 * self.xx * product + residual)
        larger = (trace + math.sqrt(trace**2 - 4 * determinant)) / 2
        return determinant / larger, larger  # a subtraction would lose the digits of the smaller one


def loss(weights: Tensor, x: Tensor, t: Tensor) -> Tensor:
    """Return the loss on the data; `weights` holds w1 and w2."""
    return (weights[1] * weights[0] * x - t).square().mean() / 2


def projected_loss(weights: Tensor, x: Tensor, t: Tensor) -> Tensor:
    """Return the loss with the hidden unit's incoming weight divided by its norm."""
    return loss(torch.stack([weights[0] / weights[0].abs(), weights[1]]), x, t)


def condition(eigenvalues: tuple[float, float]) -> float | None:
    """Return the condition number, the ratio of the absolute eigenvalues; None if the smaller one is 0."""
    smallest, largest = sorted(map(abs, eigenvalues))
    return largest / smallest if smallest > ROUNDING * largest else None


Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def landscape(options: Mapping[str, Any], parts: Parts, progress: Progress) -> dict[str, Any]:
    """Compute the surfaces and the condition numbers.

    Options: `start` (the common magnitude of both weights), `surface_alpha`, `half_width`, `points` (along each side of
    a surface), `largest_alpha`, `alphas` (their number).
    """
    x = torch.linspace(-1.5, 1.5, 61, dtype=torch.float64)
    t = x.clone()  # the best model is y = x
    moments = Moments.of(x, t)
    exponents = torch.linspace(0, 1, options["alphas"], dtype=torch.float64)
    alphas = (options["largest_alpha"] ** exponents).tolist()
    result: dict[str, Any] = {
        "x_squared": moments.xx,
        "best_product": moments.best_product,
        "start": [options["start"]] * 2,
        "alpha": alphas,
    }
    progress(0, 2, "surfaces")
    result["surfaces"] = _surfaces(options, x, t, moments)
    progress(1, 2, "condition numbers")
    magnitude = options["start"]
    root = moments.best_product**0.5
    result["general"] = _general([(alpha * magnitude, magnitude / alpha) for alpha in alphas], x, t, moments)
    result["minimum"] = _minimum([(alpha * root, root / alpha) for alpha in alphas], x, t, moments)
    result["projected"] = _projected([(alpha * magnitude, magnitude / alpha) for alpha in alphas], x, t, moments)
    result["largest_difference"] = max(_differences(result))
    progress(2, 2, "done")
    return result


def _general(points: list[tuple[float, float]], x: Tensor, t: Tensor, moments: Moments) -> dict[str, Any]:
    slopes = [grad(loss)(torch.tensor(point, dtype=torch.float64), x, t).abs().tolist() for point in points]
    return {
        "condition": {
            "analytic": [condition(moments.eigenvalues(*point)) for point in points],
            "measured": [condition(_eigenvalues(loss, point, x, t)) for point in points],
        },
        "gradient_ratio": [along_w2 / along_w1 for along_w1, along_w2 in slopes],
    }


def _minimum(points: list[tuple[float, float]], x: Tensor, t: Tensor, moments: Moments) -> dict[str, Any]:
    curvatures = [torch.diagonal(_hessian(loss, point, x, t)).tolist() for point in points]
    return {
        "condition": [condition(_eigenvalues(loss, point, x, t)) for point in points],
        "largest_eigenvalue": {
            "analytic": [moments.xx * (w1**2 + w2**2) for w1, w2 in points],
            "measured": [_eigenvalues(loss, point, x, t)[1] for point in points],
        },
        "curvature_ratio": {
            "analytic": [(w1 / w2) ** 2 for w1, w2 in points],
            "measured": [along_w2 / along_w1 for along_w1, along_w2 in curvatures],
        },
    }


def _projected(points: list[tuple[float, float]], x: Tensor, t: Tensor, moments: Moments) -> dict[str, Any]:
    """Measure the projected points: the loss does not depend on the norm of w1, and its curvature along w2 is s."""
    nonzero = []
    for point in points:
        eigenvalues = _eigenvalues(projected_loss, _project(point), x, t)
        nonzero.append([value for value in eigenvalues if abs(value) > ROUNDING * max(map(abs, eigenvalues))])
    return {
        "condition": {"analytic": [1.0 for _ in points], "measured": [max(each) / min(each) for each in nonzero]},
        "largest_eigenvalue": {"analytic": [moments.xx for _ in points], "measured": [max(each) for each in nonzero]},
        "directions_left": [len(each) for each in nonzero],
    }


def _project(point: tuple[float, float]) -> tuple[float, float]:
    """Return the weights after the library's projection: the hidden unit's has norm 1, the output's is unchanged."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    with torch.no_grad():
        for weight, value in zip(model.parameters(), point, strict=True):
            weight.fill_(value)
    pbwn.project_(model)
    w1, w2 = (weight.item() for weight in model.parameters())
    return w1, w2


def _surfaces(options: Mapping[str, Any], x: Tensor, t: Tensor, moments: Moments) -> list[dict[str, Any]]:
    root, alpha = moments.best_product**0.5, options["surface_alpha"]
    offsets = torch.linspace(-1, 1, options["points"], dtype=torch.float64) * options["half_width"]
    return [
        _surface("equal", "weights of the same magnitude", 1.0, loss, (root, root), offsets, x, t),
        _surface("scaled", "one scaled up, one down", alpha, loss, (alpha * root, root / alpha), offsets, x, t),
        _surface(
            *("projected", "after projection of the hidden unit", alpha, projected_loss),
            *((alpha * root, moments.best_product), offsets, x, t),
        ),
    ]


def _surface(
    name: str,
    title: str,
    alpha: float,
    function: Loss,
    centre: tuple[float, float],
    offsets: Tensor,
    x: Tensor,
    t: Tensor,
) -> dict[str, Any]:
    w1, w2 = ((offsets + middle).tolist() for middle in centre)
    best = Moments.of(x, t).best_product
    minima = [(first, best / (first if function is loss else abs(first) / first)) for first in w1 if first]
    return {
        "name": name,
        "title": title,
        "alpha": alpha,
        "w1": [_rounded(value) for value in w1],
        "w2": [_rounded(value) for value in w2],
        "loss": [[_rounded(function(_point(first, second), x, t).item()) for first in w1] for second in w2],
        "minima": [[_rounded(first), _rounded(second)] for first, second in minima if w2[0] <= second <= w2[-1]],
    }


def _eigenvalues(function: Loss, point: tuple[float, float], x: Tensor, t: Tensor) -> tuple[float, float]:
    smaller, larger = torch.linalg.eigvalsh(_hessian(function, point, x, t)).tolist()
    return smaller, larger


def _hessian(function: Loss, point: tuple[float, float], x: Tensor, t: Tensor) -> Tensor:
    matrix: Tensor = hessian(function)(_point(*point), x, t)
    return matrix


def _point(w1: float, w2: float) -> Tensor:
    return torch.tensor([w1, w2], dtype=torch.float64)


def _rounded(value: float) -> float:
    """Round to five significant digits, more than a figure can show."""
    return float(f"{value:.5g}")


def _differences(result: Any) -> list[float]:
    """Return the relative differences of all pairs of analytic and measured values in a nested result."""
    if not isinstance(result, dict):
        return []
    if result.keys() == {"analytic", "measured"}:
        return [abs(b - a) / abs(a) for a, b in zip(result["analytic"], result["measured"], strict=True)]
    return [difference for part in result.values() for difference in _differences(part)]
