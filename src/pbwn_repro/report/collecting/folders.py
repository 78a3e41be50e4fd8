"""From run folders alone to a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pbwn_repro.catalog import KNOWN, SCALES, MeasuredArtefact, Scale, TrainedArtefact
from pbwn_repro.report.collecting.matching import Protocol
from pbwn_repro.report.collecting.measured import measured_section
from pbwn_repro.report.collecting.reading import DamageError, Record, read_record
from pbwn_repro.report.collecting.sections import sections
from pbwn_repro.report.model import Report, Section


def collect(root: Path) -> Report:
    """Read all run folders below `root` and make of them what can be shown; what cannot be trusted is named."""
    if not root.is_dir():
        raise ValueError(f"{root} is no folder: give the one that holds the run folders, such as runs")
    left_out: dict[Path, str] = {}
    records: dict[tuple[str, Scale], list[Record]] = {}
    for name, scale, path in _folders(root):
        if not isinstance(KNOWN[name], MeasuredArtefact):
            try:
                records.setdefault((name, scale), []).append(read_record(path))
            except DamageError as error:
                left_out[path] = str(error)
    found: list[Section] = []
    matched: set[Path] = set()
    on_other_copies: dict[Path, str] = {}
    for artefact in KNOWN.values():
        for scale in reversed(SCALES):
            if isinstance(artefact, MeasuredArtefact):
                section, damaged = measured_section(artefact, scale, root)
                found += [section] if section else []
                left_out |= damaged
            elif isinstance(artefact, TrainedArtefact):
                protocol = Protocol(artefact, scale)
                runs, others = protocol.label({home: records.get((home, scale), []) for home in protocol.homes})
                on_other_copies |= others
                matched |= {run.record.path for run in runs}
                found += sections(protocol, runs)
    for (name, scale), kept in records.items():
        for record in kept:
            if record.path not in matched:
                protocol_differs = f"another protocol: no run of {name} at scale {scale} has this configuration"
                left_out[record.path] = on_other_copies.get(record.path, protocol_differs)
    remarked = (replace(section, remarks=_remarks(root, section)) for section in found)
    return Report(root, tuple(remarked), dict(sorted(left_out.items())))


def _remarks(root: Path, section: Section) -> tuple[str, ...]:
    """The paragraphs of remarks.md beside the runs: of an artefact itself, not of its variants."""
    file = root / section.artefact.name / section.scale / "remarks.md"
    if section.variant or not file.is_file():
        return ()
    try:
        paragraphs = file.read_text(encoding="utf-8").split("\n\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text ({error})") from None
    return tuple(words for paragraph in paragraphs if (words := " ".join(paragraph.split())))


def _folders(root: Path) -> Iterator[tuple[str, Scale, Path]]:
    """All folders where the runs of an artefact at a scale are kept."""
    for name in KNOWN:
        for scale in SCALES:
            place = root / name / scale
            if place.is_dir():
                for path in sorted(place.iterdir()):
                    if path.is_dir() and not path.name.startswith("."):
                        yield name, scale, path
