"""Claims on all cells of a row together: that a gain grows, that a row is mostly best, that a setting is the best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pbwn_repro.paper import BestSetting, Claim, Column, Grows, MostlyBest
from pbwn_repro.report.collecting.layout import Row
from pbwn_repro.report.model import Outcome, Verdict
from pbwn_repro.report.statistics import Interval, Moments, contrast, mean
from pbwn_repro.report.verdicts.comparing import moments_of, one_sided
from pbwn_repro.report.verdicts.grid import Grid
from pbwn_repro.report.verdicts.wording import digits, runs, span

_GROWTH = (1, -1, -1, 1)  # (against - row) in the last column, minus the same in the first


def growth(claim: Claim, criterion: Grows, grid: Grid) -> Iterator[Verdict]:
    """Whether the gain of each row is larger in the last column than in the first, of those that have runs."""
    for row in criterion.rows:
        both = [
            column for column in grid.layout.columns if grid.values(row, column) and grid.values(criterion.than, column)
        ]
        if not both:
            continue
        title, against = grid.layout.title(row), grid.layout.title(criterion.than)
        if len(both) < 2:
            words = f"Runs of {title} and {against} at {both[0].title} alone: growth needs two depths."
            yield Verdict(claim, "not enough runs", None, None, None, (0, 0), words, title, against)
            continue
        first, last = both[0], both[-1]
        cells = [(criterion.than, last), (row, last), (criterion.than, first), (row, first)]
        samples = [list(grid.values(*cell).values()) for cell in cells]
        counts = (min(map(len, samples[:2])), min(map(len, samples[2:])))
        place = f"{first.title} to {last.title}"
        if min(counts) < 2:
            words = f"The gain of {title} over {against} from {place}: {runs(counts)}, an interval needs two."
            yield Verdict(claim, "not enough runs", None, None, None, counts, words, title, against, place)
            continue
        interval = contrast([Moments.of(sample) for sample in samples], _GROWTH)
        outcome = one_sided(interval, counts, lower=False)
        change = f"{digits(abs(interval.difference))} points {'larger' if interval.difference > 0 else 'smaller'}"
        seen = "No difference seen: the" if interval.contains_zero else "The"
        words = (
            f"{seen} gain of {title} over {against} is {change} at {last.title} than at {first.title} "
            f"({span(interval)}; Welch's test, {runs(counts)})."
        )
        yield Verdict(
            *(claim, outcome, interval.difference, interval.low, interval.high, counts, words, title, against, place),
            _paper_growth(cells, grid),
        )


def tally(claim: Claim, criterion: MostlyBest, grid: Grid) -> Iterator[Verdict]:
    """In how many columns a row has the lowest mean."""
    columns = grid.layout.columns
    full = [column for column in columns if all(grid.values(row, column) for row in criterion.among)]
    if not full:
        return
    title = grid.layout.title(criterion.row)
    means = {column: {row: mean(list(grid.values(row, column).values())) for row in criterion.among} for column in full}
    best = [column for column in full if means[column][criterion.row] == min(means[column].values())]
    words = f"{title} has the lowest mean in {len(best)} of {len(full)} columns"
    least = min(len(grid.values(row, column)) for column in full for row in criterion.among)
    if 2 * len(full) <= len(columns):
        words += f"; {len(columns)} are needed"
        outcome: Outcome = "not enough runs"
    else:
        outcome = "holds" if 2 * len(best) > len(full) else "does not hold"
    yield Verdict(claim, outcome, None, None, None, (least, least), f"{words}.", title)


def best_settings(claim: Claim, criterion: BestSetting, grid: Grid) -> Iterator[Verdict]:
    """A search has one run a setting, seldom more: what it finds is said without an interval."""
    for row in criterion.rows:
        search = grid.search(row, Column(""), criterion.name)
        if search is None:
            continue
        title = grid.layout.title(row)
        outcome: Outcome = "holds" if search.best == criterion.value else "does not hold"
        words = f"{title} ends with the lowest training loss at {search.best:g}, of {_listed(search.tried)}."
        if search.open:
            outcome, words = "not enough runs", f"{words} Not finished: {_listed(search.open)}."
        yield Verdict(claim, outcome, None, None, None, (len(search.tried),) * 2, words, title)


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _paper_growth(cells: list[tuple[str, Column]], grid: Grid) -> Interval | None:
    samples = [moments_of(grid.layout.number(Row(key, ""), column)) for key, column in cells]
    return contrast([sample for sample in samples if sample], _GROWTH) if all(samples) else None
