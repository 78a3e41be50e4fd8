"""What our runs say to the paper's claims, comparison by comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol as Interface

from pbwn_repro.paper import Alike, BestSetting, Better, Claim, Column, Grows, Higher, MostlyBest, NotWorse, claims_on
from pbwn_repro.report.comparing import (
    Comparison,
    Values,
    compare,
    compare_numbers,
    decide,
    level_of,
    moments_of,
    one_sided,
)
from pbwn_repro.report.layout import Layout, Row
from pbwn_repro.report.model import Outcome, Verdict
from pbwn_repro.report.statistics import Interval, Moments, contrast, mean
from pbwn_repro.report.wording import digits, runs, sentence, span


@dataclass(frozen=True)
class Search:
    """The best value, those that were tried, and those that still have no run."""

    best: float
    tried: tuple[float, ...]
    open: tuple[float, ...]


class Grid(Interface):
    """Where values stand: by the key of a row and by column."""

    layout: Layout

    def values(self, row: str, column: Column) -> Values:
        """What the runs of a cell gave, by seed."""

    def diverged(self, row: str, column: Column) -> int:
        """How many runs of a cell diverged."""

    def search(self, row: str, column: Column, name: str) -> Search | None:
        """What a search in a cell found."""


def verdicts(artefact: str, grid: Grid) -> tuple[Verdict, ...]:
    """The verdicts on all claims that the paper makes of an artefact; at least one for each."""
    found = []
    for claim in claims_on(artefact):
        found += list(_on(claim, grid)) or [undecided(claim, "No runs to decide this yet.")]
    return tuple(found)


def undecided(claim: Claim, why: str) -> Verdict:
    """The verdict on a claim that nothing was compared for."""
    return Verdict(claim, "not enough runs", None, None, None, (0, 0), why)


def _on(claim: Claim, grid: Grid) -> Iterator[Verdict]:
    criterion = claim.criterion
    if isinstance(criterion, Better | Higher | NotWorse):
        pairs = [(row, against) for row in criterion.rows for against in criterion.than]
        yield from _comparisons(claim, criterion, pairs, grid)
    elif isinstance(criterion, Alike):
        yield from _comparisons(claim, criterion, list(combinations(criterion.rows, 2)), grid)
    elif isinstance(criterion, Grows):
        yield from _growth(claim, criterion, grid)
    elif isinstance(criterion, MostlyBest):
        yield from _tally(claim, criterion, grid)
    elif isinstance(criterion, BestSetting):
        yield from _best_settings(claim, criterion, grid)


def _comparisons(claim: Claim, criterion: Comparison, pairs: list[tuple[str, str]], grid: Grid) -> Iterator[Verdict]:
    # A figure has no column for what a claim counts: there is one setting of each row, whatever is counted.
    columns = grid.layout.columns if grid.layout.paper else (Column("", measure=criterion.measure),)
    for column in columns:
        for row, against in pairs:
            ours, theirs = grid.values(row, column), grid.values(against, column)
            if ours or theirs:
                yield _compare(claim, criterion, row, against, column, ours, theirs, grid)


def _compare(
    claim: Claim,
    criterion: Comparison,
    row: str,
    against: str,
    column: Column,
    ours: Values,
    theirs: Values,
    grid: Grid,
) -> Verdict:
    compared = compare(ours, theirs, criterion.interval)
    interval, level = compared.interval, level_of(ours, theirs)
    difference = interval.difference if interval else None
    if interval is None and ours and theirs:
        difference = mean(list(ours.values())) - mean(list(theirs.values()))
    outcome = decide(criterion, interval, compared.counts, level) if interval else "not enough runs"
    names = (grid.layout.title(row), grid.layout.title(against), column.title)
    words = sentence(
        *(criterion, names, compared, outcome),
        difference=difference,
        level=level,
        measure=column.measure,
    )
    diverged = grid.diverged(row, column) + grid.diverged(against, column)
    if diverged:
        words += f" Diverged and not in it: {diverged} more."
    return Verdict(
        *(claim, outcome, difference),
        *((interval.low, interval.high) if interval else (None, None)),
        *(compared.counts, words, *names),
        _paper_interval(row, against, column, grid),
    )


def _growth(claim: Claim, criterion: Grows, grid: Grid) -> Iterator[Verdict]:
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


_GROWTH = (1, -1, -1, 1)  # (against - row) in the last column, minus the same in the first


def _tally(claim: Claim, criterion: MostlyBest, grid: Grid) -> Iterator[Verdict]:
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


def _best_settings(claim: Claim, criterion: BestSetting, grid: Grid) -> Iterator[Verdict]:
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


def _paper_interval(row: str, against: str, column: Column, grid: Grid) -> Interval | None:
    if column not in grid.layout.columns:
        return None
    return compare_numbers(*(grid.layout.number(Row(key, ""), column) for key in (row, against)))


def _paper_growth(cells: list[tuple[str, Column]], grid: Grid) -> Interval | None:
    samples = [moments_of(grid.layout.number(Row(key, ""), column)) for key, column in cells]
    return contrast([sample for sample in samples if sample], _GROWTH) if all(samples) else None
