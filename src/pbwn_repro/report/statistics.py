"""Differences with confidence intervals: from runs, or from the mean, spread and number that the paper prints.

Runs of the same seed see the same data in the same order, and the same labels where those are drawn: they are compared
in pairs. Below eight pairs by Student's t on the differences; from eight on by Wilcoxon's signed-rank test, whose
interval (Hodges and Lehmann) does not assume normal errors: those of table 8 are skewed, and one failed run of ten
would dominate the mean. Runs without common seeds are compared by Welch's t.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
ENOUGH = 3  # runs a side from which an interval without width is a result
FEW = 5  # pairs, or runs a side, below which a verdict is preliminary
ENOUGH_FOR_RANKS = 8
Values = Mapping[int, float]  # by seed


@dataclass(frozen=True)
class Moments:
    """What an interval needs to know of a sample: its mean, its variance (of the sample, not of the mean), its size."""

    mean: float
    variance: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Moments:
        """The moments of a sample of two or more."""
        return cls(mean(values), (deviation(values) or 0.0) ** 2, len(values))


@dataclass(frozen=True)
class Interval:
    """A difference between its confidence limits."""

    difference: float
    low: float
    high: float

    @property
    def contains_zero(self) -> bool:
        """Whether no difference at all is among what is likely."""
        return self.low <= 0 <= self.high


@dataclass(frozen=True)
class Compared:
    """A difference of so many runs a side, its interval, how that was found, and the differences of the pairs.

    Where a side has no runs there is no difference, and where one has a single run no interval.
    """

    difference: float | None
    interval: Interval | None
    counts: tuple[int, int]
    kind: str = ""
    dots: tuple[float, ...] = ()


def compare(ours: Values, theirs: Values, confidence: float = CONFIDENCE) -> Compared:
    """The difference of two cells, in pairs where two seeds or more are common."""
    counts = (len(ours), len(theirs))
    pairs = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    if len(pairs) >= 2:
        ranks = len(pairs) >= ENOUGH_FOR_RANKS
        interval = (signed_rank if ranks else paired)(pairs, confidence)
        kind = f"{'signed-rank test' if ranks else 'paired t'}, {len(pairs)} pairs by seed"
        return Compared(interval.difference, interval, (len(pairs), len(pairs)), kind, tuple(pairs))
    if min(counts) < 2:
        difference = mean(list(ours.values())) - mean(list(theirs.values())) if ours and theirs else None
        return Compared(difference, None, counts, dots=tuple(pairs))
    interval = contrast([Moments.of(list(values.values())) for values in (ours, theirs)], (1, -1), confidence)
    return Compared(interval.difference, interval, counts, f"Welch's test, {runs(counts)}")


def runs(counts: tuple[int, int]) -> str:
    """How many runs stand on each side.

    >>> runs((1, 1)), runs((5, 5)), runs((3, 5))
    ('one run each', '5 runs each', '3 and 5 runs')
    """
    one, other = counts
    if one == other:
        return "one run each" if one == 1 else f"{one} runs each"
    return f"{one} and {other} runs"


def confidences(number: int) -> tuple[float, float]:
    """That of an interval that is shown, and that with which one of so many comparisons speaks against a claim."""
    return CONFIDENCE, 1 - (1 - CONFIDENCE) / number


def contrast(samples: Sequence[Moments], weights: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The weighted sum of means, with Welch's interval: no variance is taken to equal another.

    Weights 1 and -1 give Welch's difference of two means; the degrees of freedom are Welch's and Satterthwaite's.
    Samples without any spread give an interval of no width.
    """
    if min(sample.count for sample in samples) < 2:
        raise ValueError("an interval needs two runs or more on each side")
    difference = math.fsum(weight * sample.mean for weight, sample in zip(weights, samples, strict=True))
    parts = [weight**2 * sample.variance / sample.count for weight, sample in zip(weights, samples, strict=True)]
    variance = math.fsum(parts)
    if variance == 0:
        return Interval(difference, difference, difference)
    freedom = variance**2 / math.fsum(part**2 / (sample.count - 1) for part, sample in zip(parts, samples, strict=True))
    reach = float(stats.t.ppf((1 + confidence) / 2, freedom)) * math.sqrt(variance)
    return Interval(difference, difference - reach, difference + reach)


def paired(differences: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The mean of paired differences, with Student's interval."""
    return contrast((Moments.of(differences),), (1,), confidence)


def signed_rank(differences: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The pseudo-median of paired differences, with the exact interval of Wilcoxon's signed-rank test.

    Its limits are averages of two differences each (Walsh averages), at places that the test's null distribution gives.
    Where so few pairs cannot have an interval of this confidence, it has no limits.
    """
    values = np.asarray(differences, dtype=float)
    rows, columns = np.triu_indices(len(values))
    averages = np.sort((values[rows] + values[columns]) / 2)
    ways = np.array([1.0])  # of each sum of ranks, among all signs
    for rank in range(1, len(values) + 1):
        ways = np.convolve(ways, np.bincount([0, rank]))
    below = np.cumsum(ways) / 2.0 ** len(values)
    outside = int(np.searchsorted(below, (1 - confidence) / 2, side="right"))  # averages left out on each side
    middle = float(np.median(averages))
    if not outside:
        return Interval(middle, -math.inf, math.inf)
    return Interval(middle, float(averages[outside - 1]), float(averages[-outside]))


def mean(values: Sequence[float]) -> float:
    """The mean, summed without loss."""
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float | None:
    """The sample's standard deviation, with n - 1; None for a single value."""
    if len(values) < 2:
        return None
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def finite(values: Values) -> dict[int, float]:
    """The values of the runs that did not diverge."""
    return {seed: value for seed, value in values.items() if math.isfinite(value)}


def diverging(values: Values) -> float:
    """The share of runs that diverged: those without a finite value."""
    return 1 - len(finite(values)) / len(values)


def shared(ours: Values, theirs: Values) -> list[float]:
    """Our values of the seeds that both sides have; all of ours where they have none in common."""
    seeds = ours.keys() & theirs.keys() or ours.keys()
    return [ours[seed] for seed in sorted(seeds)]


def in_common(found: Mapping[float, Values]) -> dict[float, dict[int, float]]:
    """Of each setting, the values of the seeds that all settings have; all of them where they have none in common."""
    seeds = set.intersection(*map(set, found.values())) if found else set()
    return {
        setting: {seed: value for seed, value in values.items() if seed in (seeds or values)}
        for setting, values in found.items()
    }


def digits(value: float, within: Interval | None = None) -> str:
    """A number with as many digits as its interval knows: those down to the second one of half its width.

    Without an interval, two decimals, or three digits that count where it is small.

    >>> digits(7.944), digits(0.012345), digits(-0.3)
    ('7.94', '0.0123', '-0.30')
    >>> digits(0.012345, Interval(0.012345, -0.02, 0.05)), digits(123.4, Interval(123.4, 90.0, 160.0))
    ('0.012', '123')
    """
    decimals = decimals_within((within.high - within.low) / 2 if within else None)
    if decimals is not None:
        return f"{round(value, decimals) + 0.0:.{decimals}f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"


def decimals_within(reach: float | None) -> int | None:
    """The decimals of a number that is known to within `reach`, a standard deviation or half an interval.

    Those down to the second digit of `reach`: what comes after it is chance. None where nothing is known of it, or
    where it is nothing but rounding.

    >>> decimals_within(4.12), decimals_within(13.2), decimals_within(0.0029), decimals_within(None)
    (1, 0, 4, None)
    """
    if not reach or reach < 1e-12 or not math.isfinite(reach):
        return None
    return max(0, 1 - math.floor(math.log10(reach)))


def significant(value: float, count: int = 3) -> str:
    """A number that has neither spread nor interval, with so many digits that count and no power of ten.

    >>> significant(24217.3), significant(486.5, 2), significant(0.00584, 2), significant(2.0)
    ('24,200', '490', '0.0058', '2')
    """
    return f"{float(f'{value:.{count}g}'):,.10g}"


def with_interval(interval: Interval) -> str:
    """A difference with its interval, in brackets."""
    return (
        f"{digits(interval.difference, interval)} [{digits(interval.low, interval)}, {digits(interval.high, interval)}]"
    )


def span(interval: Interval) -> str:
    """An interval in words."""
    return f"95 % interval {digits(interval.low, interval)} to {digits(interval.high, interval)}"
