"""The demo: figure 2a in miniature, with a control, in a minute and without a download."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbwn_repro.catalog.artefact import Axis, Column, Labels, PaperTable, Scale, TrainedArtefact
from pbwn_repro.catalog.cifar import ERROR

RATES = (0.3, 0.1, 0.03, 1.0)  # the order in which they run; tables sort them
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
    about="Test error of an MLP with six layers on the 1,797 handwritten digits that come with scikit-learn, over the "
    "learning rate: normal training, PBWN, and the control that has unit norms at the start only.",
    protocol="Plain SGD, batch 64, 8 epochs; learning rates 1, 0.3, 0.1, 0.03, two seeds each.",
    departures=("The paper's figure 2a is on MNIST, without batch normalisation and without the control.",),
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
