"""Verdicts on the claims of the paper, from the cells of an artefact: outcomes, intervals and sentences.

A claim holds only if each of its comparisons does. That needs no correction for their number, because all of them would
have to be wrong. A single comparison is enough to reject a claim, so there the number counts: among n comparisons, the
interval of one that rejects has confidence 1 - 0.05 / n (Bonferroni, which is the first step of Holm's procedure and
the only one that matters for whether any comparison rejects).
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
    runs_text,
    shared,
    significant,
    span,
)

Comparison = Better | Higher | Alike | NotWorse
NO_SPREAD = "an interval of zero width from two runs says nothing about the spread"
_GROWTH = (1, -1, -1, 1)  # (against - row) in the last column, minus the same in the first


def verdicts(cells: Cells) -> tuple[Verdict, ...]:
    """Return the verdicts on all claims about an artefact, at least one per claim."""
    found: list[Verdict] = []
    for claim in cells.artefact.claims:
        compared = _DECIDED_BY[type(claim.criterion)](claim, claim.criterion, cells)
        found += list(compared) or [undecided(claim, "No runs to decide this yet.")]
    return tuple(found)


def undecided(claim: Claim, why: str) -> Verdict:
    """Return the verdict on a claim for which nothing was compared."""
    return Verdict(claim, "undecided", why)


# --- comparisons of two cells


def _comparisons(claim: Claim, criterion: Comparison, cells: Cells) -> Iterator[Verdict]:
    """Yield a verdict for each pair in each column that has runs, and one for all columns without runs."""
    if isinstance(criterion, Alike):
        pairs = list(combinations(criterion.rows, 2))
    else:
        pairs = list(product(criterion.rows, criterion.than))
    rows = {row for pair in pairs for row in pair}
    columns = cells.columns_for(criterion.metric, at_one_setting=isinstance(criterion, Alike))
    started = [column for column in columns if any(cells.at(row, column) for row in rows)]
    number = len(started) * len(pairs)
    compared = (_compare(claim, criterion, *pair, column, cells, number) for column in started for pair in pairs)
    yield from _distinct(compared)
    missing = ", ".join(column.title for column in columns if column not in started)
    if started and missing:
        words = f"The claim also covers {missing}, where there are no runs yet."
        yield replace(undecided(claim, words), column=missing)


def _distinct(found: Iterable[Verdict]) -> Iterator[Verdict]:
    """Drop repeated verdicts: where the paper's setting is our best one too, both rest on the same runs."""
    seen = set()
    for verdict in found:
        key = (verdict.row, verdict.against, verdict.outcome, verdict.difference, verdict.low, verdict.high)
        if verdict.difference is None or key not in seen:
            seen.add(key)
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
    searched = not cells.stated_value or column.value != cells.stated_value  # the paper's own setting is not searched
    outcome, caution = _with_search(criterion, outcome, *tried)
    # A diverging loss does not contradict a claim that the loss rises.
    favoured = {Higher: (), Alike: (row, against)}.get(type(criterion), (row,))
    outcome, excluded, rejected = _with_diverged(outcome, [(row, column), (against, column)], favoured, cells)
    return Verdict.from_comparison(
        *(claim, outcome, words + caution + excluded, compared, names),
        firm=firm or rejected,
        preliminary=min(compared.counts) < FEW or (searched and min(map(len, tried)) < cells.search_size),
        gap=_gap(criterion, compared.difference, level),
        beside=_beside(criterion, row, against, column, cells),
        paper=compare_numbers(*(cells.number(key, column) for key in (row, against))),
    )


def decide(
    criterion: Comparison, interval: Interval | None, counts: tuple[int, int], level: float, metric: Metric
) -> Outcome:
    """Decide a criterion by an interval; `level` is the mean that a relative margin refers to."""
    if isinstance(criterion, Better | Higher):
        return one_sided(interval, counts, lower=isinstance(criterion, Better) and metric.lower_is_better)
    if interval is not None and is_uninformative(interval, counts):
        return "undecided"
    margin = margin_of(criterion, level)
    return between(interval, -inf if isinstance(criterion, NotWorse) else -margin, margin)


def one_sided(interval: Interval | None, counts: tuple[int, int], *, lower: bool) -> Outcome:
    """Decide whether a difference is on the claimed side of zero; undecided if the interval contains zero."""
    if interval is None or is_uninformative(interval, counts) or interval.contains_zero:
        return "undecided"
    return "holds" if (interval.high < 0) == lower else "does not hold"


def between(interval: Interval | None, least: float, most: float) -> Outcome:
    """Decide whether an interval lies between two bounds; undecided if it contains one of them."""
    if interval is not None and least <= interval.low and interval.high <= most:
        return "holds"
    outside = interval is not None and (interval.high < least or interval.low > most)
    return "does not hold" if outside else "undecided"


def is_uninformative(interval: Interval, counts: tuple[int, int]) -> bool:
    """Whether an interval has zero width only because there are too few runs to show a spread."""
    return isclose(interval.low, interval.high, rel_tol=1e-9) and min(counts) < ENOUGH


def margin_of(criterion: Alike | NotWorse, level: float) -> float:
    """Return the margin of a criterion in the unit of the values."""
    return criterion.margin * level if isinstance(criterion, Alike) and criterion.relative else criterion.margin


def level_of(*sides: Values) -> float:
    """Return the mean of the means of all sides that have runs, NaN if none has."""
    means = [mean(list(values.values())) for values in sides if values]
    return mean(means) if means else nan


def compare_numbers(*numbers: Number | None, weights: Sequence[float] = (1, -1)) -> Interval | None:
    """Return the weighted sum of the paper's numbers with its interval; None unless each has a spread and seeds."""
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
    """Return the means of the second metric that the criterion reports beside its own, as a sentence."""
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
    criterion: Comparison, outcome: Outcome, ours: Collection[object], theirs: Collection[object]
) -> tuple[Outcome, str]:
    """Withhold the verdict if the sides searched different settings, unless the claimed side lost with more of them."""
    ours, theirs = set(ours), set(theirs)
    if not ours or not theirs or ours == theirs:
        return outcome, ""
    loses = outcome == "does not hold" and theirs < ours and isinstance(criterion, Better | NotWorse)
    words = f" This compares the best of {len(ours)} settings with the best of {len(theirs)}"
    return ("does not hold", f"{words}.") if loses else ("undecided", f"{words}: unequal searches give no verdict.")


def _with_diverged(
    outcome: Outcome, compared: Sequence[tuple[str, Column]], favoured: Collection[str], cells: Cells
) -> tuple[Outcome, str, bool]:
    """Take diverged runs into account: return the outcome, an addition to its sentence, and whether they decided it.

    Means and intervals exclude diverged runs. A claim in favour of a row does not hold where runs of that row diverge;
    like any verdict, this takes at least two runs.
    """
    words, rejected = "", False
    for key, column in compared:
        if count := cells.diverged(key, column):
            cell = f"{cells.title(key)}{f' at {column.title}' if column.title else ''}"
            words += f" Excluded: {count} diverged {'run' if count == 1 else 'runs'} of {cell}."
            rejected |= key in favoured and count + len(cells.values(key, column)) >= 2
    return "does not hold" if rejected else outcome, words, rejected


# --- claims on all cells of a row together


def _growth(claim: Claim, criterion: Grows, cells: Cells) -> Iterator[Verdict]:
    """Yield for each row whether its gain is larger in the last column than in the first."""
    for row in criterion.rows:
        columns = cells.columns_for(criterion.metric)
        both = [column for column in columns if cells.at(row, column) and cells.at(criterion.than, column)]
        if both:
            yield _gain(claim, criterion, row, both, cells)


def _gain(claim: Claim, criterion: Grows, row: str, started: list[Column], cells: Cells) -> Verdict:
    title, against = cells.title(row), cells.title(criterion.than)
    first, *_, last = cells.columns_for(criterion.metric)
    if first not in started or last not in started:
        known = ", ".join(column.title for column in started)
        needed = f"{first.title} and {last.title}"
        words = f"The gain of {title} over {against} is known at {known}; the claim needs {needed}."
        return replace(undecided(claim, words), row=title, against=against)
    corners = [(criterion.than, last), (row, last), (criterion.than, first), (row, first)]
    later, earlier = (_gains(cells, row, criterion.than, column) for column in (last, first))
    compared, strict = (compare(later, earlier, confidence) for confidence in confidences(len(criterion.rows)))
    columns = f"{first.title} to {last.title}"
    interval, counts = compared.interval, compared.counts
    if interval is None:
        words = (
            f"Growth of the gain of {title} over {against} from {columns}: {runs_text(counts)}; "
            "an interval needs at least two."
        )
        outcome, excluded, _ = _with_diverged("undecided", corners, (row,), cells)
        return Verdict(claim, outcome, words + excluded, counts=counts, row=title, against=against, column=columns)
    points = METRICS[criterion.metric].points
    size = amount(digits(abs(interval.difference), interval), points)
    change = f"{size} {'larger' if interval.difference > 0 else 'smaller'}"
    start = "No significant difference: the" if interval.contains_zero else "The"
    words = (
        f"{start} gain of {title} over {against} is {change} at {last.title} than at {first.title} "
        f"({span(interval)}; {compared.kind}){f': {NO_SPREAD}' if is_uninformative(interval, counts) else ''}."
    )
    found = one_sided(interval, counts, lower=False)
    firm = one_sided(strict.interval, counts, lower=False) == found
    outcome, excluded, rejected = _with_diverged(found, corners, (row,), cells)
    return Verdict.from_comparison(
        *(claim, outcome, words + excluded, compared, (title, against, columns)),
        firm=firm or rejected,
        preliminary=min(counts) < FEW,
        gap=abs(interval.difference),
        paper=compare_numbers(*(cells.number(*corner) for corner in corners), weights=_GROWTH),
    )


def _gains(cells: Cells, row: str, than: str, column: Column) -> Values:
    """Return by how much a row is lower than another, for each seed that both have."""
    ours, theirs = cells.values(row, column), cells.values(than, column)
    return {seed: theirs[seed] - ours[seed] for seed in sorted(ours.keys() & theirs.keys())}


def _tally(claim: Claim, criterion: MostlyBest, cells: Cells) -> Iterator[Verdict]:
    """Count the columns in which a row has the best mean; fewer diverged runs rank before any mean."""
    columns = cells.columns_for(criterion.metric)
    full = [column for column in columns if all(cells.at(row, column) for row in criterion.among)]
    if not full:
        return
    title = cells.title(criterion.row)
    best = [column for column in full if _is_best(criterion, column, cells)]
    compared = [(row, column) for column in full for row in criterion.among]
    least = min(len(cells.values(*cell)) + cells.diverged(*cell) for cell in compared)
    words = f"{title} has the {METRICS[criterion.metric].superlative} mean in {len(best)} of {len(full)} columns"
    incomplete = len(columns) - len(full)
    if incomplete and 2 * len(best) <= len(columns) < 2 * (len(best) + incomplete):
        words += f"; {incomplete} of {len(columns)} are incomplete"
        outcome: Outcome = "undecided"
    elif least < 2:
        words += ", but some cells have a single run"
        outcome = "undecided"
    else:
        outcome = "holds" if 2 * len(best) > len(columns) else "does not hold"
    diverged = sum(cells.diverged(*cell) for cell in compared)
    words += f" (fewer diverged runs rank before a lower mean; {diverged} diverged in all)" if diverged else ""
    yield Verdict(claim, outcome, f"{words}.", counts=(least, least), row=title, preliminary=least < FEW)


def _is_best(criterion: MostlyBest, column: Column, cells: Cells) -> bool:
    found = {row: chosen.summary(column.metric) for row in criterion.among if (chosen := cells.at(row, column))}
    ranks = {row: summary.rank(METRICS[column.metric]) for row, summary in found.items()}
    return ranks[criterion.row] == min(ranks.values()) < (1, inf)


@dataclass(frozen=True)
class _Duel:
    """The stated setting against a rival.

    Args:
        diverged: how many runs diverged at the stated setting and at the rival.
        advantage: of the rival: how much smaller its share of diverged runs is, then by how much its mean is better.
    """

    rival: float
    outcome: Outcome
    compared: Compared
    diverged: tuple[int, int]
    advantage: tuple[float, float]
    firm: bool = True


_AGAINST: tuple[Outcome, ...] = ("holds", "undecided", "does not hold")  # by strength of evidence against a claim


def _best_settings(claim: Claim, criterion: BestSetting, cells: Cells) -> Iterator[Verdict]:
    """Yield for each row whether the stated setting beats all others that were searched, with the closest rival."""
    for row in criterion.rows:
        tried = cells.tried(row, "", criterion.name)
        if not tried:
            continue
        title, metric = cells.title(row), cells.metric
        best = cells.chosen[row, ""].setting[criterion.name]
        setting = "rate" if criterion.name == "lr" else criterion.name
        at_best = f"{setting} {best:g}"
        words = (
            f"{title} reaches its {metric.superlative} {metric.words} at {at_best} (searched: {_listed(tried)})"
            if len(tried) > 1
            else f"{title}: only {at_best} has been run"
        )
        if missing := [value for value in cells.search_values(criterion.name) if value not in tried]:
            rest = f"; not run yet: {_listed(missing)}" if len(tried) > 1 else ""
            yield replace(undecided(claim, f"{words}{rest}."), row=title)
            continue
        stated = tried[criterion.value]
        rivals = {rival: values for rival, values in tried.items() if rival != criterion.value}
        number = len(rivals) * len(criterion.rows)
        duels = [_duel(stated, values, rival, metric, number) for rival, values in rivals.items()]
        hardest = max(duels, key=lambda duel: (_AGAINST.index(duel.outcome), duel.advantage))
        compared = hardest.compared
        yield Verdict.from_comparison(
            *(claim, hardest.outcome, f"{words}: {_duel_in_words(hardest, criterion.value)}.", compared),
            (title, "", f"{criterion.value:g} against {hardest.rival:g}"),
            firm=hardest.firm,
            preliminary=min(compared.counts) < FEW,
            gap=None if compared.difference is None else abs(compared.difference),
        )


def _duel(stated: Values, other: Values, rival: float, metric: Metric, number: int) -> _Duel:
    """Compare two settings by their shares of diverged runs and, if these are equal, by their finished runs."""
    diverged = (len(stated) - len(finite(stated)), len(other) - len(finite(other)))
    margin = diverging(stated) - diverging(other)
    not_compared = Compared(None, None, (len(stated), len(other)))
    if margin != 0:
        outcome: Outcome = "holds" if margin < 0 else "does not hold"
        decided = min(not_compared.counts) > 1
        return _Duel(rival, outcome if decided else "undecided", not_compared, diverged, (margin, 0.0))
    stated, other = finite(stated), finite(other)
    if not stated:
        return _Duel(rival, "undecided", not_compared, diverged, (0.0, -inf))
    compared, strict = (compare(stated, other, confidence) for confidence in confidences(number))
    if compared.interval is None or strict.interval is None:
        ours, theirs = shared(stated, other), shared(other, stated)
        difference = mean(ours) - mean(theirs)
        few = Compared(difference, None, (len(ours), len(theirs)))
        return _Duel(rival, "undecided", few, diverged, (0.0, metric.sign * difference))
    outcome = one_sided(compared.interval, compared.counts, lower=metric.lower_is_better)
    firm = one_sided(strict.interval, strict.counts, lower=metric.lower_is_better) == outcome
    return _Duel(rival, outcome, compared, diverged, (0.0, metric.sign * compared.interval.difference), firm)


def _duel_in_words(duel: _Duel, stated: float) -> str:
    compared, interval = duel.compared, duel.compared.interval
    if compared.difference is None:
        ours, theirs = (f"{part} of {count}" for part, count in zip(duel.diverged, compared.counts, strict=True))
        return f"{ours} runs at {stated:g} and {theirs} at {duel.rival:g} diverged"
    found = f"at {stated:g} it is {_amount(compared.difference, interval)} than at {duel.rival:g}"
    if interval is not None and interval.contains_zero:
        found = f"no significant difference, {found}"
    why = f": {NO_SPREAD}" if interval and is_uninformative(interval, compared.counts) else ""
    return f"{found}{_basis(compared)}{why}"


# --- rows against quoted numbers, and over the settings of a search


def _against_quoted(claim: Claim, criterion: BetterThanQuoted, cells: Cells) -> Iterator[Verdict]:
    """Yield comparisons of our mean and its interval with each number that the table quotes, taken as printed."""
    found = [
        (list(cells.values(row, column).values()), number.value, (cells.title(row), cells.title(other), column.title))
        for column in cells.columns_for(criterion.metric)
        for row in criterion.rows
        for other in criterion.than
        if (number := cells.number(other, column))
    ]
    started = [each for each in found if each[0]]
    for values, quoted, names in started:
        yield _quoted(claim, METRICS[criterion.metric], values, quoted, names, len(started))


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
    return Verdict.from_comparison(
        claim, outcome, words, compared, names, firm=firm, preliminary=few, gap=abs(difference)
    )


def _trains(claim: Claim, criterion: Trains, cells: Cells) -> Iterator[Verdict]:
    """Yield for each row and column whether every run at every searched setting ends below the limit."""
    for column in cells.columns_for(criterion.metric):
        if criterion.columns and column.value not in criterion.columns:
            continue
        for row in criterion.rows:
            found = cells.at_settings(row, column, criterion.name)
            if not any(found.values()):
                continue
            trained = [value for value, runs in found.items() if runs and max(runs.values()) < criterion.below]
            failed = [value for value, runs in found.items() if runs and value not in trained]
            missing = [value for value, runs in found.items() if not runs]
            title, what = cells.title(row), SETTINGS.get(criterion.name, criterion.name)
            words = f"{title} trains at {len(trained)} of {len(found)} {what}s at {column.title}"
            words += f", not at {_listed(failed)}" if failed else ""
            words += f"; not run: {_listed(missing)}" if missing else ""
            outcome: Outcome = "does not hold" if failed else "undecided" if missing else "holds"
            least = min(map(len, found.values()))
            compared = Compared(None, None, (least, least))
            names = (title, "", column.title)
            yield Verdict.from_comparison(claim, outcome, f"{words}.", compared, names, preliminary=least < FEW)


def _wider(claim: Claim, criterion: Wider, cells: Cells) -> Iterator[Verdict]:
    """Yield for each pair whether the first row is good at more of the searched settings than the second."""
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
            good = [f"{len(values)} ({_listed(values)})" if values else "none" for values in (ours, theirs)]
            words = (
                f"Of {len(found[pair[0]])} {what}s at {column.title}, those within {criterion.margin:g} "
                f"{metric.points} of the {metric.superlative} {metric.words} "
                f"({f'{significant(best)} {metric.unit}'.rstrip()}): {names[0]} has {good[0]}; {names[1]} has {good[1]}"
                f"{'' if least else '; some have not been run'}."
            )
            holds: Outcome = "holds" if len(ours) > len(theirs) else "does not hold"
            outcome = holds if least else "undecided"
            compared = Compared(float(len(ours) - len(theirs)), None, (least, least))
            yield Verdict.from_comparison(claim, outcome, words, compared, names, preliminary=least < FEW)


def best_mean(found: Mapping[str, Mapping[float, Values]], metric: Metric) -> float | None:
    """Return the best mean over all rows and settings, except settings at which a run diverged; None without any."""
    means = [
        mean(list(runs.values())) for row in found.values() for runs in row.values() if runs and not diverging(runs)
    ]
    return min(means, key=lambda value: metric.sign * value) if means else None


def good_settings(found: Mapping[float, Values], metric: Metric, best: float, margin: float) -> list[float]:
    """Return the settings at which no run diverged and whose mean is at most `margin` worse than the best."""
    return [
        value
        for value, runs in found.items()
        if runs and not diverging(runs) and metric.sign * (mean(list(runs.values())) - best) <= margin
    ]


# --- sentences


def difference_in_words(names: tuple[str, str, str], compared: Compared, metric: Metric) -> str:
    """Describe the difference of two rows, without a full stop; `names` are row, other row and column."""
    row, against, column = names
    assert compared.difference is not None, "there are runs on both sides"
    relation = f"{_amount(compared.difference, compared.interval, metric.points)} than"
    place = f" at {column}" if column else ""
    return (
        f"{metric.words} of {row} is {relation if compared.difference else 'the same as'} that of {against}{place}"
        f"{_basis(compared)}"
    )


def with_significance(found: str, compared: Compared) -> str:
    """Complete the sentence of a difference, which starts by saying so if the difference is not significant."""
    if compared.interval is None:
        return f"The {found}."
    if is_uninformative(compared.interval, compared.counts):
        return f"The {found}: {NO_SPREAD}."
    return f"{'No significant difference: the' if compared.interval.contains_zero else 'The'} {found}."


def _amount(difference: float, interval: Interval | None, unit: str = "") -> str:
    return f"{amount(digits(abs(difference), interval), unit)} {'lower' if difference < 0 else 'higher'}"


def amount(number: str, unit: str) -> str:
    """Return a number with its unit, in the singular for "1".

    >>> amount("1", "points"), amount("1.0", "points"), amount("0.3", "")
    ('1 point', '1.0 points', '0.3')
    """
    return f"{number} {unit.removesuffix('s') if number == '1' else unit}".rstrip()


def _basis(compared: Compared) -> str:
    if compared.interval is None:
        return f", but with {runs_text(compared.counts)}; an interval needs at least two per side"
    return f" ({span(compared.interval)}; {compared.kind})"


def _sentence(
    criterion: Comparison,
    names: tuple[str, str, str],
    compared: Compared,
    outcome: Outcome,
    level: float,
    metric: Metric,
) -> str:
    """Describe one comparison in a sentence; `names` are row, other row and column."""
    if compared.difference is None:
        row, against, column = names
        place = f" at {column}" if column else ""
        return f"{row} against {against}{place}: nothing to compare ({_available(compared.counts)})."
    found = difference_in_words(names, compared, metric)
    is_open = compared.interval is None or is_uninformative(compared.interval, compared.counts)
    if is_open or isinstance(criterion, Better | Higher):
        return with_significance(found, compared)
    margin = digits(margin_of(criterion, level))
    ending = {
        "holds": f"within the margin of {margin}",
        "does not hold": f"beyond the margin of {margin}",
        "undecided": f"neither within the margin of {margin} nor beyond it",
    }[outcome]
    return f"The {found}: {ending}."


def _available(counts: tuple[int, int]) -> str:
    """Return the number of finished runs on each side, of which one has none."""
    if not any(counts):
        return "no finished runs"
    return " against ".join(f"{count} {'run' if count == 1 else 'runs'}" if count else "none" for count in counts)


def _listed(values: Iterable[float]) -> str:
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
