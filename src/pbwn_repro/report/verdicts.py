"""What the runs say to each claim of the paper: a function of the cells and the catalog, with intervals and in words.

A claim holds only if each of its comparisons does, which needs no correction for their number: to claim it wrongly, all
have to err. That it does not hold takes one comparison alone, so there their number counts: the interval with which one
speaks against the claim has the confidence 1 - 0.05 / n among n comparisons (Bonferroni's, which is the first step of
Holm's and the only one that matters for whether any speaks against it).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import inf, isclose, nan
from typing import Any

from pbwn_repro.catalog import Column, Number
from pbwn_repro.catalog.claims import (
    Alike,
    BestSetting,
    Better,
    BetterThanQuoted,
    Claim,
    Grows,
    Higher,
    MostlyBest,
    NotWorse,
    Trains,
    Wider,
)
from pbwn_repro.metrics import METRICS, Metric
from pbwn_repro.report.cells import SETTINGS, Cells
from pbwn_repro.report.model import Outcome, Verdict
from pbwn_repro.report.statistics import (
    ENOUGH,
    FEW,
    Compared,
    Interval,
    Moments,
    Values,
    compare,
    confidences,
    contrast,
    digits,
    diverging,
    finite,
    mean,
    paired,
    runs,
    shared,
    significant,
    span,
)

Comparison = Better | Higher | Alike | NotWorse
NO_SPREAD = "two runs that agree to the digit say nothing of the spread"
_GROWTH = (1, -1, -1, 1)  # (against - row) in the last column, minus the same in the first


def verdicts(cells: Cells) -> tuple[Verdict, ...]:
    """The verdicts on all claims that the paper makes of an artefact; at least one for each."""
    found: list[Verdict] = []
    for claim in cells.artefact.claims:
        compared = _DECIDED_BY[type(claim.criterion)](claim, claim.criterion, cells)
        found += list(compared) or [undecided(claim, "No runs to decide this yet.")]
    return tuple(found)


def undecided(claim: Claim, why: str) -> Verdict:
    """The verdict on a claim that nothing was compared for."""
    return Verdict(claim, "undecided", why)


# --- comparisons of two cells


def _comparisons(claim: Claim, criterion: Comparison, cells: Cells) -> Iterator[Verdict]:
    """A verdict for each pair in each column that has runs, and one for all columns that have none."""
    if isinstance(criterion, Alike):
        pairs = list(combinations(criterion.rows, 2))
    else:
        pairs = list(product(criterion.rows, criterion.than))
    rows = {row for pair in pairs for row in pair}
    columns = cells.columns_for(criterion.metric, at_one_setting=isinstance(criterion, Alike))
    begun = [column for column in columns if any(cells.at(row, column) for row in rows)]
    number = len(begun) * len(pairs)
    compared = (_compare(claim, criterion, *pair, column, cells, number) for column in begun for pair in pairs)
    yield from _distinct(compared)
    left = ", ".join(column.title for column in columns if column not in begun)
    if begun and left:
        yield replace(undecided(claim, f"The claim also covers {left}, where there are no runs yet."), column=left)


def _distinct(found: Iterable[Verdict]) -> Iterator[Verdict]:
    """Without those that repeat one: where the paper's setting is the best of ours too, the runs are the same."""
    seen = set()
    for verdict in found:
        said = (verdict.row, verdict.against, verdict.outcome, verdict.difference, verdict.low, verdict.high)
        if verdict.difference is None or said not in seen:
            seen.add(said)
            yield verdict


def _compare(
    claim: Claim, criterion: Comparison, row: str, against: str, column: Column, cells: Cells, number: int
) -> Verdict:
    ours, theirs = cells.values(row, column), cells.values(against, column)
    compared, strict = (compare(ours, theirs, confidence) for confidence in confidences(number))
    level, metric = level_of(ours, theirs), METRICS[column.metric]
    outcome = decide(criterion, compared.interval, compared.counts, level, metric)
    firm = decide(criterion, strict.interval, compared.counts, level, metric) == outcome
    names = (cells.title(row), cells.title(against), column.title)
    words = _sentence(criterion, names, compared, outcome, level, metric)
    tried = [chosen.tried if (chosen := cells.at(key, column)) else frozenset() for key in (row, against)]
    searched = not cells.stated_value or column.value != cells.stated_value  # the paper's own setting is not
    outcome, caution = _with_search(criterion, outcome, *tried)
    # A loss that diverges is no argument against a claim that it rises.
    spoken_for = {Higher: (), Alike: (row, against)}.get(type(criterion), (row,))
    outcome, lost, is_lost = _with_losses(outcome, [(row, column), (against, column)], spoken_for, cells)
    return Verdict.on(
        *(claim, outcome, words + caution + lost, compared, names),
        firm=firm or is_lost,
        preliminary=min(compared.counts) < FEW or (searched and min(map(len, tried)) < cells.possible),
        gap=_gap(criterion, compared.difference, level),
        beside=_beside(criterion, row, against, column, cells),
        paper=compare_numbers(*(cells.number(key, column) for key in (row, against))),
    )


def decide(
    criterion: Comparison, interval: Interval | None, counts: tuple[int, int], level: float, metric: Metric
) -> Outcome:
    """What an interval says to a criterion; `level` is the mean that a relative margin is a share of."""
    if isinstance(criterion, Better | Higher):
        return one_sided(interval, counts, lower=isinstance(criterion, Better) and metric.lower_is_better)
    if interval is not None and says_nothing(interval, counts):
        return "undecided"
    margin = margin_of(criterion, level)
    return between(interval, -inf if isinstance(criterion, NotWorse) else -margin, margin)


def one_sided(interval: Interval | None, counts: tuple[int, int], *, lower: bool) -> Outcome:
    """Whether a difference is on the right side of zero; an interval that contains zero speaks for neither side."""
    if interval is None or says_nothing(interval, counts) or interval.contains_zero:
        return "undecided"
    return "holds" if (interval.high < 0) == lower else "does not hold"


def between(interval: Interval | None, least: float, most: float) -> Outcome:
    """Whether a whole interval lies between two bounds; one that contains a bound speaks for neither side."""
    if interval is not None and least <= interval.low and interval.high <= most:
        return "holds"
    outside = interval is not None and (interval.high < least or interval.low > most)
    return "does not hold" if outside else "undecided"


def says_nothing(interval: Interval, counts: tuple[int, int]) -> bool:
    """Whether an interval has no width because two runs a side happen to agree to the digit."""
    return isclose(interval.low, interval.high, rel_tol=1e-9) and min(counts) < ENOUGH


def margin_of(criterion: Alike | NotWorse, level: float) -> float:
    """What counts as the same, in the unit of the values."""
    return criterion.margin * level if isinstance(criterion, Alike) and criterion.relative else criterion.margin


def level_of(*sides: Values) -> float:
    """The mean over both sides; not a number where neither has runs."""
    means = [mean(list(values.values())) for values in sides if values]
    return mean(means) if means else nan


def compare_numbers(*numbers: Number | None, weights: Sequence[float] = (1, -1)) -> Interval | None:
    """The difference of numbers of the paper, where it gives the spread of each and how many seeds it used."""
    samples = [
        Moments(number.value, number.spread**2, number.seeds)
        for number in numbers
        if number and number.spread is not None and number.seeds and number.seeds >= 2
    ]
    return contrast(samples, weights) if len(samples) == len(weights) else None


def _gap(criterion: Comparison, difference: float | None, level: float) -> float | None:
    if difference is None:
        return None
    if isinstance(criterion, Better | Higher):
        return abs(difference)
    margin = margin_of(criterion, level)
    return abs(margin - (difference if isinstance(criterion, NotWorse) else abs(difference)))


def _beside(criterion: Comparison, row: str, against: str, column: Column, cells: Cells) -> str:
    """The other metric that a reader has to see with this one."""
    if not isinstance(criterion, Better) or not criterion.beside:
        return ""
    other = replace(column, metric=criterion.beside)
    values = [list(cells.values(key, other).values()) for key in (row, against)]
    if not all(values):
        return ""
    ours, theirs = (
        f"{significant(mean(found), 2)} for {cells.title(key)}"
        for key, found in zip((row, against), values, strict=True)
    )
    return f"The {METRICS[criterion.beside].words}: {ours}, {theirs}."


def _with_search(
    criterion: Comparison, outcome: Outcome, mine: Collection[object], theirs: Collection[object]
) -> tuple[Outcome, str]:
    """The best of many settings is not compared with that of few, unless it was to be lower and is not all the same."""
    mine, theirs = set(mine), set(theirs)
    if not mine or not theirs or mine == theirs:
        return outcome, ""
    loses = outcome == "does not hold" and theirs < mine and isinstance(criterion, Better | NotWorse)
    words = f" This compares the best of {len(mine)} settings with the best of {len(theirs)}"
    return ("does not hold", f"{words}.") if loses else ("undecided", f"{words}, not the same search: no verdict.")


def _with_losses(
    outcome: Outcome, places: Sequence[tuple[str, Column]], spoken_for: Collection[str], cells: Cells
) -> tuple[Outcome, str, bool]:
    """The outcome in the light of what diverged, what to add to its sentence, and whether that decided it.

    No mean and no interval knows of runs that diverged. A claim that speaks for a row does not hold where that
    diverges: it takes two runs in all to say so, as anything.
    """
    words, decided = "", False
    for key, column in places:
        if lost := cells.diverged(key, column):
            place = f"{cells.title(key)}{f' at {column.title}' if column.title else ''}"
            words += f" Not in it: {lost} {'run' if lost == 1 else 'runs'} of {place} that diverged."
            decided |= key in spoken_for and lost + len(cells.values(key, column)) >= 2
    return "does not hold" if decided else outcome, words, decided


# --- claims on all cells of a row together


def _growth(claim: Claim, criterion: Grows, cells: Cells) -> Iterator[Verdict]:
    """Whether the gain of each row is larger in the last column than in the first."""
    for row in criterion.rows:
        columns = cells.columns_for(criterion.metric)
        both = [column for column in columns if cells.at(row, column) and cells.at(criterion.than, column)]
        if both:
            yield _gain(claim, criterion, row, both, cells)


def _gain(claim: Claim, criterion: Grows, row: str, begun: list[Column], cells: Cells) -> Verdict:
    title, against = cells.title(row), cells.title(criterion.than)
    first, *_, last = cells.columns_for(criterion.metric)
    if first not in begun or last not in begun:
        places = ", ".join(column.title for column in begun)
        words = f"The gain of {title} over {against} is known at {places}; this takes {first.title} and {last.title}."
        return replace(undecided(claim, words), row=title, against=against)
    corners = [(criterion.than, last), (row, last), (criterion.than, first), (row, first)]
    later, earlier = (_gains(cells, row, criterion.than, column) for column in (last, first))
    compared, strict = (compare(later, earlier, confidence) for confidence in confidences(len(criterion.rows)))
    place = f"{first.title} to {last.title}"
    interval, counts = compared.interval, compared.counts
    if interval is None:
        words = f"The gain of {title} over {against} from {place}: {runs(counts)}; an interval needs at least two."
        outcome, lost, _ = _with_losses("undecided", corners, (row,), cells)
        return Verdict(claim, outcome, words + lost, counts=counts, row=title, against=against, column=place)
    points = METRICS[criterion.metric].points
    size = amount(digits(abs(interval.difference), interval), points)
    change = f"{size} {'larger' if interval.difference > 0 else 'smaller'}"
    seen = "No significant difference: the" if interval.contains_zero else "The"
    words = (
        f"{seen} gain of {title} over {against} is {change} at {last.title} than at {first.title} "
        f"({span(interval)}; {compared.kind}){f': {NO_SPREAD}' if says_nothing(interval, counts) else ''}."
    )
    found = one_sided(interval, counts, lower=False)
    firm = one_sided(strict.interval, counts, lower=False) == found
    outcome, lost, is_lost = _with_losses(found, corners, (row,), cells)
    return Verdict.on(
        *(claim, outcome, words + lost, compared, (title, against, place)),
        firm=firm or is_lost,
        preliminary=min(counts) < FEW,
        gap=abs(interval.difference),
        paper=compare_numbers(*(cells.number(*corner) for corner in corners), weights=_GROWTH),
    )


def _gains(cells: Cells, row: str, than: str, column: Column) -> Values:
    """By how much a row is better than another, for each seed that both have."""
    ours, theirs = cells.values(row, column), cells.values(than, column)
    return {seed: theirs[seed] - ours[seed] for seed in sorted(ours.keys() & theirs.keys())}


def _tally(claim: Claim, criterion: MostlyBest, cells: Cells) -> Iterator[Verdict]:
    """In how many columns a row has the best mean; fewer runs that diverge are better than any mean."""
    columns = cells.columns_for(criterion.metric)
    full = [column for column in columns if all(cells.at(row, column) for row in criterion.among)]
    if not full:
        return
    title = cells.title(criterion.row)
    best = [column for column in full if _is_best(criterion, column, cells)]
    places = [(row, column) for column in full for row in criterion.among]
    least = min(len(cells.values(*place)) + cells.diverged(*place) for place in places)
    words = f"{title} has the {METRICS[criterion.metric].lowest} mean in {len(best)} of {len(full)} columns"
    still_open = len(columns) - len(full)
    if still_open and 2 * len(best) <= len(columns) < 2 * (len(best) + still_open):
        words += f"; {still_open} of {len(columns)} are open"
        outcome: Outcome = "undecided"
    elif least < 2:
        words += ", but with one run in some"
        outcome = "undecided"
    else:
        outcome = "holds" if 2 * len(best) > len(columns) else "does not hold"
    lost = sum(cells.diverged(*place) for place in places)
    words += f" (fewer runs that diverge come before a lower mean; {lost} of all diverged)" if lost else ""
    yield Verdict(claim, outcome, f"{words}.", counts=(least, least), row=title, preliminary=least < FEW)


def _is_best(criterion: MostlyBest, column: Column, cells: Cells) -> bool:
    found = {row: chosen.summary(column.metric) for row in criterion.among if (chosen := cells.at(row, column))}
    ranks = {row: summary.rank(METRICS[column.metric]) for row, summary in found.items()}
    return ranks[criterion.row] == min(ranks.values()) < (1, inf)


@dataclass(frozen=True)
class _Duel:
    """The stated setting against another one; of the runs of both, those that diverged."""

    rival: float
    outcome: Outcome
    compared: Compared
    lost: tuple[int, int]
    advantage: tuple[float, float]  # of the rival: the share of runs that it loses less, and by how much it is lower
    firm: bool = True


_AGAINST: tuple[Outcome, ...] = ("holds", "undecided", "does not hold")  # by what they say against a claim


def _best_settings(claim: Claim, criterion: BestSetting, cells: Cells) -> Iterator[Verdict]:
    """Whether the stated setting is better than each other that was searched; shown is the one that comes closest."""
    for row in criterion.rows:
        tried = cells.tried(row, "", criterion.name)
        if not tried:
            continue
        title, metric = cells.title(row), cells.metric
        best = cells.chosen[row, ""].setting[criterion.name]
        setting = {"lr": "rate"}.get(criterion.name, criterion.name)
        words = (
            f"{title} reaches its {metric.lowest} {metric.words} at {setting} {best:g} (searched: {_listed(tried)})"
            if len(tried) > 1
            else f"{title}: only {setting} {best:g} has been run"
        )
        if still_open := [value for value in cells.to_try(criterion.name) if value not in tried]:
            rest = f"; not run yet: {_listed(still_open)}" if len(tried) > 1 else ""
            yield replace(undecided(claim, f"{words}{rest}."), row=title)
            continue
        stated = tried[criterion.value]
        rivals = {rival: values for rival, values in tried.items() if rival != criterion.value}
        number = len(rivals) * len(criterion.rows)
        duels = [_duel(stated, values, rival, metric, number) for rival, values in rivals.items()]
        hardest = max(duels, key=lambda duel: (_AGAINST.index(duel.outcome), duel.advantage))
        compared = hardest.compared
        yield Verdict.on(
            *(claim, hardest.outcome, f"{words}: {_duel_in_words(hardest, criterion.value)}.", compared),
            (title, "", f"{criterion.value:g} against {hardest.rival:g}"),
            firm=hardest.firm,
            preliminary=min(compared.counts) < FEW,
            gap=None if compared.difference is None else abs(compared.difference),
        )


def _duel(stated: Values, other: Values, rival: float, metric: Metric, number: int) -> _Duel:
    """Fewer runs that diverge win; where their shares are the same, the others are compared."""
    lost = (len(stated) - len(finite(stated)), len(other) - len(finite(other)))
    spared = diverging(stated) - diverging(other)
    none = Compared(None, None, (len(stated), len(other)))
    if spared != 0:
        outcome: Outcome = "holds" if spared < 0 else "does not hold"
        return _Duel(rival, outcome if min(none.counts) > 1 else "undecided", none, lost, (spared, 0.0))
    stated, other = finite(stated), finite(other)
    if not stated:
        return _Duel(rival, "undecided", none, lost, (0.0, -inf))
    compared, strict = (compare(stated, other, confidence) for confidence in confidences(number))
    if compared.interval is None or strict.interval is None:
        ours, theirs = shared(stated, other), shared(other, stated)
        few = Compared(mean(ours) - mean(theirs), None, (len(ours), len(theirs)))
        return _Duel(rival, "undecided", few, lost, (0.0, metric.sign * (mean(ours) - mean(theirs))))
    outcome = one_sided(compared.interval, compared.counts, lower=metric.lower_is_better)
    firm = one_sided(strict.interval, strict.counts, lower=metric.lower_is_better) == outcome
    return _Duel(rival, outcome, compared, lost, (0.0, metric.sign * compared.interval.difference), firm)


def _duel_in_words(duel: _Duel, stated: float) -> str:
    compared, interval = duel.compared, duel.compared.interval
    if compared.difference is None:
        one, other = compared.counts
        return f"{duel.lost[0]} of {one} runs at {stated:g} and {duel.lost[1]} of {other} at {duel.rival:g} diverged"
    found = f"at {stated:g} it is {_amount(compared.difference, interval)} than at {duel.rival:g}"
    if interval is not None and interval.contains_zero:
        found = f"no significant difference, {found}"
    why = f": {NO_SPREAD}" if interval and says_nothing(interval, compared.counts) else ""
    return f"{found}{_basis(compared)}{why}"


# --- what a row does by itself: against quoted numbers, at each setting of a search


def _against_quoted(claim: Claim, criterion: BetterThanQuoted, cells: Cells) -> Iterator[Verdict]:
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
        yield _quoted(claim, METRICS[criterion.metric], values, quoted, names, len(begun))


def _quoted(
    claim: Claim, metric: Metric, values: list[float], quoted: float, names: tuple[str, str, str], number: int
) -> Verdict:
    differences = [value - quoted for value in values]
    interval, strict = (
        paired(differences, confidence) if len(values) > 1 else None for confidence in confidences(number)
    )
    difference, counts = mean(differences), (len(values), len(values))
    outcome, firmly = (one_sided(found, counts, lower=True) for found in (interval, strict))
    size = _amount(difference, interval, metric.points)
    limits = span(interval) if interval else "one run; an interval needs at least two"
    words = f"The {metric.words} of {names[0]} at {names[2]} is {size} than the {quoted:g} of {names[1]} ({limits})."
    compared = Compared(difference, interval, counts, dots=tuple(differences))
    firm, few = firmly == outcome, len(values) < FEW
    return Verdict.on(claim, outcome, words, compared, names, firm=firm, preliminary=few, gap=abs(difference))


def _trains(claim: Claim, criterion: Trains, cells: Cells) -> Iterator[Verdict]:
    """Whether every run at every searched setting ends below the limit."""
    for column in cells.columns_for(criterion.metric):
        if criterion.columns and column.value not in criterion.columns:
            continue
        for row in criterion.rows:
            found = cells.at_settings(row, column, criterion.name)
            if not any(found.values()):
                continue
            trained = [value for value, runs in found.items() if runs and max(runs.values()) < criterion.below]
            failed = [value for value, runs in found.items() if runs and value not in trained]
            still_open = [value for value, runs in found.items() if not runs]
            title, what = cells.title(row), SETTINGS.get(criterion.name, criterion.name)
            words = f"{title} trains at {len(trained)} of {len(found)} {what}s at {column.title}"
            words += f", not at {_listed(failed)}" if failed else ""
            words += f"; not run: {_listed(still_open)}" if still_open else ""
            outcome: Outcome = "does not hold" if failed else "undecided" if still_open else "holds"
            least = min(map(len, found.values()))
            compared = Compared(None, None, (least, least))
            yield Verdict.on(claim, outcome, f"{words}.", compared, (title, "", column.title), preliminary=least < FEW)


def _wider(claim: Claim, criterion: Wider, cells: Cells) -> Iterator[Verdict]:
    """Whether a row is good at more of the searched settings than another."""
    metric, what = METRICS[criterion.metric], SETTINGS.get(criterion.name, criterion.name)
    for column in cells.columns_for(criterion.metric):
        rows = (*criterion.rows, *criterion.than)
        found = {row: cells.at_settings(row, column, criterion.name) for row in rows}
        best = best_mean(found, metric)
        for pair in product(criterion.rows, criterion.than):
            if best is None or not all(any(found[row].values()) for row in pair):
                continue
            ours, theirs = (good_settings(found[row], metric, best, criterion.margin) for row in pair)
            least = min(len(runs) for row in pair for runs in found[row].values())
            names = (cells.title(pair[0]), cells.title(pair[1]), column.title)
            good = [f"{len(rates)} ({_listed(rates)})" if rates else "none" for rates in (ours, theirs)]
            words = (
                f"At {column.title}, {names[0]} is within {criterion.margin:g} {metric.points} of the {metric.lowest} "
                f"{metric.words} ({f'{significant(best)} {metric.unit}'.rstrip()}) at {good[0]}, "
                f"{names[1]} at {good[1]}, of {len(found[pair[0]])} {what}s"
                f"{'' if least else '; not all of them have been run'}."
            )
            holds: Outcome = "holds" if len(ours) > len(theirs) else "does not hold"
            outcome = holds if least else "undecided"
            compared = Compared(float(len(ours) - len(theirs)), None, (least, least))
            yield Verdict.on(claim, outcome, words, compared, names, preliminary=least < FEW)


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


# --- words


def difference_in_words(names: tuple[str, str, str], compared: Compared, metric: Metric) -> str:
    """By how much one row is above or below another, without a full stop and without a verdict."""
    row, against, column = names
    assert compared.difference is not None, "there are runs on both sides"
    relation = f"{_amount(compared.difference, compared.interval, metric.points)} than"
    place = f" at {column}" if column else ""
    return (
        f"{metric.words} of {row} is {relation if compared.difference else 'the same as'} that of {against}{place}"
        f"{_basis(compared)}"
    )


def with_significance(found: str, compared: Compared) -> str:
    """The sentence of a difference; one whose interval contains zero is no significant one, which is said first."""
    if compared.interval is None:
        return f"The {found}."
    if says_nothing(compared.interval, compared.counts):
        return f"The {found}: {NO_SPREAD}."
    return f"{'No significant difference: the' if compared.interval.contains_zero else 'The'} {found}."


def _amount(difference: float, interval: Interval | None, unit: str = "") -> str:
    return f"{amount(digits(abs(difference), interval), unit)} {'lower' if difference < 0 else 'higher'}"


def amount(number: str, unit: str) -> str:
    """A number with its unit, in the singular after a one.

    >>> amount("1", "points"), amount("1.0", "points"), amount("0.3", "")
    ('1 point', '1.0 points', '0.3')
    """
    return f"{number} {unit.removesuffix('s') if number == '1' else unit}".rstrip()


def _basis(compared: Compared) -> str:
    if compared.interval is None:
        return f", but with {runs(compared.counts)}; an interval needs at least two per side"
    return f" ({span(compared.interval)}; {compared.kind})"


def _sentence(
    criterion: Comparison,
    names: tuple[str, str, str],
    compared: Compared,
    outcome: Outcome,
    level: float,
    metric: Metric,
) -> str:
    """One comparison in a sentence; `names` are row, the row it stands against, and the column."""
    if compared.difference is None:
        row, against, column = names
        place = f" at {column}" if column else ""
        return f"{row} against {against}{place}: {_nothing(compared.counts)}, nothing to compare."
    found = difference_in_words(names, compared, metric)
    is_open = compared.interval is None or says_nothing(compared.interval, compared.counts)
    if is_open or isinstance(criterion, Better | Higher):
        return with_significance(found, compared)
    margin = digits(margin_of(criterion, level))
    ending = {
        "holds": f"within the margin of {margin}",
        "does not hold": f"beyond the margin of {margin}",
        "undecided": f"neither within the margin of {margin} nor beyond it",
    }[outcome]
    return f"The {found}: {ending}."


def _nothing(counts: tuple[int, int]) -> str:
    """How many runs stand on each side, where one has none."""
    if not any(counts):
        return "no finished runs"
    return " against ".join(f"{count} {'run' if count == 1 else 'runs'}" if count else "none" for count in counts)


def _listed(values: Iterable[float]) -> str:
    """Settings in a sentence."""
    return ", ".join(f"{value:g}" for value in values)


_DECIDED_BY: Mapping[type, Callable[[Claim, Any, Cells], Iterator[Verdict]]] = {
    **dict.fromkeys((Better, Higher, NotWorse, Alike), _comparisons),
    Grows: _growth,
    MostlyBest: _tally,
    BestSetting: _best_settings,
    BetterThanQuoted: _against_quoted,
    Trains: _trains,
    Wider: _wider,
}
