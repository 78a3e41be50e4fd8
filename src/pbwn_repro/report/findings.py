"""The findings shown first: in the cards of the page, the short summary of the report, and the README.

The comparisons are fixed here, whatever their outcome.
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
from pbwn_repro.report.statistics import Interval, finite, mean, with_interval

LADDER, MLP, COST = "table-8", "figure-2a", "table-5"
_WITH, _WITHOUT, _START = "pbwn", "normal", "unit-start"
_FEWEST = 3  # runs per side below which a difference is not reported as a finding


@dataclass(frozen=True)
class Finding:
    """One comparison of training with PBWN and without. Fields that do not apply are empty.

    Args:
        what: what was trained or timed.
        value: our result with PBWN, with its unit.
        without: the same without PBWN.
        start: the same with unit norms at the start only.
        difference: with PBWN minus without, and its interval.
        verdict: the outcome of the claim that PBWN is lower.
        paper: the paper's numbers, with and without.
        basis: the scale and the number of runs.
        anchor: the section that it comes from.
        is_lowest: whether none of our other results is lower.
    """

    what: str
    value: str
    without: str
    start: str
    difference: str
    verdict: str
    paper: str
    basis: str
    anchor: str
    is_lowest: bool

    @property
    def beside(self) -> str:
        """The results without PBWN that the value is compared with."""
        start, dot, note = self.start.partition(". ")
        others = {"without": self.without, "with unit norms at the start only": start}
        return ", ".join(f"{number} {words}" for words, number in others.items() if number) + dot + note


def findings_table(found: Sequence[Finding], *, intervals: bool = True) -> str:
    """Return findings as a Markdown table without empty columns; bold marks values with PBWN that are our lowest."""
    columns = {
        "": [each.what for each in found],
        "with PBWN": [f"**{each.value}**" if each.is_lowest else each.value for each in found],
        "without": [each.without for each in found],
        "unit-norm start only": [each.start for each in found],
        "difference, 95 % interval": [each.difference for each in found] if intervals else [],
        "paper: with, without": [each.paper for each in found],
        "runs": [f"{each.basis}; verdict: {each.verdict}" if each.verdict else each.basis for each in found],
    }
    kept = {name: cells for name, cells in columns.items() if any(cells)}
    lines = [
        list(kept),
        ["---"] * len(kept),
        *([cell or "-" for cell in row] for row in zip(*kept.values(), strict=True)),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def findings(report: Report) -> list[Finding]:
    """Return the findings that have runs: semi-supervised learning, the network of figure 2, the cost of a step."""
    # The sections of an artefact start with the largest scale, which the reversed order keeps.
    shown = {each.artefact.name: each for each in reversed(report.shown) if each.has_results and not each.variant}
    finders = {LADDER: _ladder, MLP: _mlp, COST: _cost}
    return [finding for name, find in finders.items() if name in shown for finding in find(shown[name])]


def cards(report: Report) -> list[Finding]:
    """Return the first finding of each table or figure."""
    first: dict[str, Finding] = {}
    for finding in findings(report):
        first.setdefault(finding.anchor, finding)
    return list(first.values())


def learning_rates(report: Report) -> list[Plot]:
    """Return plots of the test error over the learning rate in figure 2's networks: with PBWN, and the two controls."""
    sections = [each for each in report.shown if each.artefact.name == MLP and each.scale == "paper"]
    return [plot for section in sections if (plot := _learning_rates(section))]


def _learning_rates(section: Section) -> Plot | None:
    metric, rows = METRICS["test_error"], {row.key: row for row in section.table.rows} if section.table else {}
    curves = []
    for row in (rows[key] for key in (_WITHOUT, _START, _WITH) if key in rows):
        of_method = section.ended[section.ended.method == row.key]
        values = {float(rate): by_seed(runs, metric) for rate, runs in of_method.groupby("lr")}
        curves += [search_curve(row, values, common=False)] if len(values) > 1 else []
    if len(curves) < 2:
        return None
    layers = "six" if section.variant.get("sizes") == "authors" else "four"
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
    """Yield the difference with and without PBWN for each number of labels."""
    for column in section.table.columns if section.table else ():
        yield from _with_and_without(section, column, f"Ladder on MNIST, {column.title}: test error")


def _mlp(section: Section) -> Iterator[Finding]:
    """Yield the difference at each method's best learning rate, then at the paper's."""
    columns = [column for column in section.table.columns if column.metric == "test_error"] if section.table else []
    for column, rate in zip(columns, ("each method's best rate", f"the paper's rate {BEST_RATE:g}"), strict=False):
        yield from _with_and_without(section, column, f"MLP on MNIST, {rate}: test error")


def _with_and_without(section: Section, column: Column, what: str) -> Iterator[Finding]:
    """Yield the finding of a column if both sides have enough runs, with the control that starts at unit norms."""
    ours, theirs, start = (_summary(section, key, column) for key in (_WITH, _WITHOUT, _START))
    if ours is None or theirs is None or min(ours.count, theirs.count) < _FEWEST:
        return
    rates_differ = ours.chosen.get("lr") != theirs.chosen.get("lr")
    value, without = (_percent(summary, with_rate=rates_differ) for summary in (ours, theirs))
    control = ""
    if start is not None and start.count >= _FEWEST:
        control = _percent(start, with_rate=rates_differ) + _start_at(section, ours.chosen)
    difference, verdict, lower = _compared(section, column)
    counts = " and ".join(str(count) for count in dict.fromkeys((ours.count, theirs.count)))
    yield Finding(
        what=what,
        value=value,
        without=without,
        start=control,
        difference=difference,
        verdict=verdict,
        paper=_of_the_paper(section, column),
        basis=f"{section.scale} scale, {counts} seeds{lower}",
        anchor=section.anchor,
        is_lowest=ours.mean <= min(other.mean for other in (theirs, start if control else None) if other is not None),
    )


def _start_at(section: Section, chosen: Mapping[str, Any]) -> str:
    """Return the result of the control at PBWN's rate if some of its runs diverge there, which excludes that rate."""
    if "lr" not in chosen:
        return ""
    runs = section.ended[(section.ended.method == _START) & (section.ended.lr == chosen["lr"])]
    values = by_seed(runs, METRICS["test_error"])
    ended = finite(values)
    if not ended or len(ended) == len(values):
        return ""
    diverged = len(values) - len(ended)
    average = mean(list(ended.values()))
    return f". At rate {chosen['lr']:g}, {diverged} of {len(values)} runs diverged; the others average {average:.2f} %"


def _cost(section: Section) -> Iterator[Finding]:
    """Yield the time of the projection, and the extra time of whole trainings in the paper, over the timed networks."""
    assert section.table is not None
    columns = section.table.columns
    own = [summary for column in columns if column.metric == "own" and (summary := _summary(section, _WITH, column))]
    batches = (
        f"batch size {SMALL_BATCHES[section.scale]}"
        if section.scale and section.scale in SMALL_BATCHES
        else "the paper's batch sizes"
    )
    over_normal = [section.table.cells[_WITH, column].paper for column in columns if column.metric == "relative"]
    if not own:
        return
    has_numba = any("numba" in environment.get("packages", {}) for environment in section.environments)
    yield Finding(
        what="Time that the projection adds to a training step",
        value=f"{_span([summary.mean for summary in own])} %",
        without="",
        start="",
        difference="",
        verdict="",
        paper=f"{_span([number.value for number in over_normal if number])} % (Tesla K80)",
        basis=f"{section.scale} scale, {len(own)} networks on a CPU at {batches}, "
        f"{'compiled' if has_numba else 'torch'} path, medians of {own[0].count} rounds",
        anchor=section.anchor,
        is_lowest=True,
    )


def _summary(section: Section, key: str, column: Column) -> Summary | None:
    assert section.table is not None
    cell = section.table.cells.get((key, column))
    return cell.ours if cell and cell.ours and cell.ours.values else None


def _percent(summary: Summary, *, with_rate: bool) -> str:
    """Return the mean, with the median if a few failed runs dominate the mean, and with the rate if requested."""
    is_skewed = summary.count > 2 and abs(summary.median - summary.mean) > 0.1 * summary.mean
    decimals = 2 if summary.decimals is None else min(2, summary.decimals)
    notes = [f"rate {summary.chosen['lr']:g}"] if with_rate else []
    notes += [f"median {summary.median:.2f} %"] if is_skewed else []
    return f"{summary.mean:.{decimals}f} %" + (f" ({', '.join(notes)})" if notes else "")


def _of_the_paper(section: Section, column: Column) -> str:
    assert section.table is not None
    ours, theirs = (section.table.cells[key, column].paper for key in (_WITH, _WITHOUT))
    if ours is None or theirs is None:
        return ""
    seeds = f" ({ours.seeds} seeds)" if ours.seeds else ""
    return f"{ours.text or ours.value}, {theirs.text or theirs.value} %{seeds}"


def _compared(section: Section, column: Column) -> tuple[str, str, str]:
    """Return the difference with its interval, the verdict, and for how many seeds PBWN has the lower value."""
    assert section.table is not None
    titles = {row.key: row.title for row in section.table.rows}
    names = (titles[_WITH], titles[_WITHOUT], column.title)
    for verdict in section.verdicts:
        if (verdict.row, verdict.against, verdict.column) != names or verdict.low is None or verdict.high is None:
            continue
        is_preliminary = verdict.preliminary and verdict.outcome != "undecided"
        words = in_words(verdict.outcome, preliminary=is_preliminary)
        lower, pairs = sum(dot < 0 for dot in verdict.dots), len(verdict.dots)
        seeds = "all" if lower == pairs else f"{lower} of {pairs}"
        difference = with_interval(Interval(verdict.difference or 0.0, verdict.low, verdict.high))
        return difference, words, f", PBWN lower in {seeds}"
    return "", "", ""


def _span(values: Sequence[float]) -> str:
    low, high = (f"{value:.0f}" if value >= 10 else f"{value:#.2g}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
