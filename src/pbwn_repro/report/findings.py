"""The few findings that a reader should see first: for the cards of the page, and for 'Measured' in the README.

Which comparisons these are is decided here, once, and not by how they came out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pbwn_repro.catalog import Column
from pbwn_repro.catalog.figure_2 import BEST_RATE
from pbwn_repro.catalog.table_5 import SMALL_BATCHES
from pbwn_repro.metrics import METRICS
from pbwn_repro.report.cells import by_seed
from pbwn_repro.report.curves import search_curve
from pbwn_repro.report.model import Plot, Report, Section, Summary, in_words
from pbwn_repro.report.statistics import Interval, finite, mean, span

LADDER, MLP, COST = "table-8", "figure-2a", "table-5"
_WITH, _WITHOUT, _START = "pbwn", "normal", "unit-start"
_FEWEST = 3  # runs of each side, below which a difference is no finding


@dataclass(frozen=True)
class Finding:
    """One comparison of PBWN with training without it.

    Args:
        what: what was trained or timed.
        value, beside: ours with PBWN, and what stands against it, with their units.
        paper: the paper's numbers for the same.
        basis: how many runs, at which scale.
        anchor: the section that it comes from.
    """

    what: str
    value: str
    beside: str
    paper: str
    basis: str
    anchor: str

    @property
    def sentence(self) -> str:
        """The finding as one line of text, Markdown allowed."""
        comma = "" if self.beside.startswith("of ") else ","
        return f"{self.what}: **{self.value}**{comma} {self.beside} ({self.basis}). {self.paper}".rstrip()


def findings(report: Report) -> list[Finding]:
    """The findings that there are runs for: semi-supervised learning, what a step costs, the network of figure 2."""
    # Sections of one artefact come largest scale first: that one stays.
    shown = {each.artefact.name: each for each in reversed(report.shown) if each.has_results and not each.variant}
    made = {LADDER: _ladder, COST: _cost, MLP: _mlp}
    return [finding for name, find in made.items() if name in shown for finding in find(shown[name])]


def cards(report: Report) -> list[Finding]:
    """The first finding of each table or figure."""
    found = findings(report)
    return [each for index, each in enumerate(found) if each.anchor not in {before.anchor for before in found[:index]}]


def learning_rates(report: Report) -> list[Plot]:
    """The test error over the learning rate in figure 2's networks: without, from unit norms alone, and with PBWN."""
    sections = [each for each in report.shown if each.artefact.name == MLP and each.scale == "paper"]
    return [plot for section in sections if (plot := _learning_rates(section))]


def _learning_rates(section: Section) -> Plot | None:
    metric, rows = METRICS["test_error"], {row.key: row for row in section.table.rows} if section.table else {}
    curves = []
    for row in (rows[key] for key in (_WITHOUT, _START, _WITH) if key in rows):
        mine = section.ended[section.ended.method == row.key]
        values = {float(rate): by_seed(runs, metric) for rate, runs in mine.groupby("lr")}
        curves += [search_curve(row, values, common=False)] if len(values) > 1 else []
    if len(curves) < 2:
        return None
    layers = {"authors": "six"}.get(section.variant.get("sizes", ""), "four")
    return Plot(
        f"learning-rate-{section.anchor}",
        f"MLP on MNIST, {layers} layers",
        "learning rate",
        metric.label,
        tuple(curves),
        x_log=True,
        y_log=True,
        main=True,
    )


def _ladder(section: Section) -> Iterator[Finding]:
    """With and without PBWN, for each number of labels."""
    for column in section.table.columns if section.table else ():
        what = f"Ladder network on MNIST with {column.title}, test error"
        yield from _with_and_without(section, column, what, _of_the_paper(section, column))


def _mlp(section: Section) -> Iterator[Finding]:
    """At each method's best learning rate, then at the paper's."""
    what = "MLP on MNIST at each method's best learning rate, test error"
    columns = [column for column in section.table.columns if column.metric == "test_error"] if section.table else []
    at_stated = [_summary(section, key, column) for column in columns[1:2] for key in (_WITH, _WITHOUT)]
    numbers = [_percent(summary) for summary in at_stated if summary]
    paper = f"At the paper's rate of {BEST_RATE:g}: {numbers[0]}, {numbers[1]} without." if len(numbers) == 2 else ""
    for column in columns[:1]:
        yield from _with_and_without(section, column, what, paper)


def _with_and_without(section: Section, column: Column, what: str, paper: str) -> Iterator[Finding]:
    """A column's finding, where both have runs enough, and the control that starts alike and then trains freely."""
    ours, theirs, start = (_summary(section, key, column) for key in (_WITH, _WITHOUT, _START))
    if ours is None or theirs is None or min(ours.count, theirs.count) < _FEWEST:
        return
    value, beside = _at_rate(section, ours), f"{_at_rate(section, theirs)} without"
    if start is not None and start.count >= _FEWEST:
        beside += f", {_at_rate(section, start)} with unit norms at the start only{_start_at(section, ours.chosen)}"
    yield Finding(what, value, beside, paper, _runs(section, column, ours, theirs), section.anchor)


def _at_rate(section: Section, summary: Summary) -> str:
    """The number, with the learning rate where that was searched."""
    return _percent(summary) + (f" (rate {summary.chosen['lr']:g})" if section.artefact.name == MLP else "")


def _start_at(section: Section, chosen: Mapping[str, Any]) -> str:
    """What the control gives at PBWN's rate, where some of its runs diverge there and so another is its best."""
    runs = section.ended[(section.ended.method == _START) & (section.ended.lr == chosen["lr"])]
    values = by_seed(runs, METRICS["test_error"])
    ended = finite(values)
    if not ended or len(ended) == len(values):
        return ""
    lost = len(values) - len(ended)
    return (
        f" (at rate {chosen['lr']:g}: {mean(list(ended.values())):.2f} % with {len(ended)} of {len(values)} seeds, "
        f"{lost} {'diverges' if lost == 1 else 'diverge'})"
    )


def _cost(section: Section) -> Iterator[Finding]:
    """The time of the projection itself, and the paper's extra time of whole trainings, over the networks timed."""
    assert section.table is not None
    columns = section.table.columns
    own = [summary for column in columns if column.metric == "own" and (summary := _summary(section, _WITH, column))]
    batches = (
        f"batch {SMALL_BATCHES[section.scale]}" if section.scale and section.scale in SMALL_BATCHES else "full batches"
    )
    over_normal = [section.table.cells[_WITH, column].paper for column in columns if column.metric == "relative"]
    if not own:
        return
    has_numba = any("numba" in environment.get("packages", {}) for environment in section.environments)
    yield Finding(
        what="Time of the projection in a training step",
        value=f"{_span([summary.mean for summary in own])} %",
        beside="of a step without it",
        paper=f"In the paper PBWN adds {_span([number.value for number in over_normal if number])} % to the training "
        "time, on a Tesla K80 at batch 64 and 128.",
        basis=f"{len(own)} networks on a CPU at {batches}, "
        f"{'compiled' if has_numba else 'torch'} path, medians of {own[0].count} rounds; {section.scale} scale",
        anchor=section.anchor,
    )


def _summary(section: Section, key: str, column: Column) -> Summary | None:
    assert section.table is not None
    cell = section.table.cells.get((key, column))
    return cell.ours if cell and cell.ours and cell.ours.values else None


def _percent(summary: Summary) -> str:
    """The mean; before it the median where a few failed runs carry the mean."""
    apart = summary.count > 2 and abs(summary.median - summary.mean) > 0.1 * summary.mean
    decimals = 2 if summary.decimals is None else min(2, summary.decimals)
    average = f"{summary.mean:.{decimals}f} %"
    return f"{summary.median:.2f} % median, {average} mean" if apart else average


def _of_the_paper(section: Section, column: Column) -> str:
    assert section.table is not None
    ours, theirs = (section.table.cells[key, column].paper for key in (_WITH, _WITHOUT))
    if ours is None or theirs is None:
        return ""
    seeds = f", {ours.seeds} seeds" if ours.seeds else ""
    return f"Paper: {ours.text or ours.value} % and {theirs.text or theirs.value} %{seeds}."


def _runs(section: Section, column: Column, ours: Summary, theirs: Summary) -> str:
    counts = {ours.count, theirs.count}
    count = f"{ours.count}" if len(counts) == 1 else f"{ours.count} and {theirs.count}"
    return f"{count} seeds{_paired(section, column)}; {section.scale} scale"


def _paired(section: Section, column: Column) -> str:
    """With how many seeds PBWN has the lower value, the interval of the difference and the verdict, if there is one."""
    assert section.table is not None
    titles = {row.key: row.title for row in section.table.rows}
    sides = (titles[_WITH], titles[_WITHOUT], column.title)
    for verdict in section.verdicts:
        if (
            (verdict.row, verdict.against, verdict.column) == sides
            and verdict.low is not None
            and verdict.high is not None
        ):
            lower, pairs = sum(dot < 0 for dot in verdict.dots), len(verdict.dots)
            seeds = "all of them" if lower == pairs else f"{lower} of {pairs}"
            known = span(Interval(verdict.difference or 0.0, verdict.low, verdict.high))
            is_preliminary = verdict.preliminary and verdict.outcome != "undecided"
            verdict_words = in_words(verdict.outcome, preliminary=is_preliminary)
            return f", lower with {seeds}; difference, {known} points: {verdict_words}"
    return ""


def _span(values: Sequence[float]) -> str:
    low, high = (f"{value:.0f}" if value >= 10 else f"{value:#.2g}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
