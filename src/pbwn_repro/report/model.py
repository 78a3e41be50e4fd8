"""The data classes of a report: filled from the runs, rendered as Markdown, HTML and figures."""

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
from pbwn_repro.runs.estimates import ObservedSpeeds

Outcome = Literal["holds", "does not hold", "undecided"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
ALPHA = "\N{GREEK SMALL LETTER ALPHA}"  # figure 1's scale, in text and on axes
Meaning = Literal["good", "bad", "neutral", "open"]
MEANINGS: Mapping[Meaning, str] = {
    "good": "good news for users",
    "bad": "bad news for users",
    "neutral": "neither good nor bad news",
    "open": "",
}


def meaning(claim: Claim, outcome: Outcome) -> Meaning:
    """Return what an outcome means to a user of the method, which decides its colour.

    It is good news if a cost that the paper admits is not found. A rising loss, the best setting, and the condition
    numbers of two weights, which follow from the equations, are neutral.
    """
    if outcome == "undecided":
        return "open"
    if isinstance(claim.criterion, Conditioned | Higher | BestSetting):
        return "neutral"
    admits_a_cost = isinstance(claim.criterion, Costs) and claim.criterion.least is not None
    return "good" if (outcome == "holds") != admits_a_cost else "bad"


def good_news(claim: Claim, outcome: Outcome) -> str:
    """Return an explanation of an outcome whose colour seems to contradict its word; usually empty."""
    if isinstance(claim.criterion, Costs) and claim.criterion.least is not None:
        return {"holds": "it costs time", "does not hold": "good news: it costs less"}.get(outcome, "")
    return ""


@dataclass(frozen=True)
class Row:
    """A row of a table, or a curve; `style` names its stroke in the palette, `about` describes its method if shown."""

    key: str
    title: str
    style: str
    about: str = ""


@dataclass(frozen=True)
class Summary:
    """The results of one setting, one value per seed.

    Args:
        values: without those of diverged runs; empty if every run diverged.
        mean: NaN without values; of times, the median over rounds.
        deviation: the sample standard deviation; None for a single run and for times.
        chosen: the best setting of the search.
        diverged: the number of diverged runs.
        reach: half the width of a median's interval.
        is_count: whether the value is a number of settings, not a mean of runs.
    """

    values: tuple[float, ...]
    mean: float
    deviation: float | None
    chosen: Mapping[str, Any] = field(default_factory=dict)
    diverged: int = 0
    reach: float | None = None
    is_count: bool = False

    @classmethod
    def of(cls, values: Sequence[float], chosen: Mapping[str, Any] | None = None, diverged: int = 0) -> Summary:
        """Summarise the values."""
        return cls(tuple(values), mean(values) if values else nan, deviation(values), chosen or {}, diverged)

    def rank(self, metric: Metric) -> tuple[float, float]:
        """Return a sort key, smaller is better: the share of diverged runs, then the mean."""
        share = self.diverged / (self.diverged + self.count)
        return share, metric.sign * self.mean if self.values else inf

    @property
    def count(self) -> int:
        """The number of finished runs."""
        return len(self.values)

    @property
    def is_pair(self) -> bool:
        """Whether there are two runs, whose values are shown instead of a mean and a spread."""
        return self.count == 2 and self.deviation is not None

    @property
    def decimals(self) -> int | None:
        """The decimals that the spread of the mean supports; None if the spread is unknown."""
        return decimals_within(self.reach if self.deviation is None else self.deviation)

    @property
    def median(self) -> float:
        """The median of the values."""
        return median(self.values)


@dataclass(frozen=True)
class Cell:
    """Ours beside the paper's; either may be missing."""

    ours: Summary | None
    paper: Number | None


@dataclass(frozen=True)
class Table:
    """A table: cells by row key and column, in the order of the paper.

    Args:
        unit: such as 'test error (%)'.
        ours: the format of our cells.
        medians: whether cells show the median beside the mean.
        fixed: whether small numbers have no more decimals than others, as a thousandth of a percent of time is nothing.
        drawn: what the figure of the table shows.
        undrawn: metrics left out of the figure, such as hours, which depend on the machine.
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
        """The format of our cells; one or two runs have no spread to show."""
        found = [cell.ours for cell in self.cells.values() if cell.ours and cell.ours.values]
        if self.ours.startswith("mean") and found and max(ours.count for ours in found) <= 2:
            return "every run (number of runs)"
        return f"{self.ours}; both values if there are two runs" if any(ours.is_pair for ours in found) else self.ours


@dataclass(frozen=True)
class Curve:
    """A line with a band from low to high.

    Args:
        count: the number of runs.
        diverged: the x where runs diverged; these runs are in no mean.
        dots: single runs, as (x, value).
        lost: how many runs diverged at each x of `diverged`, such as '1 of 5'.
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
    """Curves in one frame.

    Args:
        name: of its file, unique in a report.
        main: whether it shows what the artefact is about, not how the runs went.
        band: what lines and bands are.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    x_log: bool = False
    y_log: bool = False
    main: bool = False
    band: str = "mean over runs, bands from lowest to highest"


@dataclass(frozen=True)
class Verdict:
    """The outcome of one comparison of a claim, with the difference, its 95 % interval and a sentence.

    A claim about several cells has a verdict for each.

    Args:
        counts: the runs on each side.
        row, against, column: the titles of the row, of the row it is compared with, and of the column.
        firm: whether a 'does not hold' survives the correction for the claim's number of comparisons (Holm's first
            step).
        preliminary: whether it rests on few runs, or on part of the settings to be searched.
        dots: the difference of each pair of runs.
        gap: the distance of the difference from the decision bound, which is zero or the edge of a margin.
        beside: a sentence on a second metric of the same runs.
        paper: the same difference, from the paper's own means, spreads and seeds.
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
    def from_comparison(
        cls, claim: Claim, outcome: Outcome, sentence: str, compared: Compared, names: tuple[str, str, str], **more: Any
    ) -> Verdict:
        """Build a verdict from a comparison; `names` are the titles of row, other row and column."""
        low, high = (compared.interval.low, compared.interval.high) if compared.interval else (None, None)
        more = {"dots": compared.dots, **more}
        return cls(claim, outcome, sentence, compared.difference, low, high, compared.counts, *names, **more)

    @property
    def meaning(self) -> Meaning:
        """What the outcome means to a user."""
        return meaning(self.claim, self.outcome)


@dataclass(frozen=True)
class Decided:
    """A claim with all its comparisons."""

    claim: Claim
    verdicts: tuple[Verdict, ...]

    @property
    def outcome(self) -> Outcome:
        """Holds if each comparison does; does not hold if one firmly rejects the claim; undecided otherwise."""
        if any(verdict.outcome == "does not hold" and verdict.firm for verdict in self.verdicts):
            return "does not hold"
        return "holds" if {verdict.outcome for verdict in self.verdicts} == {"holds"} else "undecided"

    @property
    def meaning(self) -> Meaning:
        """What the outcome means to a user."""
        return meaning(self.claim, self.outcome)

    @property
    def preliminary(self) -> bool:
        """Whether the outcome rests on few runs or on part of a search."""
        deciding = [verdict for verdict in self.verdicts if verdict.outcome == self.outcome]
        return self.outcome != "undecided" and all(verdict.preliminary for verdict in deciding)

    @property
    def counts(self) -> dict[Outcome, int]:
        """The number of comparisons by outcome, without zeros."""
        found = Counter(verdict.outcome for verdict in self.verdicts)
        return {outcome: found[outcome] for outcome in OUTCOMES if found[outcome]}

    @property
    def has_runs(self) -> bool:
        """Whether anything was compared for it: runs on both sides, or a measurement that decides it."""
        return self.outcome != "undecided" or any(all(verdict.counts) for verdict in self.verdicts)

    @property
    def beside(self) -> str:
        """The first comparison's sentence on a second metric, empty without any."""
        return next((verdict.beside for verdict in self.verdicts if verdict.beside), "")


@dataclass(frozen=True, eq=False)
class Section:
    """One artefact at one scale and in one variant, or a user's own experiment, with everything shown of it.

    Args:
        scale: empty for a user's own experiment.
        all_runs: its rows of the table of runs, in any state.
        variant: empty for the artefact itself.
        missing: the runs that the scale's protocol still needs.
        compared: comparisons without a verdict, a sentence each.
        landscapes: the result of figure 1, including the surfaces.
        measurement: the folder of an artefact that is measured, not trained.
        remarks: the paragraphs of remarks.md beside the runs.
        speeds: the speeds of all runs of the report, from which the time of missing runs is estimated.
    """

    artefact: Artefact
    scale: Scale | Literal[""]
    all_runs: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=COLUMNS))
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
    speeds: ObservedSpeeds | None = None

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The finished runs."""
        return self.all_runs[self.all_runs.state == "done"]

    @property
    def ended(self) -> pd.DataFrame:
        """The runs that finished or diverged."""
        return self.all_runs[self.all_runs.state != "unfinished"]

    @property
    def diverged(self) -> tuple[Path, ...]:
        """The folders of the runs that diverged."""
        return tuple(self.all_runs[self.all_runs.state == "diverged"].path)

    @property
    def unfinished(self) -> tuple[Path, ...]:
        """The folders of the runs that were started and have not ended."""
        return tuple(self.all_runs[self.all_runs.state == "unfinished"].path)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes along which its runs differ."""
        return self.artefact.axes(self.scale or "paper") if isinstance(self.artefact, TrainedArtefact) else ()

    @property
    def is_reproduced(self) -> bool:
        """Whether `pbwn reproduce` runs it: a table or figure of the paper, or one of our experiments."""
        return self.artefact.name in {**ARTEFACTS, **EXPERIMENTS}

    @property
    def is_own(self) -> bool:
        """Whether it shows a user's own runs, which belong to no artefact."""
        return not self.scale

    @property
    def anchor(self) -> str:
        """Its anchor in the page, and the prefix of its file names."""
        variant = [f"{name}-{value}" for name, value in self.variant.items()]
        return "-".join(part for part in (self.artefact.name, self.scale, *variant) if part)

    @property
    def number(self) -> str:
        """Its name in text, such as Figure 2a."""
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
        """The claims with their comparisons, in order."""
        found: dict[Claim, list[Verdict]] = {}
        for verdict in self.verdicts:
            found.setdefault(verdict.claim, []).append(verdict)
        return tuple(Decided(claim, tuple(verdicts)) for claim, verdicts in found.items())

    @property
    def opens_with_remarks(self) -> bool:
        """Whether the remarks come first, as they are the findings where no claim is tested."""
        return not self.verdicts

    @property
    def has_results(self) -> bool:
        """Whether a run or the measurement is finished."""
        return len(self.runs) > 0 or self.measurement is not None

    @property
    def is_shown(self) -> bool:
        """Whether any run has finished or diverged, or the measurement is finished."""
        return self.has_results or bool(self.diverged)


@dataclass(frozen=True, eq=False)
class Report:
    """All sections in the order of the paper, and the folders that were left out, each with its reason."""

    root: Path
    sections: tuple[Section, ...]
    left_out: Mapping[Path, str]

    @property
    def shown(self) -> list[Section]:
        """The sections that have something to show."""
        return [section for section in self.sections if section.is_shown]


@dataclass(frozen=True)
class Tested:
    """A claim with its outcome for the artefact and for each of its variants."""

    claim: Claim
    sections: tuple[tuple[Section, Decided], ...]


def claims_tested(sections: Iterable[Section]) -> dict[str, list[Tested]]:
    """Return each claim once, by the number of its table or figure, at the largest scale that has runs for it."""
    found: dict[str, dict[Claim, dict[str, tuple[Section, Decided]]]] = {}
    for section in sections:  # the largest scale comes first
        for decided in section.claims:
            by_variant = found.setdefault(section.number, {}).setdefault(decided.claim, {})
            variant = str(sorted(section.variant.items()))
            if variant not in by_variant or (decided.has_runs and not by_variant[variant][1].has_runs):
                by_variant[variant] = section, decided
    return {
        number: [Tested(claim, tuple(by_variant.values())) for claim, by_variant in claims.items()]
        for number, claims in found.items()
    }


def heading(name: str) -> str:
    """Return an artefact's name as a title.

    >>> heading("figure-2a"), heading("step-rules-gpt")
    ('Figure 2a', 'Step rules, GPT')
    """
    words = name.replace("-gpt", ", GPT").replace("-resnet", ", ResNet").replace("-bn", " BN").replace("-", " ")
    return words[:1].upper() + words[1:]


def in_words(outcome: Outcome, *, preliminary: bool = False) -> str:
    """Return an outcome as it is printed."""
    return f"{outcome}, preliminary" if preliminary else outcome


def plural(outcome: Outcome, count: int) -> str:
    """Return an outcome as the verb of `count` claims or comparisons.

    >>> plural("holds", 2), plural("does not hold", 1)
    ('hold', 'does not hold')
    """
    return {"holds": "hold", "does not hold": "do not hold"}.get(outcome, outcome) if count > 1 else outcome
