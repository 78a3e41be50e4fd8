"""One file per table or figure: the paper's cells, its claims with what decides each, and the runs. Nothing else."""

import difflib

from pbwn_repro.catalog.artefact import (
    SCALES,
    Artefact,
    Column,
    MeasuredArtefact,
    Number,
    PaperTable,
    Plan,
    Scale,
    TrainedArtefact,
)
from pbwn_repro.catalog.demo import DEMO
from pbwn_repro.catalog.figure_1 import FIGURE_1
from pbwn_repro.catalog.figure_2 import FIGURE_2A, FIGURE_2B
from pbwn_repro.catalog.figure_3 import FIGURE_3A, FIGURE_3B
from pbwn_repro.catalog.plasticity import PLASTICITY
from pbwn_repro.catalog.relatives import ALL as RELATIVES
from pbwn_repro.catalog.table_1 import TABLE_1
from pbwn_repro.catalog.table_2 import TABLE_2
from pbwn_repro.catalog.table_3 import TABLE_3
from pbwn_repro.catalog.table_4 import TABLE_4
from pbwn_repro.catalog.table_5 import TABLE_5
from pbwn_repro.catalog.table_6 import TABLE_6
from pbwn_repro.catalog.table_7 import TABLE_7
from pbwn_repro.catalog.table_8 import TABLE_8

__all__ = [
    "ARTEFACTS",
    "BESIDE",
    "KNOWN",
    "SCALES",
    "Artefact",
    "Column",
    "MeasuredArtefact",
    "Number",
    "PaperTable",
    "Plan",
    "Scale",
    "TrainedArtefact",
    "find",
]

ARTEFACTS: dict[str, Artefact] = {
    artefact.name: artefact
    for artefact in (
        *(FIGURE_1, FIGURE_2A, FIGURE_2B, FIGURE_3A, FIGURE_3B),
        *(TABLE_1, TABLE_2, TABLE_3, TABLE_4, TABLE_5, TABLE_6, TABLE_7, TABLE_8),
    )
}
# What the paper says without a table or figure, and what it leads to.
BESIDE: dict[str, Artefact] = {artefact.name: artefact for artefact in (*RELATIVES, PLASTICITY)}
# The paper's, and what else has runs.
KNOWN: dict[str, Artefact] = {**ARTEFACTS, **BESIDE, DEMO.name: DEMO}


def find(name: str) -> Artefact:
    """Look up an artefact; an error lists those of the paper, the nearest one first."""
    if name not in KNOWN:
        nearest = difflib.get_close_matches(name, KNOWN, n=1)
        guess = f"did you mean {nearest[0]!r}? " if nearest else ""
        raise ValueError(f"unknown artefact {name!r}: {guess}There is {', '.join((*ARTEFACTS, *BESIDE))}")
    return KNOWN[name]
