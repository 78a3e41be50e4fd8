"""Differences with 95 % confidence intervals: from runs, or from the mean, spread and number that the paper prints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


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
    """A difference between its 95 % confidence limits."""

    difference: float
    low: float
    high: float

    @property
    def contains_zero(self) -> bool:
        """Whether no difference at all is among what is likely."""
        return self.low <= 0 <= self.high

    def within(self, margin: float) -> bool:
        """Whether the whole interval lies closer to zero than the margin."""
        return -margin < self.low and self.high < margin

    def beyond(self, margin: float) -> bool:
        """Whether the whole interval lies farther from zero than the margin, on one side."""
        return self.low > margin or self.high < -margin


def mean(values: Sequence[float]) -> float:
    """The mean, summed without loss."""
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float | None:
    """The sample's standard deviation, with n - 1; None for a single value."""
    if len(values) < 2:
        return None
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def contrast(samples: Sequence[Moments], weights: Sequence[float]) -> Interval:
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
    return _around(difference, math.sqrt(variance), freedom)


def welch(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """The difference of two means by Welch's test."""
    return contrast((Moments.of(ours), Moments.of(theirs)), (1, -1))


def finite(values: Mapping[int, float]) -> dict[int, float]:
    """The values of the runs that did not diverge."""
    return {seed: value for seed, value in values.items() if math.isfinite(value)}


def diverging(values: Mapping[int, float]) -> float:
    """The share of runs that diverged: those without a finite value."""
    return 1 - len(finite(values)) / len(values)


def shared(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """Our values of the seeds that both sides have; all of ours where they have none in common."""
    seeds = ours.keys() & theirs.keys() or ours.keys()
    return [ours[seed] for seed in sorted(seeds)]


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Interval:
    """The mean difference between runs of the same seed, which start from the same weights and see the same data."""
    differences = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    if len(differences) < 2:
        raise ValueError("an interval needs two pairs of runs or more")
    return contrast((Moments.of(differences),), (1,))


def bootstrap(ours: Sequence[float], theirs: Sequence[float], *, resamples: int = 9999) -> Interval:
    """The difference of two means by resampling (bias-corrected and accelerated), for samples with far outliers.

    It needs eight runs or more on each side: resampling fewer says less than Welch's test.
    """
    if len(set(ours)) < 2 or len(set(theirs)) < 2:
        return welch(ours, theirs)
    found = stats.bootstrap(
        # In a fixed order: the order of folders must not decide a digit.
        (np.sort(ours), np.sort(theirs)),
        lambda a, b, axis: np.mean(a, axis=axis) - np.mean(b, axis=axis),
        n_resamples=resamples,
        confidence_level=CONFIDENCE,
        method="BCa",
        rng=np.random.default_rng(0),
        vectorized=True,
    ).confidence_interval
    return Interval(mean(ours) - mean(theirs), float(found.low), float(found.high))


def _around(difference: float, error: float, freedom: float) -> Interval:
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * error
    return Interval(difference, difference - reach, difference + reach)
