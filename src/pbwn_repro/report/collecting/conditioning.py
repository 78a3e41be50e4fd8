"""Figure 1: condition numbers over alpha, and what they say to the paper's claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isclose
from typing import Any

from pbwn_repro.paper import Claim, claims_on
from pbwn_repro.paper.criteria import Conditioned
from pbwn_repro.report.model import Curve, Plot, Shown, Verdict

_AGREEMENT = 1e-6  # between closed form and automatic differentiation


def shown(prefix: str, result: Mapping[str, Any]) -> Shown:
    """The curves over alpha and the verdicts; ValueError where closed form and measurement do not agree."""
    _check(result)
    alpha, general, minimum, projected = (result[name] for name in ("alpha", "general", "minimum", "projected"))

    def plot(name: str, title: str, y_label: str, curves: Mapping[str, Sequence[float]]) -> Plot:
        drawn = tuple(
            Curve(title, *((tuple(alpha)), tuple(values), tuple(values), tuple(values)), 1)
            for title, values in curves.items()
        )
        return Plot(f"{prefix}-{name}", title, "alpha", y_label, drawn, x_log=True, y_log=True)

    plots = (
        plot(
            "condition",
            "Condition number of the Hessian, weights scaled by alpha and 1 / alpha",
            "condition number",
            {
                "scaled, closed form": general["condition"]["analytic"],
                "scaled, measured": general["condition"]["measured"],
                "after projection, measured": projected["condition"]["measured"],
            },
        ),
        plot(
            "largest-eigenvalue",
            "Largest eigenvalue of the Hessian: steps of gradient descent have to stay below 2 over it",
            "largest eigenvalue",
            {
                "at a minimum, scaled": minimum["largest_eigenvalue"]["measured"],
                "after projection": projected["largest_eigenvalue"]["measured"],
            },
        ),
    )
    return Shown(None, plots, tuple(_verdict(claim, result) for claim in claims_on("figure-1")))


def _verdict(claim: Claim, result: Mapping[str, Any]) -> Verdict:
    assert isinstance(claim.criterion, Conditioned)
    alpha = result["alpha"]
    scaled, projected = (result[name]["condition"]["measured"] for name in ("general", "projected"))
    if claim.criterion.what == "scaled":
        holds = all(after > before for before, after in pairwise(scaled))
        words = (
            f"The condition number goes from {scaled[0]:.3g} at alpha = {alpha[0]:g} to {scaled[-1]:.3g} at alpha = "
            f"{alpha[-1]:g}{', growing at every step' if holds else ''}. Computed exactly: there is no interval."
        )
    else:
        worst = max(projected)
        holds = worst <= scaled[0]
        words = (
            f"After projection it is at most {worst:.3g} for every alpha, {scaled[0]:.3g} at equal magnitude. Of two "
            f"directions the projection leaves {max(result['projected']['directions_left'])}, and one direction has "
            "the condition number 1: with a single input this follows from the projection itself. Computed exactly: "
            "there is no interval."
        )
    return Verdict(claim, "holds" if holds else "does not hold", None, None, None, (0, 0), words)


def _check(result: Mapping[str, Any]) -> None:
    for name in ("general", "projected"):
        analytic, measured = (result[name]["condition"][way] for way in ("analytic", "measured"))
        for one, other in zip(analytic, measured, strict=True):
            if not isclose(one, other, rel_tol=_AGREEMENT):
                raise ValueError(f"condition numbers in closed form and as measured differ: {one} and {other}")
        if len(analytic) != len(result["alpha"]):
            raise ValueError(f"{len(analytic)} condition numbers for {len(result['alpha'])} values of alpha")
    for surface in result["surfaces"]:
        rows = [len(row) for row in surface["loss"]]
        if rows != [len(surface["w1"])] * len(surface["w2"]):
            raise ValueError(f"the surface {surface['name']} is not a full grid")
