"""What a reader has to know before comparing a section with the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pbwn_repro.catalog import ARTEFACTS, Artefact, Scale
from pbwn_repro.config import Steps
from pbwn_repro.data.published import LOSSLESS, original
from pbwn_repro.report.collecting.reading import Record

_SCALES: Mapping[str, str] = {
    "smoke": "Scale smoke: seconds of training on stand-ins for the data, to see that everything runs. The numbers say "
    "nothing about the methods.",
    "short": "Scale short: the paper's protocol squeezed into fewer epochs. Errors are higher than the paper's, and "
    "differences between methods need not be those at full length.",
    "paper": "Scale paper: the published protocol at full length.",
}


def notes(
    artefact: Artefact, scale: Scale, variant: Mapping[str, Any], records: Sequence[Record], missing: int
) -> tuple[str, ...]:
    """Scale, what is missing, data, machine, and where the artefact departs from the paper."""
    found = [_SCALES[scale]] if artefact.name in ARTEFACTS else []
    if scale == "short":
        found += _lengths(records)
    if variant:
        found.append(f"Variant: {', '.join(f'{name} = {value}' for name, value in variant.items())}.")
    if missing:
        found.append(f"{missing} {'run' if missing == 1 else 'runs'} of this scale's protocol {_are(missing)} missing.")
    found += _data(records, stand_ins=artefact.name in ARTEFACTS)
    found += machines([record.environment for record in records])
    return (*found, *artefact.departures)


def _lengths(records: Sequence[Record]) -> list[str]:
    """How long the runs are, and where their rates drop."""
    found = set()
    for config in (record.config for record in records):
        length = f"{config.epochs} epochs" if config.epochs else f"{config.steps:,} iterations"
        drops = config.schedule.drops if isinstance(config.schedule, Steps) else ()
        places = f"{'epoch' if len(drops) == 1 else 'epochs'} {' and '.join(map(str, drops))}"
        found.add(f"{length}, the rate drops at {places}" if drops else length)
    return [f"Each run: {each}." for each in found] if len(found) == 1 else []


def machines(environments: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the runs were made on, a sentence."""
    places = sorted({machine(environment) for environment in environments if environment})
    return [f"Made on {'; '.join(places)}."] if places else []


def machine(environment: Mapping[str, Any]) -> str:
    """Processor or GPU, threads and torch."""
    device = environment.get("device", "cpu")
    name = environment.get("processor", "an unknown processor") if device == "cpu" else device
    threads = environment.get("threads")
    parts = [str(name)]
    if device == "cpu" and threads:
        parts.append(f"{threads} {'thread' if threads == 1 else 'threads'} a run")
    torch = environment.get("packages", {}).get("torch")
    return ", ".join([*parts, *([f"torch {torch}"] if torch else [])])


def _data(records: Sequence[Record], *, stand_ins: bool) -> list[str]:
    names = {record.config.data.name for record in records}
    origins = sorted(
        {
            f"{record.environment['data']['name']} from {record.environment['data']['origin']}"
            for record in records
            if record.environment.get("data", {}).get("origin")
        }
    )
    found = []
    if any(name.endswith("-jpeg") for name in names):
        found.append("Trained and tested on JPEG copies of the original pictures, which differ by their compression.")
    for name in sorted(name for name in names if name.endswith(LOSSLESS)):
        found.append(
            f"Trained and tested on a lossless copy of {original(name)}: the same images and labels, compared by "
            "content, in another order than the published one, so that a seed draws other batches."
        )
    if stand_ins and any(name.startswith("synthetic") or name == "digits" for name in names):
        found.append(f"Data: {', '.join(sorted(names))}, stand-ins for the paper's set.")
    return found + ([f"Data: {'; '.join(origins)}."] if origins else [])


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
