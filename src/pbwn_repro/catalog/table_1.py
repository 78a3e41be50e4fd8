"""Table 1: Inception on CIFAR-10 and CIFAR-100."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbwn_repro.catalog.artefact import Labels, Scale, TrainedArtefact, read_table
from pbwn_repro.catalog.cifar import DEPARTURES, ERROR, SETS, both_sets, on_cifar
from pbwn_repro.catalog.claims import BASELINES, OURS, Better, Claim


def _overrides(labels: Labels, scale: Scale) -> Mapping[str, Any]:
    short = {"epochs": 12, "schedule.drops": [5, 8, 10]}
    return on_cifar(labels, scale, network="inception", data=str(labels["data"]), lr=0.1, short=short)


TABLE_1 = TrainedArtefact(
    name="table-1",
    title="Inception on CIFAR",
    about="Test error of Inception with batch normalisation on CIFAR-10 and CIFAR-100, with each of the five methods.",
    protocol="SGD with momentum 0.9, weight decay 0.0005, batch 64, learning rate 0.1 divided by 5 at epochs 50, 80 "
    "and 100 of 120; five seeds, error after the last epoch.",
    departures=(
        *DEPARTURES,
        "Convolutions are initialised by Torch7's default, uniform within ±1/sqrt(fan_in), which gives rows of norm "
        "0.58.",
        "WN scales the weight, as in Salimans & Kingma. The authors' WN scales after bias and ReLU, directly before "
        "BN, where the scale cancels.",
    ),
    table=read_table(
        ERROR,
        SETS,
        """
        normal     | Normal     | 6.48 ± 0.14     | 25.71 ± 0.15
        wn         | WN         | 6.20 ± 0.07     | 24.22 ± 0.53
        pbwn-riem  | PBWN-Riem  | 5.33 ± 0.19     | **22.46 ± 0.25**
        pbwn       | PBWN       | **5.22 ± 0.05** | 22.70 ± 0.65
        pbwn-epoch | PBWN-Epoch | 5.46 ± 0.22     | 22.83 ± 0.87
        """,
        seeds=5,
    ),
    claims=(
        Claim(
            "table-1-better",
            "our methods also can achieve significant improvements over the baselines",
            "the test error is lower than that of Normal and WN",
            Better(OURS, BASELINES),
        ),
    ),
    axes=both_sets,
    overrides=_overrides,
)
