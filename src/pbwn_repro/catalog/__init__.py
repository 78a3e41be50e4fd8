"""The catalog of tables, figures and experiments: the paper's numbers, its claims and their criteria, and the runs.

Each artefact is a module-level constant; every module of this package is searched for them.
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
from pbwn_repro.errors import UsageError, suggest

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
# The paper's tables and figures have a number in their name; the others, except the demo, are experiments of ours.
ARTEFACTS: dict[str, Artefact] = {name: _FOUND[name] for name in sorted(_FOUND) if _NUMBERED.fullmatch(name)}
EXPERIMENTS: dict[str, Artefact] = {
    name: _FOUND[name] for name in sorted(_FOUND) if name not in ARTEFACTS and name != "demo"
}
KNOWN: dict[str, Artefact] = {**ARTEFACTS, **EXPERIMENTS, **_FOUND}


def find(name: str) -> Artefact:
    """Look up an artefact by name; the error for an unknown name lists all, the closest match first."""
    if name not in KNOWN:
        raise UsageError(f"unknown table, figure or experiment {name!r}: {suggest(name, (*ARTEFACTS, *EXPERIMENTS))}")
    return KNOWN[name]
