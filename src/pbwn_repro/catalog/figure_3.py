"""Figure 3: training loss of Inception on CIFAR-10 (a) and CIFAR-100 (b), from the runs of table 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbwn_repro.catalog.artefact import INIT, Axis, Labels, Scale, TrainedArtefact
from pbwn_repro.catalog.cifar import METHODS
from pbwn_repro.catalog.table_1 import TABLE_1


def _axes(scale: Scale) -> tuple[Axis, ...]:
    return (METHODS, INIT)


def _figure(letter: str, data: str, title: str) -> TrainedArtefact:
    def wishes(labels: Labels, scale: Scale) -> Mapping[str, Any]:
        return TABLE_1.wishes({**labels, "data": data}, scale)

    return TrainedArtefact(
        name=f"figure-3{letter}",
        title=f"Training loss of Inception on {title}",
        about=f"Training loss by epoch of the runs of table 1 on {title}.",
        protocol=TABLE_1.protocol,
        departures=TABLE_1.departures,
        axes=_axes,
        wishes=wishes,
        seeds=TABLE_1.seeds,
        value="training_loss",
        home=lambda labels: TABLE_1.name,
    )


FIGURE_3A = _figure("a", "cifar10", "CIFAR-10")
FIGURE_3B = _figure("b", "cifar100", "CIFAR-100")
