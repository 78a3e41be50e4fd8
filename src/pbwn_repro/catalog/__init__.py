"""One file per table or figure: the paper's cells, its claims with what decides each, and the runs. Nothing else.

A file that is here is known.
"""

import pkgutil
import re
from importlib import import_module

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
from pbwn_repro.errors import UsageError, listed

__all__ = [
    "ARTEFACTS",
    "EXPERIMENTS",
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

_FOUND = {
    artefact.name: artefact
    for module in pkgutil.iter_modules(__path__)
    for artefact in vars(import_module(f"{__name__}.{module.name}")).values()
    if isinstance(artefact, Artefact)
}
_NUMBERED = re.compile(r"[a-z]+-\d+[a-z]?")
# The paper's, which have a number; ours, about what the paper does not ask; and the demo.
ARTEFACTS: dict[str, Artefact] = {name: _FOUND[name] for name in sorted(_FOUND) if _NUMBERED.fullmatch(name)}
EXPERIMENTS: dict[str, Artefact] = {
    name: _FOUND[name] for name in sorted(_FOUND) if name not in ARTEFACTS and name != "demo"
}
KNOWN: dict[str, Artefact] = {**ARTEFACTS, **EXPERIMENTS, **_FOUND}


def find(name: str) -> Artefact:
    """Look up an artefact; an error lists them all, the nearest one first."""
    if name not in KNOWN:
        raise UsageError(f"unknown table, figure or experiment {name!r}: {listed(name, (*ARTEFACTS, *EXPERIMENTS))}")
    return KNOWN[name]
