"""The demo: a miniature of figure 2a with a control, which takes about a minute and no download."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbwn_repro.catalog.artefact import Axis, Column, Labels, PaperTable, Scale, TrainedArtefact
from pbwn_repro.catalog.cifar import ERROR

RATES = (0.3, 0.1, 0.03, 1.0)  # in the order in which they run; tables sort them
METHODS = ("normal", "pbwn", "unit-start")
NETWORKS = {"none": "Without normalisation", "batch": "With batch normalisation"}


def _axes(scale: Scale) -> tuple[Axis, ...]:
    return (
        Axis("method", METHODS, "row"),
        Axis("normalisation", tuple(NETWORKS), "column"),
        Axis("lr", RATES[:2] if scale == "smoke" else RATES, "searched"),
    )


def _overrides(labels: Labels, scale: Scale) -> Mapping[str, Any]:
    return {
        "model": "mlp",
        "model_options": {"sizes": "authors", "normalisation": labels["normalisation"]},
        "method": labels["method"],
        "lr": labels["lr"],
        "data": "digits",
        "batch_size": 64,
        "log_every": 5,
        **({"steps": 3} if scale == "smoke" else {"epochs": 8}),
    }


DEMO = TrainedArtefact(
    name="demo",
    title="Figure 2a in miniature",
    about="Test error of a six-layer MLP on the 1,797 handwritten digits included in scikit-learn, over the learning "
    "rate: normal training, PBWN, and a control with unit norms at the start only.",
    protocol="Plain SGD, batch 64, 8 epochs; learning rates 1, 0.3, 0.1, 0.03, two seeds each.",
    departures=("The paper's figure 2a uses MNIST, with neither batch normalisation nor a control.",),
    table=PaperTable(
        ERROR,
        {"normal": "Normal", "pbwn": "PBWN", "unit-start": "Unit norm at the start only"},
        tuple(Column(title.lower(), value) for value, title in NETWORKS.items()),
        {},
    ),
    axes=_axes,
    overrides=_overrides,
    curves="search",
    seeds={"smoke": 1, "short": 2, "paper": 5},
)
