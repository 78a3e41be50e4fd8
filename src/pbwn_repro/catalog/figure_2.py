"""Figure 2: an MLP on MNIST, with and without projection (a), and with projections at intervals (b)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbwn_repro.catalog.artefact import UNIT_START, Axis, Labels, Scale, TrainedArtefact
from pbwn_repro.catalog.scales import shortened

RATES = (1.0, 0.3, 0.1, 0.03, 0.01)
METHODS = ("normal", "pbwn-riem", "pbwn")
INTERVALS = (1, 10, 20, 50, 100)
BEST_RATE = 0.3  # of all methods, as the caption says
SIZES = Axis("sizes", ("paper", "authors"), "variant")
START = Axis("init", ("paper", "lecun"), "variant")
SEEDS: dict[Scale, int] = {"smoke": 2, "short": 3, "paper": 5}
DEPARTURES = (
    "The caption's layer sizes 1024-750-250-250-10 are used; the authors' code has 1024-1000-750-250-250-250-10, which "
    "`--only sizes=authors` makes.",
    "The published code uses seed 1 alone; five seeds here, to show how much they differ.",
    "Weights start by Torch7's default, uniform within +-1/sqrt(fan_in), whose rows have norm 0.58. LeCun's start, "
    "which the paper cites for it, has rows of norm 1: `--only init=lecun` makes it.",
)


def _wishes(labels: Labels, scale: Scale) -> Mapping[str, Any]:
    shared = {"model": "mlp", "model_options": {"sizes": labels["sizes"]}, "init": labels["init"], "lr": labels["lr"]}
    if scale == "smoke":
        return {**shared, "data": "digits", "epochs": 2, "batch_size": 64}
    return {**shared, **(shortened("mlp", 5) if scale == "short" else {})}


def _wishes_a(labels: Labels, scale: Scale) -> Mapping[str, Any]:
    return {**_wishes(labels, scale), "method": labels["method"]}


def _axes_a(scale: Scale) -> tuple[Axis, ...]:
    rates = (0.3, 0.1) if scale == "smoke" else RATES
    return (Axis("method", METHODS, "row", (UNIT_START,)), Axis("lr", rates, "searched"), SIZES, START)


def _wishes_b(labels: Labels, scale: Scale) -> Mapping[str, Any]:
    interval = labels["interval"]
    return {**_wishes({"lr": BEST_RATE, **labels}, scale), "method": "pbwn" if interval == 1 else f"pbwn-t{interval}"}


def _axes_b(scale: Scale) -> tuple[Axis, ...]:
    return (Axis("interval", (1, 5, 10) if scale == "smoke" else INTERVALS, "row"), SIZES, START)


FIGURE_2A = TrainedArtefact(
    name="figure-2a",
    title="Effect of norm projection",
    about="Training loss of an MLP on MNIST by iteration: Normal, PBWN-Riem and PBWN, each at its best learning rate.",
    protocol="Plain SGD, batch 256, 20 epochs; learning rates 1, 0.3, 0.1, 0.03, 0.01, the best of each method shown.",
    departures=DEPARTURES,
    axes=_axes_a,
    wishes=_wishes_a,
    seeds=SEEDS,
    value="training_loss",
)
FIGURE_2B = TrainedArtefact(
    name="figure-2b",
    title="Effect of updating intervals",
    about="Training loss of the same MLP when it is projected after every T iterations, T from 1 to 100.",
    protocol="As figure 2a, at learning rate 0.3; T in 1, 10, 20, 50, 100.",
    departures=DEPARTURES,
    axes=_axes_b,
    wishes=_wishes_b,
    seeds=SEEDS,
    value="training_loss",
    home=lambda labels: "figure-2a" if labels["interval"] == 1 else "figure-2b",
)
