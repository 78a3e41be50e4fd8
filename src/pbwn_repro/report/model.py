"""What a report is made of, as plain data: whoever reads runs fills it, whoever draws or writes reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, nan
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args

import pandas as pd

from pbwn_repro.catalog import ARTEFACTS, EXPERIMENTS, Artefact, Column, Number, Plan, Scale, TrainedArtefact
from pbwn_repro.catalog.artefact import Axis
from pbwn_repro.catalog.claims import BestSetting, Claim, Conditioned, Costs, Higher
from pbwn_repro.metrics import Metric
from pbwn_repro.report.runs import COLUMNS
from pbwn_repro.report.statistics import Compared, Interval, decimals_within, deviation, mean
from pbwn_repro.runs.estimates import Shown

Outcome = Literal["holds", "does not hold", "undecided"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
ALPHA = "\N{GREEK SMALL LETTER ALPHA}"  # figure 1's scale, in words and on axes alike
Meaning = Literal["good", "bad", "neutral", "open"]
MEANINGS: Mapping[Meaning, str] = {
    "good": "good news for users",
    "bad": "bad news for users",
    "neutral": "neither good nor bad news",
    "open": "",
}


def meaning(claim: Claim, outcome: Outcome) -> Meaning:
    """What an outcome means to somebody who wants to use the method, which is what its colour says.

    That a cost which the paper admits is not there is good news. That a loss rises, which setting is the best, and the
    condition numbers of two weights, which follow from the equations, are neither good nor bad.
    """
    if outcome == "undecided":
        return "open"
    if isinstance(claim.criterion, Conditioned | Higher | BestSetting):
        return "neutral"
    admits_a_cost = isinstance(claim.criterion, Costs) and claim.criterion.least is not None
    return "good" if (outcome == "holds") != admits_a_cost else "bad"


def good_news(claim: Claim, outcome: Outcome) -> str:
    """What to add to an outcome whose colour is not what its word leads a reader to expect; usually nothing."""
    if isinstance(claim.criterion, Costs) and claim.criterion.least is not None:
        return {"holds": "it costs time", "does not hold": "good news: it costs less"}.get(outcome, "")
    return ""


@dataclass(frozen=True)
class Row:
    """A row of a table, or a curve: its key, its title, and the name of the method whose colour it has.

    `about` says what the method does, where a table tells it.
    """

    key: str
    title: str
    look: str
    about: str = ""


@dataclass(frozen=True)
class Summary:
    """What the seeds of one setting gave: one value each. `chosen` is the best of what was searched.

    Where every run diverged there are no values, and the mean is not a number. Of times, the mean is the median over
    rounds, without a deviation; `reach` is half the width of its interval.
    """

    values: tuple[float, ...]
    mean: float
    deviation: float | None  # the sample's standard deviation; None for a single run
    chosen: Mapping[str, Any] = field(default_factory=dict)
    diverged: int = 0
    reach: float | None = None
    is_count: bool = False  # of settings, and no mean of runs

    @classmethod
    def of(cls, values: Sequence[float], chosen: Mapping[str, Any] | None = None, diverged: int = 0) -> Summary:
        """All values in one."""
        return cls(tuple(values), mean(values) if values else nan, deviation(values), chosen or {}, diverged)

    def rank(self, metric: Metric) -> tuple[float, float]:
        """Less is better: fewer runs that diverge come before any mean."""
        lost = self.diverged / (self.diverged + self.count)
        return lost, metric.sign * self.mean if self.values else inf

    @property
    def count(self) -> int:
        """How many runs there are."""
        return len(self.values)

    @property
    def is_pair(self) -> bool:
        """Whether there are two runs: of these both values say more than a mean and a spread."""
        return self.count == 2 and self.deviation is not None

    @property
    def decimals(self) -> int | None:
        """How many decimals of its mean are known; None where nothing is known of the spread."""
        return decimals_within(self.reach if self.deviation is None else self.deviation)

    @property
    def median(self) -> float:
        """The middle of the values."""
        return median(self.values)


@dataclass(frozen=True)
class Cell:
    """Ours beside the paper's; either may be missing."""

    ours: Summary | None
    paper: Number | None


@dataclass(frozen=True)
class Table:
    """Cells by the keys of rows and columns, in the order of the paper; `unit` such as 'test error (%)'.

    Args:
        ours: how a cell of ours is written.
        medians: whether the median stands beside the mean.
        drawn: what a figure of it shows.
        fixed: whether small numbers have no more decimals than others: a thousandth of a percent of the time is none.
        undrawn: metrics whose columns are no figure: hours on another machine say nothing beside the paper's.
    """

    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    cells: Mapping[tuple[str, Column], Cell]
    unit: str
    ours: str = "mean ± standard deviation (runs)"
    medians: bool = False
    fixed: bool = False
    drawn: str = "every run, and the mean (line)"
    undrawn: frozenset[str] = frozenset()

    @property
    def legend(self) -> str:
        """How the cells of ours are written: of one or two runs there is no spread to show."""
        found = [cell.ours for cell in self.cells.values() if cell.ours and cell.ours.values]
        if self.ours.startswith("mean") and found and max(ours.count for ours in found) <= 2:
            return "every run (their number)"
        return f"{self.ours}; of two runs, both values" if any(ours.is_pair for ours in found) else self.ours


@dataclass(frozen=True)
class Curve:
    """A line with a band from low to high. `diverged` are the places where runs diverged, which are in no mean.

    `lost` says of each how many, such as '1 of 5'; `dots` are single runs, (place, value).
    """

    row: Row
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    count: int
    diverged: tuple[float, ...] = ()
    dots: tuple[tuple[float, float], ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plot:
    """Curves in one frame; `main` if it is what the reader of the section came for. `band` says what bands are."""

    name: str  # of its file, unique in a report
    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    x_log: bool = False
    y_log: bool = False
    main: bool = False
    band: str = "mean over runs, bands from the lowest to the highest"


@dataclass(frozen=True)
class Verdict:
    """What our runs say to a claim of the paper: by how much, with a 95 % interval, in words.

    A claim on several cells has a verdict for each: `row` against the row `against`, in `column`, as titles.

    Args:
        firm: whether a 'does not hold' stands when all comparisons of the claim are counted (Holm's first step).
        preliminary: whether it rests on few runs, or on a part of the settings that are to be searched.
        dots: the differences of the single pairs of runs.
        gap: how far the difference lies from what it has to leave behind, zero or the edge of a margin.
        beside: another metric of the same runs that a reader has to see too, a sentence.
        paper: the same difference with its interval from the paper's own means, spreads and seeds.
    """

    claim: Claim
    outcome: Outcome
    sentence: str
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    counts: tuple[int, int] = (0, 0)
    row: str = ""
    against: str = ""
    column: str = ""
    firm: bool = True
    preliminary: bool = False
    dots: tuple[float, ...] = ()
    gap: float | None = None
    beside: str = ""
    paper: Interval | None = None

    @classmethod
    def on(
        cls, claim: Claim, outcome: Outcome, sentence: str, compared: Compared, names: tuple[str, str, str], **more: Any
    ) -> Verdict:
        """The verdict on a comparison; `names` are the titles of row, what it stands against, and column."""
        low, high = (compared.interval.low, compared.interval.high) if compared.interval else (None, None)
        more = {"dots": compared.dots, **more}
        return cls(claim, outcome, sentence, compared.difference, low, high, compared.counts, *names, **more)

    @property
    def meaning(self) -> Meaning:
        """What it means to a user."""
        return meaning(self.claim, self.outcome)


@dataclass(frozen=True)
class Decided:
    """A claim with all its comparisons."""

    claim: Claim
    verdicts: tuple[Verdict, ...]

    @property
    def outcome(self) -> Outcome:
        """A claim holds if each comparison does, and does not if one speaks against it among all of them."""
        if any(verdict.outcome == "does not hold" and verdict.firm for verdict in self.verdicts):
            return "does not hold"
        return "holds" if {verdict.outcome for verdict in self.verdicts} == {"holds"} else "undecided"

    @property
    def meaning(self) -> Meaning:
        """What the outcome means to a user."""
        return meaning(self.claim, self.outcome)

    @property
    def preliminary(self) -> bool:
        """Whether the outcome rests on few runs or on a part of a search."""
        speaking = [verdict for verdict in self.verdicts if verdict.outcome == self.outcome]
        return self.outcome != "undecided" and all(verdict.preliminary for verdict in speaking)

    @property
    def counts(self) -> dict[Outcome, int]:
        """How many comparisons came out how."""
        found = Counter(verdict.outcome for verdict in self.verdicts)
        return {outcome: found[outcome] for outcome in OUTCOMES if found[outcome]}

    @property
    def beside(self) -> str:
        """What has to be seen with the first comparison that has such a sentence."""
        return next((verdict.beside for verdict in self.verdicts if verdict.beside), "")


@dataclass(frozen=True, eq=False)
class Section:
    """One artefact at one scale and in one variant, or a user's own experiment: everything that is shown of it.

    Args:
        scale: empty for own experiments, which have none.
        begun: its rows of the table of runs, whatever their state.
        variant: empty for the artefact itself.
        missing: what the scale's protocol still needs.
        compared: comparisons without a verdict, a sentence each.
        landscapes: figure 1's result, surfaces and all.
        measurement: the folder, where the artefact is measured and not trained.
        remarks: paragraphs that somebody wrote of the runs, in remarks.md beside them.
        speeds: how fast the runs of the whole report were, which says what missing ones take.
    """

    artefact: Artefact
    scale: Scale | Literal[""]
    begun: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=COLUMNS))
    variant: Mapping[str, Any] = field(default_factory=dict)
    table: Table | None = None
    plots: tuple[Plot, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    missing: tuple[Plan, ...] = ()
    notes: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    landscapes: Mapping[str, Any] | None = None
    environments: tuple[Mapping[str, Any], ...] = ()
    measurement: Path | None = None
    remarks: tuple[str, ...] = ()
    speeds: Shown | None = None

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The finished runs."""
        return self.begun[self.begun.state == "done"]

    @property
    def ended(self) -> pd.DataFrame:
        """The runs that are finished or diverged."""
        return self.begun[self.begun.state != "unfinished"]

    @property
    def diverged(self) -> tuple[Path, ...]:
        """The folders of the runs that diverged."""
        return tuple(self.begun[self.begun.state == "diverged"].path)

    @property
    def unfinished(self) -> tuple[Path, ...]:
        """The folders of what was begun and has not ended."""
        return tuple(self.begun[self.begun.state == "unfinished"].path)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """What differs between its runs."""
        return self.artefact.axes(self.scale or "paper") if isinstance(self.artefact, TrainedArtefact) else ()

    @property
    def is_reproduced(self) -> bool:
        """Whether `pbwn reproduce` makes it: a table or figure of the paper, or an experiment of ours."""
        return self.artefact.name in {**ARTEFACTS, **EXPERIMENTS}

    @property
    def is_own(self) -> bool:
        """Whether it shows runs that belong to no artefact."""
        return not self.scale

    @property
    def anchor(self) -> str:
        """Its address in the page, and the beginning of its files' names."""
        variant = [f"{name}-{value}" for name, value in self.variant.items()]
        return "-".join(part for part in (self.artefact.name, self.scale, *variant) if part)

    @property
    def number(self) -> str:
        """What it is called, such as Figure 2a."""
        return "Your runs" if self.is_own else heading(self.artefact.name)

    @property
    def setting(self) -> str:
        """Scale and variant in words."""
        scale = [f"{self.scale} scale"] if self.scale else []
        return ", ".join([*scale, *(f"{name} = {value}" for name, value in self.variant.items())])

    @property
    def title(self) -> str:
        """Its number, title and setting."""
        setting = self.setting.replace(f"{self.scale} scale", f"scale {self.scale}")
        return f"{self.number}: {self.artefact.title}" + (f" ({setting})" if setting else "")

    @cached_property
    def claims(self) -> tuple[Decided, ...]:
        """The claims with their comparisons, in their order."""
        found: dict[Claim, list[Verdict]] = {}
        for verdict in self.verdicts:
            found.setdefault(verdict.claim, []).append(verdict)
        return tuple(Decided(claim, tuple(verdicts)) for claim, verdicts in found.items())

    @property
    def opens_with_remarks(self) -> bool:
        """Whether the remarks are what was found: where no claim is tested, they come first."""
        return not self.verdicts

    @property
    def has_results(self) -> bool:
        """Whether a run or the measurement is finished."""
        return len(self.runs) > 0 or self.measurement is not None

    @property
    def is_shown(self) -> bool:
        """Whether there is anything to show; of the others, no run has ended yet."""
        return self.has_results or bool(self.diverged)


@dataclass(frozen=True, eq=False)
class Report:
    """All sections in the order of the paper, and what was found but left out, each with its reason."""

    root: Path
    sections: tuple[Section, ...]
    left_out: Mapping[Path, str]

    @property
    def shown(self) -> list[Section]:
        """The sections that have something to show."""
        return [section for section in self.sections if section.is_shown]


@dataclass(frozen=True)
class Tested:
    """A claim with what each section says to it: the artefact at a scale, and its variants."""

    claim: Claim
    sections: tuple[tuple[Section, Decided], ...]


def claims_tested(sections: Iterable[Section]) -> dict[str, list[Tested]]:
    """By the number of the table or figure, each claim once."""
    found: dict[str, dict[Claim, list[tuple[Section, Decided]]]] = {}
    for section in sections:
        for decided in section.claims:
            found.setdefault(section.number, {}).setdefault(decided.claim, []).append((section, decided))
    return {
        number: [Tested(claim, tuple(places)) for claim, places in claims.items()] for number, claims in found.items()
    }


def heading(name: str) -> str:
    """An artefact's name as a reader writes it.

    >>> heading("figure-2a"), heading("step-rules-gpt")
    ('Figure 2a', 'Step rules, GPT')
    """
    words = name.replace("-gpt", ", GPT").replace("-resnet", ", ResNet").replace("-bn", " BN").replace("-", " ")
    return words[:1].upper() + words[1:]


def in_words(outcome: Outcome, *, preliminary: bool = False) -> str:
    """An outcome as it is printed."""
    return f"{outcome}, preliminary" if preliminary else outcome


def plural(outcome: Outcome, count: int) -> str:
    """What so many claims or comparisons do.

    >>> plural("holds", 2), plural("does not hold", 1)
    ('hold', 'does not hold')
    """
    return {"holds": "hold", "does not hold": "do not hold"}.get(outcome, outcome) if count > 1 else outcome
