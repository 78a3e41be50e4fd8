"""Claims on all cells of a row together: that a gain grows, that a row is mostly best, that a setting is the best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

from pbwn_repro.paper import BestSetting, Claim, Column, Grows, MostlyBest
from pbwn_repro.report.collecting.layout import Row
from pbwn_repro.report.model import Outcome, Verdict
from pbwn_repro.report.statistics import Interval, Moments, contrast, diverging, finite, mean, shared
from pbwn_repro.report.verdicts.comparing import Compared, Values, compare, moments_of, one_sided, says_nothing
from pbwn_repro.report.verdicts.grid import Grid
from pbwn_repro.report.verdicts.losses import with_losses
from pbwn_repro.report.verdicts.wording import NO_SPREAD, digits, runs, span

_GROWTH = (1, -1, -1, 1)  # (against - row) in the last column, minus the same in the first


def growth(claim: Claim, criterion: Grows, grid: Grid) -> Iterator[Verdict]:
    """Whether the gain of each row is larger in the last column than in the first."""
    for row in criterion.rows:
        both = [
            column
            for column in grid.columns(criterion.measure)
            if grid.has_runs(row, column) and grid.has_runs(criterion.than, column)
        ]
        if both:
            yield _growth(claim, criterion, row, both, grid)


def _growth(claim: Claim, criterion: Grows, row: str, begun: list[Column], grid: Grid) -> Verdict:
    title, against = grid.layout.title(row), grid.layout.title(criterion.than)
    first, *_, last = grid.columns(criterion.measure)
    if first not in begun or last not in begun:
        places = ", ".join(column.title for column in begun)
        words = f"The gain of {title} over {against} is known at {places}; this takes {first.title} and {last.title}."
        return Verdict(claim, "not enough runs", None, None, None, (0, 0), words, title, against)
    cells = [(criterion.than, last), (row, last), (criterion.than, first), (row, first)]
    samples = [list(grid.values(*cell).values()) for cell in cells]
    counts = (min(map(len, samples[:2])), min(map(len, samples[2:])))
    place = f"{first.title} to {last.title}"
    if min(counts) < 2:
        words = f"The gain of {title} over {against} from {place}: {runs(counts)}, an interval needs two."
        outcome, lost = with_losses("not enough runs", cells, (row,), grid)
        return Verdict(claim, outcome, None, None, None, counts, words + lost, title, against, place)
    interval = contrast([Moments.of(sample) for sample in samples], _GROWTH)
    change = f"{digits(abs(interval.difference))} points {'larger' if interval.difference > 0 else 'smaller'}"
    seen = "No significant difference: the" if interval.contains_zero else "The"
    words = (
        f"{seen} gain of {title} over {against} is {change} at {last.title} than at {first.title} "
        f"({span(interval)}; Welch's test, {runs(counts)}){f': {NO_SPREAD}' if says_nothing(interval, counts) else ''}."
    )
    outcome, lost = with_losses(one_sided(interval, counts, lower=False), cells, (row,), grid)
    return Verdict(
        *(claim, outcome, interval.difference, interval.low, interval.high, counts, words + lost, title, against),
        *(place, _paper_growth(cells, grid)),
    )


def tally(claim: Claim, criterion: MostlyBest, grid: Grid) -> Iterator[Verdict]:
    """In how many columns a row has the lowest mean; fewer runs that diverge are better than any mean."""
    columns = grid.columns(criterion.measure)
    full = [column for column in columns if all(grid.has_runs(row, column) for row in criterion.among)]
    if not full:
        return
    title = grid.layout.title(criterion.row)
    best = [column for column in full if _is_lowest(criterion, column, grid)]
    cells = [(row, column) for column in full for row in criterion.among]
    least = min(len(grid.values(*cell)) + grid.diverged(*cell) for cell in cells)
    words = f"{title} has the lowest mean in {len(best)} of {len(full)} columns"
    still_open = len(columns) - len(full)
    if still_open and 2 * len(best) <= len(columns) < 2 * (len(best) + still_open):
        words += f"; {still_open} of {len(columns)} are open"
        outcome: Outcome = "not enough runs"
    elif least < 2:
        words += ", but with one run in some"
        outcome = "not enough runs"
    else:
        outcome = "holds" if 2 * len(best) > len(columns) else "does not hold"
    lost = sum(grid.diverged(*cell) for cell in cells)
    words += f" (fewer runs that diverge come before a lower mean; {lost} of all diverged)" if lost else ""
    yield Verdict(claim, outcome, None, None, None, (least, least), f"{words}.", title)


def _is_lowest(criterion: MostlyBest, column: Column, grid: Grid) -> bool:
    def rank(row: str) -> tuple[float, float]:
        values, lost = list(grid.values(row, column).values()), grid.diverged(row, column)
        return lost / (lost + len(values)), mean(values) if values else inf

    return rank(criterion.row) == min(map(rank, criterion.among)) < (1, inf)


def best_settings(claim: Claim, criterion: BestSetting, grid: Grid) -> Iterator[Verdict]:
    """Whether the stated setting is better than each other that was searched; shown is the one that comes closest."""
    for row in criterion.rows:
        search = grid.search(row, Column(""), criterion.name)
        if search is None:
            continue
        title = grid.layout.title(row)
        words = f"{title} ends with the lowest training loss at {search.best:g}, of {_listed(search.tried)}"
        if search.open:
            words += f". Not finished: {_listed(search.open)}."
            yield Verdict(claim, "not enough runs", None, None, None, (0, 0), words, title)
            continue
        stated = search.tried[criterion.value]
        duels = [_duel(stated, values, rival) for rival, values in search.tried.items() if rival != criterion.value]
        hardest = max(duels, key=lambda duel: (_AGAINST.index(duel.outcome), duel.advantage))
        interval, counts = hardest.compared.interval, hardest.compared.counts
        low, high = (interval.low, interval.high) if interval else (None, None)
        column = f"{criterion.value:g} against {hardest.rival:g}"
        words += f": {_duel_in_words(hardest, criterion.value)}."
        yield Verdict(claim, hardest.outcome, hardest.difference, low, high, counts, words, title, "", column)


@dataclass(frozen=True)
class _Duel:
    """The stated setting against another one; of the runs of both, those that diverged."""

    rival: float
    outcome: Outcome
    difference: float | None
    compared: Compared
    lost: tuple[int, int]
    advantage: tuple[float, float]  # of the rival: the share of runs that it loses less, and by how much it is lower


_AGAINST: tuple[Outcome, ...] = ("holds", "not enough runs", "does not hold")  # by what they say against a claim


def _duel(stated: Values, other: Values, rival: float) -> _Duel:
    """Fewer runs that diverge win; where their shares are the same, the others are compared."""
    lost = (len(stated) - len(finite(stated)), len(other) - len(finite(other)))
    spared = diverging(stated) - diverging(other)
    counts = (len(stated), len(other))
    if spared != 0:
        outcome: Outcome = "holds" if spared < 0 else "does not hold"
        outcome = outcome if min(counts) > 1 else "not enough runs"
        return _Duel(rival, outcome, None, Compared(None, "", counts), lost, (spared, 0.0))
    stated, other = finite(stated), finite(other)
    if not stated:
        return _Duel(rival, "not enough runs", None, Compared(None, "", counts), lost, (0.0, -inf))
    compared = compare(stated, other, "paired")
    if compared.interval is None:
        ours, theirs = shared(stated, other), shared(other, stated)
        difference = mean(ours) - mean(theirs)
        compared = Compared(None, "", (len(ours), len(theirs)))
        return _Duel(rival, "not enough runs", difference, compared, lost, (0.0, difference))
    difference = compared.interval.difference
    outcome = one_sided(compared.interval, compared.counts, lower=True)
    return _Duel(rival, outcome, difference, compared, lost, (0.0, difference))


def _duel_in_words(duel: _Duel, stated: float) -> str:
    if duel.difference is None:
        one, other = duel.compared.counts
        return f"{duel.lost[0]} of {one} runs at {stated:g} and {duel.lost[1]} of {other} at {duel.rival:g} diverged"
    amount = f"{digits(abs(duel.difference))} {'lower' if duel.difference < 0 else 'higher'}"
    found = f"at {stated:g} it is {amount} than at {duel.rival:g}"
    if duel.compared.interval is None:
        return f"{found}, but with {runs(duel.compared.counts)}: an interval needs two a side"
    if duel.compared.interval.contains_zero:
        found = f"no significant difference, {found}"
    why = f": {NO_SPREAD}" if says_nothing(duel.compared.interval, duel.compared.counts) else ""
    return f"{found} ({span(duel.compared.interval)}; {duel.compared.kind}, {runs(duel.compared.counts)}){why}"


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _paper_growth(cells: list[tuple[str, Column]], grid: Grid) -> Interval | None:
    samples = [moments_of(grid.layout.number(Row(key, ""), column)) for key, column in cells]
    return contrast([sample for sample in samples if sample], _GROWTH) if all(samples) else None
