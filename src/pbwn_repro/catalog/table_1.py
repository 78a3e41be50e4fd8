"""Table 1: Inception on CIFAR-10 and CIFAR-100."""

from __future__ import annotations

from pbwn_repro.catalog.artefact import Axis, Scale, TrainedArtefact
from pbwn_repro.catalog.cifar import DEPARTURES, INIT, METHODS, cifar_wishes

SETS = Axis("data", ("cifar10", "cifar100"), "column")


def _axes(scale: Scale) -> tuple[Axis, ...]:
    return (METHODS, SETS, INIT)


TABLE_1 = TrainedArtefact(
    name="table-1",
    title="Inception on CIFAR",
    about="Test error of Inception with batch normalisation on CIFAR-10 and CIFAR-100, with each of the five methods.",
    protocol="SGD with momentum 0.9, weight decay 0.0005, batch 64, learning rate 0.1 divided by 5 at epochs 50, 80 "
    "and 100 of 120; five seeds, error after the last epoch.",
    departures=DEPARTURES,
    axes=_axes,
    wishes=cifar_wishes(
        lambda labels: "inception",
        lambda labels: str(labels["data"]),
        short_epochs=12,
        stand_in=lambda labels: str(labels["data"]),
    ),
)
