"""Differences with confidence intervals, from runs or from the means, spreads and sample sizes that the paper prints.

Runs of the same seed see the same data in the same order, and the same labels where labels are drawn, so they are
compared in pairs: by Student's t on the differences below eight pairs, and by Wilcoxon's signed-rank test from eight
on. The interval of the latter (Hodges and Lehmann) does not assume normal errors: those of table 8 are skewed, and one
failed run of ten would dominate the mean. Runs without common seeds are compared by Welch's t.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
ENOUGH = 3  # runs per side from which an interval of zero width counts as evidence
FEW = 5  # pairs, or runs per side, below which a verdict is preliminary
ENOUGH_FOR_RANKS = 8  # pairs from which the signed-rank test replaces the paired t
Values = Mapping[int, float]  # by seed


@dataclass(frozen=True)
class Moments:
    """Mean, variance (of the sample, not of its mean) and size of a sample."""

    mean: float
    variance: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Moments:
        """Return the moments of a sample of two or more values."""
        return cls(mean(values), (deviation(values) or 0.0) ** 2, len(values))


@dataclass(frozen=True)
class Interval:
    """A difference with its confidence limits."""

    difference: float
    low: float
    high: float

    @property
    def contains_zero(self) -> bool:
        """Whether the interval contains zero: no significant difference."""
        return self.low <= 0 <= self.high


@dataclass(frozen=True)
class Compared:
    """The difference of two cells.

    Args:
        difference: None if a side has no runs.
        interval: None if there is a single run on a side.
        counts: the runs on each side.
        kind: the test behind the interval, and its sample size.
        dots: the difference of each pair of runs.
    """

    difference: float | None
    interval: Interval | None
    counts: tuple[int, int]
    kind: str = ""
    dots: tuple[float, ...] = ()


def compare(ours: Values, theirs: Values, confidence: float = CONFIDENCE) -> Compared:
    """Compare two cells, in pairs if they share two or more seeds."""
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
    return Compared(interval.difference, interval, counts, f"Welch's test, {runs_text(counts)}")


def runs_text(counts: tuple[int, int]) -> str:
    """Return the number of runs on each side, in words.

    >>> runs_text((1, 1)), runs_text((5, 5)), runs_text((3, 5))
    ('one run each', '5 runs each', '3 and 5 runs')
    """
    ours, theirs = counts
    if ours == theirs:
        return "one run each" if ours == 1 else f"{ours} runs each"
    return f"{ours} and {theirs} runs"


def confidences(number: int) -> tuple[float, float]:
    """Return the confidence of a reported interval, and the one that rejects a claim with `number` comparisons."""
    return CONFIDENCE, 1 - (1 - CONFIDENCE) / number


def contrast(samples: Sequence[Moments], weights: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the weighted sum of means, with an interval that does not assume equal variances.

    Weights 1 and -1 give Welch's difference of two means; the degrees of freedom follow Welch and Satterthwaite.
    Samples without any spread give an interval of zero width.
    """
    if min(sample.count for sample in samples) < 2:
        raise ValueError("an interval needs two runs or more per side")
    difference = math.fsum(weight * sample.mean for weight, sample in zip(weights, samples, strict=True))
    parts = [weight**2 * sample.variance / sample.count for weight, sample in zip(weights, samples, strict=True)]
    variance = math.fsum(parts)
    if variance == 0:
        return Interval(difference, difference, difference)
    freedom = variance**2 / math.fsum(part**2 / (sample.count - 1) for part, sample in zip(parts, samples, strict=True))
    reach = float(stats.t.ppf((1 + confidence) / 2, freedom)) * math.sqrt(variance)
    return Interval(difference, difference - reach, difference + reach)


def paired(differences: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the mean of paired differences, with Student's interval."""
    return contrast((Moments.of(differences),), (1,), confidence)


def signed_rank(differences: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the pseudo-median of paired differences, with the exact interval of Wilcoxon's signed-rank test.

    The limits are Walsh averages (means of two differences) at the ranks given by the null distribution of the test.
    They are infinite if there are too few pairs for this confidence.
    """
    values = np.asarray(differences, dtype=float)
    rows, columns = np.triu_indices(len(values))
    averages = np.sort((values[rows] + values[columns]) / 2)
    ways = np.array([1.0])  # number of sign patterns that give each rank sum
    for rank in range(1, len(values) + 1):
        ways = np.convolve(ways, np.bincount([0, rank]))
    below = np.cumsum(ways) / 2.0 ** len(values)
    outside = int(np.searchsorted(below, (1 - confidence) / 2, side="right"))  # averages excluded on each side
    middle = float(np.median(averages))
    if not outside:
        return Interval(middle, -math.inf, math.inf)
    return Interval(middle, float(averages[outside - 1]), float(averages[-outside]))


def mean(values: Sequence[float]) -> float:
    """Return the mean, from an exactly rounded sum."""
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (n - 1), or None for a single value."""
    if len(values) < 2:
        return None
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def finite(values: Values) -> dict[int, float]:
    """Return the values of the runs that did not diverge."""
    return {seed: value for seed, value in values.items() if math.isfinite(value)}


def diverging(values: Values) -> float:
    """Return the share of runs that diverged, which have no finite value."""
    return 1 - len(finite(values)) / len(values)


def shared(ours: Values, theirs: Values) -> list[float]:
    """Return our values at the seeds that both sides have, or all of ours if they have none in common."""
    seeds = ours.keys() & theirs.keys() or ours.keys()
    return [ours[seed] for seed in sorted(seeds)]


def in_common(found: Mapping[float, Values]) -> dict[float, dict[int, float]]:
    """Restrict each setting to the seeds that all settings have; keep everything if they have none in common."""
    seeds = set.intersection(*map(set, found.values())) if found else set()
    return {
        setting: {seed: value for seed, value in values.items() if seed in (seeds or values)}
        for setting, values in found.items()
    }


def digits(value: float, within: Interval | None = None) -> str:
    """Format a number with the decimals that its interval supports: down to the second digit of half its width.

    Without an interval: two decimals, or three significant digits if the number is small.

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
    """Return the decimals of a number known to within `reach`, a standard deviation or half the width of an interval.

    They go down to the second digit of `reach`; what follows is noise. None if `reach` is unknown, infinite or no more
    than rounding.

    >>> decimals_within(4.12), decimals_within(13.2), decimals_within(0.0029), decimals_within(None)
    (1, 0, 4, None)
    """
    if not reach or reach < 1e-12 or not math.isfinite(reach):
        return None
    return max(0, 1 - math.floor(math.log10(reach)))


def significant(value: float, count: int = 3) -> str:
    """Format a number without spread or interval: `count` significant digits, never an exponent.

    >>> significant(24217.3), significant(486.5, 2), significant(0.00584, 2), significant(2.0)
    ('24,200', '490', '0.0058', '2')
    """
    return f"{float(f'{value:.{count}g}'):,.10g}"


def with_interval(interval: Interval) -> str:
    """Return a difference followed by its interval in brackets."""
    return (
        f"{digits(interval.difference, interval)} [{digits(interval.low, interval)}, {digits(interval.high, interval)}]"
    )


def span(interval: Interval) -> str:
    """Return the limits of an interval in words."""
    return f"95 % interval {digits(interval.low, interval)} to {digits(interval.high, interval)}"
