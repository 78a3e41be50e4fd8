"""What our runs say to the paper's claims, comparison by comparison."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import combinations

from pbwn_repro.paper import Alike, BestSetting, Better, Claim, Column, Grows, Higher, MostlyBest, NotWorse, claims_on
from pbwn_repro.report.collecting.layout import Row
from pbwn_repro.report.model import Outcome, Verdict
from pbwn_repro.report.statistics import Interval, mean
from pbwn_repro.report.verdicts.comparing import Comparison, compare, compare_numbers, decide, level_of
from pbwn_repro.report.verdicts.grid import Grid
from pbwn_repro.report.verdicts.losses import with_losses
from pbwn_repro.report.verdicts.trends import best_settings, growth, tally
from pbwn_repro.report.verdicts.wording import sentence


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
        yield from growth(claim, criterion, grid)
    elif isinstance(criterion, MostlyBest):
        yield from tally(claim, criterion, grid)
    elif isinstance(criterion, BestSetting):
        yield from best_settings(claim, criterion, grid)


def _comparisons(claim: Claim, criterion: Comparison, pairs: list[tuple[str, str]], grid: Grid) -> Iterator[Verdict]:
    """A verdict for each pair in each column that has runs, and one for all columns that have none."""
    rows = {row for pair in pairs for row in pair}
    columns = grid.columns(criterion.measure, at_one_setting=isinstance(criterion, Alike))
    begun = [column for column in columns if any(grid.has_runs(row, column) for row in rows)]
    compared = (_compare(claim, criterion, *pair, column, grid) for column in begun for pair in pairs)
    yield from _distinct(compared)
    left = ", ".join(column.title for column in columns if column not in begun)
    if begun and left:
        words = f"No runs yet at {left}, of which the claim speaks too."
        yield replace(undecided(claim, words), column=left)


def _distinct(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    """Without those that repeat one: where the paper's setting is the best of ours too, the runs are the same."""
    seen = set()
    for verdict in verdicts:
        said = (verdict.row, verdict.against, verdict.outcome, verdict.difference, verdict.low, verdict.high)
        if verdict.difference is None or said not in seen:
            seen.add(said)
            yield verdict


def _compare(
    claim: Claim,
    criterion: Comparison,
    row: str,
    against: str,
    column: Column,
    grid: Grid,
) -> Verdict:
    ours, theirs = grid.values(row, column), grid.values(against, column)
    compared = compare(ours, theirs, criterion.interval)
    interval, level = compared.interval, level_of(ours, theirs)
    difference = interval.difference if interval else None
    if interval is None and ours and theirs:
        difference = mean(list(ours.values())) - mean(list(theirs.values()))
    outcome: Outcome = decide(criterion, interval, compared.counts, level) if interval else "not enough runs"
    names = (grid.layout.title(row), grid.layout.title(against), column.title)
    words = sentence(
        *(criterion, names, compared, outcome),
        difference=difference,
        level=level,
        measure=column.measure,
    )
    outcome, caution = _with_search(criterion, outcome, grid.tried(row, column), grid.tried(against, column))
    # A loss that diverges is no argument against a claim that it rises.
    spoken_for = {Higher: (), Alike: (row, against)}.get(type(criterion), (row,))
    outcome, lost = with_losses(outcome, [(row, column), (against, column)], spoken_for, grid)
    words += caution + lost
    low, high = (interval.low, interval.high) if interval else (None, None)
    paper = _paper_interval(row, against, column, grid)
    return Verdict(claim, outcome, difference, low, high, compared.counts, words, *names, paper)


def _with_search(
    criterion: Comparison, outcome: Outcome, mine: Collection[object], theirs: Collection[object]
) -> tuple[Outcome, str]:
    """The best of many settings is not compared with that of few, unless it was to be lower and is not all the same."""
    mine, theirs = set(mine), set(theirs)
    if not mine or not theirs or mine == theirs:
        return outcome, ""
    loses = outcome == "does not hold" and theirs < mine and isinstance(criterion, Better | NotWorse)
    words = f" It is the best of {len(mine)} and of {len(theirs)} settings"
    return ("does not hold", f"{words}.") if loses else ("not enough runs", f"{words}, not the same: no verdict.")


def _paper_interval(row: str, against: str, column: Column, grid: Grid) -> Interval | None:
    if column not in grid.layout.columns:
        return None
    return compare_numbers(*(grid.layout.number(Row(key, ""), column) for key in (row, against)))
