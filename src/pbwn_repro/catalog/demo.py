"""The demo: no table of the paper, but its methods side by side in a minute, without a download."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbwn_repro.catalog.artefact import Axis, Labels, Scale, TrainedArtefact
from pbwn_repro.catalog.cifar import METHODS

NETWORK = "resnet-20"


def _axes(scale: Scale) -> tuple[Axis, ...]:
    return (METHODS,)


def _wishes(labels: Labels, scale: Scale) -> Mapping[str, Any]:
    shared = {"model": NETWORK, "method": labels["method"], "data": "digits", "batch_size": 64, "log_every": 5}
    length = {"steps": 3} if scale == "smoke" else {"epochs": 6, "schedule.drops": [5]}
    return {**shared, **length}


DEMO = TrainedArtefact(
    name="demo",
    title="The methods on handwritten digits",
    about="Test error of a residual network with 20 layers on the 1,797 digits that come with scikit-learn.",
    protocol="SGD with momentum 0.9, weight decay 0.0001, batch 64, learning rate 0.1, divided by 10 in epoch 5 of 6.",
    departures=("The paper has no such experiment.",),
    axes=_axes,
    wishes=_wishes,
    seeds={"smoke": 1, "short": 3, "paper": 3},
)
