"""What the paper has and a report does not, with the command that makes it and what that takes."""

from __future__ import annotations

from dataclasses import dataclass

from pbwn_repro.catalog import ARTEFACTS, Scale, TrainedArtefact
from pbwn_repro.data import original
from pbwn_repro.report.model import Report, Section
from pbwn_repro.report.writing.price import hours, price


@dataclass(frozen=True)
class Missing:
    """Something that was not run."""

    artefact: str
    what: str
    command: str
    price: str  # empty where nothing is trained


def missing(report: Report) -> list[Missing]:
    """Artefacts without a finished run, those that have none at paper scale, and those of which runs are missing."""
    lines = []
    for name, artefact in ARTEFACTS.items():
        found = [section for section in report.sections if section.artefact.name == name and has_results(section)]
        if not any(section.scale == "paper" and not section.variant for section in found):
            what = "at paper scale" if found else artefact.title
            lines.append(Missing(name, what, _command(name, "paper"), price(name)))
        for section in found:
            if section.missing:
                cost = hours(section.missing_runs)
                beside = "" if report.root.name == "runs" else f" --out {report.root.name}"
                lines.append(Missing(name, f"{section.missing} of the runs", command(section) + beside, cost))
    return lines


def command(section: Section) -> str:
    """The command that makes the missing runs of a section, or all of them again where none is missing.

    FOLDER stands for a copy of the data that the reader has to name.
    """
    if section.artefact.name not in ARTEFACTS:
        return f"pbwn {section.artefact.name}"
    parts = [_command(section.artefact.name, section.scale)]
    parts += [f"--only {name}={value}" for name, value in section.variant.items()]
    copies = {run.config.data.name for run in section.runs}
    # Runs on another copy of a set are other runs.
    parts += [f"--data {original(name)}=hf:FOLDER" for name in sorted(copies) if name != original(name)]
    seeds = max((run.config.seed for run in section.runs), default=0)
    if (
        isinstance(section.artefact, TrainedArtefact)
        and not section.missing
        and seeds > section.artefact.seeds[section.scale]
    ):
        parts.append(f"--seeds {seeds}")
    return " ".join(parts)


def has_results(section: Section) -> bool:
    """Whether a run or the measurement is finished."""
    return bool(section.runs) or section.measurement is not None


def _command(name: str, scale: Scale) -> str:
    return f"pbwn reproduce {name} --scale {scale}"
