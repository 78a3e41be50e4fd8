"""Verdicts on what a row does by itself: against quoted numbers, at each setting of a search, within bounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pbwn_repro.catalog import Column
from pbwn_repro.catalog.claims import BetterThanQuoted, Claim, Trains, Wider
from pbwn_repro.metrics import METRICS, Metric
from pbwn_repro.report.cells import SETTINGS, Cells
from pbwn_repro.report.model import Outcome, Verdict
from pbwn_repro.report.statistics import (
    FEW,
    Compared,
    Interval,
    Values,
    confidences,
    digits,
    diverging,
    mean,
    paired,
    span,
)


def against_quoted(claim: Claim, criterion: BetterThanQuoted, cells: Cells) -> Iterator[Verdict]:
    """The mean of ours, with its interval, against each number that the table quotes; those stand as printed."""
    found = [
        (list(cells.values(row, column).values()), number.value, (cells.title(row), cells.title(other), column.title))
        for column in cells.columns_for(criterion.metric)
        for row in criterion.rows
        for other in criterion.than
        if (number := cells.number(other, column))
    ]
    begun = [each for each in found if each[0]]
    for values, quoted, names in begun:
        yield _quoted(claim, values, quoted, names, len(begun))


def _quoted(claim: Claim, values: list[float], quoted: float, names: tuple[str, str, str], number: int) -> Verdict:
    differences = [value - quoted for value in values]
    interval, strict = (
        paired(differences, confidence) if len(values) > 1 else None for confidence in confidences(number)
    )
    outcome, difference = _below_zero(interval), mean(differences)
    amount = f"{digits(abs(difference), interval)} points {'lower' if difference < 0 else 'higher'}"
    limits = span(interval) if interval else "one run: an interval needs two"
    words = f"The test error of {names[0]} at {names[2]} is {amount} than the {quoted:g} of {names[1]} ({limits})."
    compared = Compared(difference, interval, (len(values), len(values)), dots=tuple(differences))
    firm, few = _below_zero(strict) == outcome, len(values) < FEW
    return Verdict.on(claim, outcome, words, compared, names, firm=firm, preliminary=few, gap=abs(difference))


def _below_zero(interval: Interval | None) -> Outcome:
    if interval is None or interval.contains_zero or interval.low == interval.high:
        return "not enough runs"
    return "holds" if interval.high < 0 else "does not hold"


def trains(claim: Claim, criterion: Trains, cells: Cells) -> Iterator[Verdict]:
    """Whether every run at every searched setting ends below the limit."""
    for column in cells.columns_for(criterion.metric):
        if criterion.columns and column.value not in criterion.columns:
            continue
        for row in criterion.rows:
            found = at_settings(cells, row, column, criterion.name)
            if not any(found.values()):
                continue
            trained = [value for value, runs in found.items() if runs and max(runs.values()) < criterion.below]
            failed = [value for value, runs in found.items() if runs and value not in trained]
            still_open = [value for value, runs in found.items() if not runs]
            title, what = cells.title(row), SETTINGS.get(criterion.name, criterion.name)
            words = f"{title} trains at {len(trained)} of {len(found)} {what}s at {column.title}"
            words += f", not at {listed(failed)}" if failed else ""
            words += f"; not run: {listed(still_open)}" if still_open else ""
            outcome: Outcome = "does not hold" if failed else "not enough runs" if still_open else "holds"
            least = min(map(len, found.values()))
            compared = Compared(None, None, (least, least))
            yield Verdict.on(claim, outcome, f"{words}.", compared, (title, "", column.title), preliminary=least < FEW)


def wider(claim: Claim, criterion: Wider, cells: Cells) -> Iterator[Verdict]:
    """Whether a row is good at more of the searched settings than another."""
    metric = METRICS[criterion.metric]
    for column in cells.columns_for(criterion.metric):
        rows = (*criterion.rows, *criterion.than)
        found = {row: at_settings(cells, row, column, criterion.name) for row in rows}
        best = best_mean(found, metric)
        if best is None:
            continue
        for row in criterion.rows:
            for other in criterion.than:
                if any(found[row].values()) and any(found[other].values()):
                    yield _wider(claim, criterion, cells, column, found, (row, other), best)


def _wider(
    claim: Claim,
    criterion: Wider,
    cells: Cells,
    column: Column,
    found: Mapping[str, Mapping[float, Values]],
    pair: tuple[str, str],
    best: float,
) -> Verdict:
    metric = METRICS[criterion.metric]
    ours, theirs = (good_settings(found[row], metric, best, criterion.margin) for row in pair)
    complete = all(runs for row in pair for runs in found[row].values())
    names = (cells.title(pair[0]), cells.title(pair[1]), column.title)
    what = SETTINGS.get(criterion.name, criterion.name)
    words = (
        f"At {column.title}, {names[0]} is within {criterion.margin:g} {metric.points} of the {metric.lowest} "
        f"{metric.words} ({best:.3g}) at {listed(ours) or 'none'}, {names[1]} at {listed(theirs) or 'none'}, of the "
        f"{what}s {listed(found[pair[0]])}{'' if complete else ' (not all of them run)'}."
    )
    outcome: Outcome = "holds" if len(ours) > len(theirs) else "does not hold"
    least = min(len(runs) for row in pair for runs in found[row].values())
    compared = Compared(float(len(ours) - len(theirs)), None, (least, least))
    return Verdict.on(
        claim, outcome if complete else "not enough runs", words, compared, names, preliminary=least < FEW
    )


def at_settings(cells: Cells, row: str, column: Column, name: str) -> dict[float, Values]:
    """What the runs of a row in a column gave at each value of what was searched, also where there are none."""
    found = cells.tried(row, column.value, name)
    return {value: found.get(value, {}) for value in sorted(cells.to_try(name))}


def best_mean(found: Mapping[str, Mapping[float, Values]], metric: Metric) -> float | None:
    """The best mean of all rows at all settings, without those at which a run diverged."""
    means = [
        mean(list(runs.values())) for row in found.values() for runs in row.values() if runs and not diverging(runs)
    ]
    return min(means, key=lambda value: metric.sign * value) if means else None


def good_settings(found: Mapping[float, Values], metric: Metric, best: float, margin: float) -> list[float]:
    """The settings at which no run diverged and whose mean is no further than `margin` from the best."""
    return [
        value
        for value, runs in found.items()
        if runs and not diverging(runs) and metric.sign * (mean(list(runs.values())) - best) <= margin
    ]


def listed(values: Iterable[float]) -> str:
    """Settings in a sentence."""
    return ", ".join(f"{value:g}" for value in values)
