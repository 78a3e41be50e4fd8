"""Table 4: residual networks on CIFAR-100."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbwn_repro.catalog.artefact import Labels, Scale, TrainedArtefact, read_table
from pbwn_repro.catalog.cifar import ERROR, RESIDUAL_COLUMNS, RESIDUAL_DEPARTURES, on_cifar, residual_claims
from pbwn_repro.catalog.claims import WN_IS_NORMAL
from pbwn_repro.catalog.table_3 import LR, PROTOCOL, SHORT, axes


def _overrides(labels: Labels, scale: Scale) -> Mapping[str, Any]:
    return on_cifar(labels, scale, network=f"resnet-{labels['depth']}", data="cifar100", lr=LR, short=SHORT)


TABLE_4 = TrainedArtefact(
    name="table-4",
    title="Residual networks on CIFAR-100",
    about="Test error of residual networks with 20 to 110 layers, with each of the five methods.",
    protocol=PROTOCOL,
    departures=RESIDUAL_DEPARTURES,
    table=read_table(
        ERROR,
        RESIDUAL_COLUMNS,
        """
  normal     | BaseLine   | 32.28 ± 0.16     | 30.62 ± 0.35     | 29.95 ± 0.66     | 29.07 ± 0.40     | 28.79 ± 0.63
  wn         | WN         | 31.90 ± 0.45     | 30.63 ± 0.37     | 29.57 ± 0.29     | 29.16 ± 0.45     | 28.38 ± 0.99
  pbwn-riem  | PBWN-Riem  | 31.81 ± 0.28     | 30.12 ± 0.36     | 29.15 ± 0.18     | **28.13 ± 0.49** | **27.03 ± 0.33**
  pbwn       | PBWN       | 31.99 ± 0.14     | 30.21 ± 0.20     | 29.04 ± 0.43     | 28.23 ± 0.31     | 27.16 ± 0.57
  pbwn-epoch | PBWN-Epoch | **31.61 ± 0.40** | **29.85 ± 0.17** | **28.83 ± 0.09** | 28.17 ± 0.24     | 27.15 ± 0.58
        """,
        seeds=5,
    ),
    claims=residual_claims(
        "table-4",
        WN_IS_NORMAL,
        contradicted={
            "better": (("pbwn", "Res-20"),),
            "grows": (("pbwn", "Res-56"), ("pbwn-epoch", "Res-56")),
            "alike": (
                *(("pbwn", "Res-32"), ("pbwn-epoch", "Res-32")),
                *(("pbwn-riem", "Res-44"), ("pbwn-epoch", "Res-44")),
            ),
            "epoch": (("pbwn-epoch", "Res-56"), ("pbwn-epoch", "Res-110")),
        },
        remarks={
            "better": "At Res-20 WN (31.90) is better than PBWN (31.99).",
            "grows": "The gain does not grow at every step: it is smaller at Res-56 than at Res-44 for PBWN and "
            "PBWN-Epoch.",
            "alike": "By Welch's test PBWN-Epoch differs significantly from PBWN at Res-32 (29.85 ± 0.17 and "
            "30.21 ± 0.20) and from PBWN-Riem at Res-44 (28.83 ± 0.09 and 29.15 ± 0.18).",
        },
    ),
    axes=axes,
    overrides=_overrides,
)
