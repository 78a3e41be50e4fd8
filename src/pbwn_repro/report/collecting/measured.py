"""The sections of artefacts that are measured in one go: figure 1 and table 5."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pbwn_repro.catalog import MeasuredArtefact, Scale
from pbwn_repro.measurements import folder_of
from pbwn_repro.paper import claims_on
from pbwn_repro.report.collecting import conditioning, time_costs
from pbwn_repro.report.collecting.notes import machines
from pbwn_repro.report.collecting.reading import DamageError, read_environment, read_json
from pbwn_repro.report.model import Section, Shown
from pbwn_repro.report.verdicts.deciding import undecided

_SHOW: Mapping[str, Callable[[str, Mapping[str, Any]], Shown]] = {
    "landscape": conditioning.shown,
    "time-cost": time_costs.shown,
}


def measured_section(artefact: MeasuredArtefact, scale: Scale, root: Path) -> tuple[Section | None, dict[Path, str]]:
    """The section of a measurement at a scale, if there is one; and the folders that were left out, with the reason."""
    protocols = (artefact.options(scale), *artefact.earlier(scale))
    wanted = [folder_of(root, artefact.name, scale, artefact.measurement, options).path.name for options in protocols]
    found: dict[str, Section] = {}
    left_out: dict[Path, str] = {}
    place = root / artefact.name / scale
    for path in sorted(place.iterdir()) if place.is_dir() else ():
        if not path.is_dir() or path.name.startswith("."):
            continue
        try:
            config = read_json(path / "config.json")
            if set(config) != {"measurement", "options"} or not isinstance(config["options"], dict):
                raise DamageError("config.json is no configuration of a measurement")
            own = folder_of(root, artefact.name, scale, str(config["measurement"]), config["options"])
            if own.path.name != path.name:
                raise DamageError(f"config.json is not that of this folder: it would be called {own.path.name}")
            if path.name not in wanted:
                raise DamageError(f"another protocol: {artefact.name} at scale {scale} is {wanted[0]}")
            found[path.name] = _section(artefact, scale, path)
        except DamageError as error:
            left_out[path] = str(error)
    shown, *others = [name for name in wanted if name in found] or [""]
    left_out |= {place / name: f"an earlier protocol: {shown} is shown" for name in others}
    return found.get(shown), left_out


def _section(artefact: MeasuredArtefact, scale: Scale, path: Path) -> Section:
    if not (path / "result.json").exists():
        verdicts = tuple(undecided(claim, "The measurement is not finished.") for claim in claims_on(artefact.name))
        notes = ("The measurement is not finished.", *artefact.departures)
        return Section(artefact, scale, {}, None, (), verdicts, (), 1, notes, unfinished=(path,))
    result, environment = read_json(path / "result.json"), read_environment(path / "environment.json")
    try:
        shown = _SHOW[artefact.measurement](f"{artefact.name}-{scale}", result)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DamageError(f"result.json is not what the measurement writes ({error!r})") from None
    notes = (f"Scale {scale}.", *shown.notes, *machines([environment]), *artefact.departures)
    return Section(
        *(artefact, scale, {}, shown.table, shown.plots, shown.verdicts, (), 0, notes),
        landscapes=result if artefact.measurement == "landscape" else None,
        environments=(environment,),
        measurement=path,
    )
