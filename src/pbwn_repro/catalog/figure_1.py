"""Figure 1: the two-weight model, with weights of equal and of different magnitude."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbwn_repro.catalog.artefact import MeasuredArtefact, Scale
from pbwn_repro.catalog.claims import Claim, Conditioned


def _options(scale: Scale) -> Mapping[str, Any]:
    fine = {"points": 31, "alphas": 21} if scale != "smoke" else {"points": 11, "alphas": 5}
    return {"start": 0.9, "surface_alpha": 3.0, "half_width": 1.0, "largest_alpha": 10.0, **fine}


FIGURE_1 = MeasuredArtefact(
    name="figure-1",
    title="Scaling-based weight space symmetry",
    about="Error landscapes of a linear model with one neuron per layer, y = w2 w1 x, for weights of equal magnitude, "
    "weights scaled by alpha and 1 / alpha, and weights after projection; the Hessian's condition number over alpha.",
    protocol="Squared loss; Hessians in closed form and by automatic differentiation in float64.",
    departures=(
        "The paper states no loss, data or weights for its figure: here the loss is squared, the best model is y = x, "
        "and the weights of equal magnitude are w1 = w2 = 0.9.",
        "At a minimum the Hessian is singular for every alpha, because the minima form a curve. Condition numbers are "
        "therefore computed at a point beside it; at a minimum the largest eigenvalue is shown instead.",
    ),
    claims=(
        Claim(
            "figure-1-scaled",
            "as alpha becomes larger, it is more likely that the Hessian matrix will be ill-conditioned",
            "the Hessian's condition number grows with the scale",
            Conditioned("scaled"),
        ),
        Claim(
            "figure-1-projected",
            "our method performs normalization via projection [...] which ensures the improvement of conditioning of "
            "Hessian matrix",
            "after projection the condition number is no larger than at equal magnitude",
            Conditioned("projected"),
            note="Our test: in this model the projection leaves a single direction, so that the condition number is 1 "
            "whatever the loss. This follows from the projection and says nothing about larger models.",
        ),
    ),
    measurement="landscape",
    options=_options,
)
