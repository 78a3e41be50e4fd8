"""Reading `--only`: which of an artefact's runs are wanted."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from pbwn_repro.catalog import Artefact, Scale, TrainedArtefact

Choice = Mapping[str, frozenset[str]]


def parse_only(texts: Iterable[str], artefacts: Sequence[Artefact], scale: Scale, seeds: int | None) -> Choice:
    """Read `name=value,name=value`: several values of a name are alternatives, several names hold together.

    Unknown names and values are errors that list the known ones.
    """
    known = _known(artefacts, scale, seeds)
    chosen: dict[str, set[str]] = {}
    for word in (word.strip() for text in texts for word in text.split(",") if word.strip()):
        name, separator, value = word.partition("=")
        if not separator:
            raise ValueError(f"--only {word!r}: write NAME=VALUE, such as method=pbwn")
        if name not in known:
            names = ", ".join(artefact.name for artefact in artefacts)
            raise ValueError(f"--only {word}: the runs of {names} have no {name!r}: {_listed(name, known)}")
        found = next((each for each in known[name] if _same(each, value)), None)
        if found is None:
            raise ValueError(f"--only {word}: there is no such {name}: {_listed(value, known[name])}")
        chosen.setdefault(name, set()).add(found)
    return {name: frozenset(values) for name, values in chosen.items()}


def _known(artefacts: Sequence[Artefact], scale: Scale, seeds: int | None) -> dict[str, dict[str, None]]:
    """The names and their values, over all artefacts, each once and in order."""
    known: dict[str, dict[str, None]] = {}
    for artefact in artefacts:
        if isinstance(artefact, TrainedArtefact):
            for axis in artefact.axes(scale):
                known.setdefault(axis.name, {}).update(dict.fromkeys(map(str, axis.known)))
            count = max(artefact.seeds[scale], artefact.seeds_at_best.get(scale, 0)) if seeds is None else seeds
            known.setdefault("seed", {}).update(dict.fromkeys(map(str, range(1, count + 1))))
    return known


def _same(value: str, wanted: str) -> bool:
    try:
        return value == wanted or float(value) == float(wanted)
    except ValueError:
        return False


def _listed(wanted: str, choices: Iterable[str]) -> str:
    choices = list(choices)
    if not choices:
        return "there is nothing to choose from"
    nearest = difflib.get_close_matches(wanted, choices, n=1)
    guess = f"did you mean {nearest[0]!r}? " if nearest else ""
    return f"{guess}There is {', '.join(choices)}"
