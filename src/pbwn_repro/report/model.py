"""What a report is made of, as plain data: whoever collects fills it, whoever draws reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pbwn_repro.catalog import Artefact, Scale
from pbwn_repro.config import RunConfig
from pbwn_repro.paper import Claim, Number
from pbwn_repro.report.statistics import Interval

Outcome = Literal["holds", "does not hold", "not enough runs"]


@dataclass(frozen=True)
class Run:
    """A finished run that was read whole: its labels in the artefact's words, configuration, result and place."""

    path: Path
    labels: Mapping[str, Any]
    config: RunConfig
    result: Mapping[str, Any]
    environment: Mapping[str, Any]


@dataclass(frozen=True)
class Summary:
    """What the seeds of one setting gave: one value each. `chosen` is the best of what was searched.

    Where every run diverged there are no values, and the mean is not a number. Of times, the mean is the median over
    rounds, without a deviation.
    """

    values: tuple[float, ...]
    mean: float
    deviation: float | None  # the sample's standard deviation; None for a single run
    chosen: Mapping[str, Any] = field(default_factory=dict)
    diverged: int = 0

    @property
    def count(self) -> int:
        """How many runs there are."""
        return len(self.values)


@dataclass(frozen=True)
class Cell:
    """Ours beside the paper's; either may be missing."""

    row: str
    column: str
    ours: Summary | None
    paper: Number | None


@dataclass(frozen=True)
class Table:
    """Cells by the titles of rows and columns, in the order of the paper; `unit` such as 'test error (%)'."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    unit: str
    ours: str = "mean ± standard deviation (runs)"  # how a cell of ours is written


@dataclass(frozen=True)
class Curve:
    """A line with a band over seeds: the mean, the lowest and the highest run, unless the title says else.

    `diverged` are the places where runs diverged, which are in no mean.
    """

    name: str  # as the paper calls it, such as PBWN-Riem or T = 10
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    count: int
    diverged: tuple[float, ...] = ()


@dataclass(frozen=True)
class Plot:
    """Curves in one frame."""

    name: str  # of its files, unique in a report: figure-2a-paper-training-loss
    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    x_log: bool = False
    y_log: bool = False


@dataclass(frozen=True)
class Verdict:
    """What our runs say to a claim of the paper: by how much, with a 95 % interval, in words.

    A claim on several cells has a verdict for each: `row` against the row `against`, in `column`. `paper` is the same
    difference with its interval from the paper's own means, spreads and seeds, where it gives them.
    """

    claim: Claim
    outcome: Outcome
    difference: float | None
    low: float | None
    high: float | None
    counts: tuple[int, int]
    sentence: str
    row: str = ""
    against: str = ""
    column: str = ""
    paper: Interval | None = None


@dataclass(frozen=True)
class Shown:
    """What is shown of a measurement."""

    table: Table | None
    plots: tuple[Plot, ...]
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """One artefact at one scale and in one variant: everything that is shown of it."""

    artefact: Artefact
    scale: Scale
    variant: Mapping[str, Any]  # empty for the artefact itself
    table: Table | None
    plots: tuple[Plot, ...]
    verdicts: tuple[Verdict, ...]
    runs: tuple[Run, ...]
    missing: int  # runs that the scale's protocol still needs; their configurations are `missing_runs`
    notes: tuple[str, ...]  # such as: trained on JPEG copies of the pictures
    landscapes: Mapping[str, Any] | None = None  # figure 1's result, surfaces and all
    unfinished: tuple[Path, ...] = ()
    diverged: tuple[Path, ...] = ()
    environments: tuple[Mapping[str, Any], ...] = ()  # that the runs were made in, each once
    measurement: Path | None = None  # the folder, where the artefact is measured and not trained
    missing_runs: tuple[RunConfig, ...] = ()
    remarks: tuple[str, ...] = ()  # paragraphs that somebody wrote of the runs, in remarks.md beside them


@dataclass(frozen=True)
class Report:
    """All sections in the order of the paper, and what was found but left out, each with its reason."""

    root: Path
    sections: tuple[Section, ...]
    left_out: Mapping[Path, str]
