"""Figure 3: training loss of Inception on CIFAR-10 (a) and CIFAR-100 (b), from the runs of table 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbwn_repro.catalog.artefact import INIT, Axis, Labels, Scale, TrainedArtefact
from pbwn_repro.catalog.cifar import METHODS
from pbwn_repro.catalog.claims import BASELINES, CURVES_MARGIN, OURS, Alike, Better, Claim
from pbwn_repro.catalog.table_1 import TABLE_1


def _axes(scale: Scale) -> tuple[Axis, ...]:
    return (METHODS, INIT)


def _figure(letter: str, data: str, title: str) -> TrainedArtefact:
    def overrides(labels: Labels, scale: Scale) -> Mapping[str, Any]:
        return TABLE_1.overrides({**labels, "data": data}, scale)

    return TrainedArtefact(
        name=f"figure-3{letter}",
        title=f"Training loss of Inception on {title}",
        about=f"Training loss by epoch of the runs of table 1 on {title}.",
        protocol=TABLE_1.protocol,
        departures=(
            *TABLE_1.departures,
            "The paper's text calls the curves training error, the caption training loss; here they show the loss.",
        ),
        claims=(
            Claim(
                f"figure-3{letter}-faster",
                "our model can converge significantly faster than the baselines",
                "the training loss, averaged over the run, is lower than that of Normal and WN",
                Better(OURS, BASELINES, "mean_training_loss", beside="final_training_loss"),
                note="The mean over the run is our measure of 'faster': it rewards a fast initial decrease.",
            ),
            Claim(
                f"figure-3{letter}-alike",
                "`PBWN-Riem' and `PBWN' have nearly identical training curves",
                "the training loss, averaged over the run, differs by less than 10 %",
                Alike(("pbwn-riem", "pbwn"), CURVES_MARGIN, "mean_training_loss", relative=True),
            ),
        ),
        axes=_axes,
        overrides=overrides,
        seeds=TABLE_1.seeds,
        metric="final_training_loss",
        curves="epoch",
        home=lambda labels: TABLE_1.name,
    )


FIGURE_3A = _figure("a", "cifar10", "CIFAR-10")
FIGURE_3B = _figure("b", "cifar100", "CIFAR-100")
