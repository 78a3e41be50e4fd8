"""One comparison of two cells: the interval of their difference, and what it says to a claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose, nan

from pbwn_repro.paper import Alike, Better, Higher, Number
from pbwn_repro.paper.criteria import IntervalKind, NotWorse
from pbwn_repro.report.model import Outcome
from pbwn_repro.report.statistics import Interval, Moments, bootstrap, contrast, mean, paired, welch

ENOUGH = 3  # runs a side from which an interval without width is a result
ENOUGH_TO_RESAMPLE = 8
Values = Mapping[int, float]  # by seed
Comparison = Better | Higher | Alike | NotWorse


@dataclass(frozen=True)
class Compared:
    """An interval, how it was found, and of how many runs a side."""

    interval: Interval | None
    kind: str
    counts: tuple[int, int]


def compare(ours: Values, theirs: Values, kind: IntervalKind) -> Compared:
    """The difference of two cells' means; without an interval where a side has fewer than two runs."""
    counts = (len(ours), len(theirs))
    shared = len(ours.keys() & theirs.keys())
    if kind == "paired" and shared >= 2:
        return Compared(paired(ours, theirs), "paired by seed", (shared, shared))
    if min(counts) < 2:
        return Compared(None, "", counts)
    a, b = (list(values.values()) for values in (ours, theirs))
    if kind == "bootstrap" and min(counts) >= ENOUGH_TO_RESAMPLE:
        return Compared(bootstrap(a, b), "bootstrap", counts)
    return Compared(welch(a, b), "Welch's test", counts)


def compare_numbers(ours: Number | None, theirs: Number | None) -> Interval | None:
    """The same from what the paper prints, where it gives spreads and numbers of seeds."""
    moments = [moments_of(number) for number in (ours, theirs)]
    found = [each for each in moments if each is not None]
    return contrast(found, (1, -1)) if len(found) == 2 else None


def moments_of(number: Number | None) -> Moments | None:
    """A number of the paper as a sample, where it gives spread and seeds."""
    if number is None or number.spread is None or number.seeds is None or number.seeds < 2:
        return None
    return Moments(number.value, number.spread**2, number.seeds)


def decide(criterion: Comparison, interval: Interval, counts: tuple[int, int], level: float) -> Outcome:
    """What an interval says to a criterion; `level` is the mean that a relative margin is a share of."""
    if isinstance(criterion, Better | Higher):
        return one_sided(interval, counts, lower=isinstance(criterion, Better))
    if says_nothing(interval, counts):
        return "not enough runs"
    if isinstance(criterion, NotWorse):
        if interval.high < criterion.margin:
            return "holds"
        return "does not hold" if interval.low > criterion.margin else "not enough runs"
    margin = margin_of(criterion, level)
    if interval.within(margin):
        return "holds"
    return "does not hold" if interval.beyond(margin) else "not enough runs"


def one_sided(interval: Interval, counts: tuple[int, int], *, lower: bool) -> Outcome:
    """Whether a difference is on the right side of zero; an interval that contains zero speaks for neither side."""
    if says_nothing(interval, counts) or interval.contains_zero:
        return "not enough runs"
    return "holds" if (interval.high < 0) == lower else "does not hold"


def says_nothing(interval: Interval, counts: tuple[int, int]) -> bool:
    """Whether an interval has no width because two runs a side happen to agree to the digit."""
    return isclose(interval.low, interval.high, rel_tol=1e-9) and min(counts) < ENOUGH


def margin_of(criterion: Alike, level: float) -> float:
    """What counts as the same, in the unit of the values."""
    return criterion.margin * level if criterion.relative else criterion.margin


def level_of(*sides: Values) -> float:
    """The mean over both sides; not a number where neither has runs."""
    means = [mean(list(values.values())) for values in sides if values]
    return mean(means) if means else nan
