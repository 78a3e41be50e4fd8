"""Intervals are those of scipy, and behave at the edges."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from pbwn_repro.report.statistics import Interval, Moments, bootstrap, contrast, deviation, mean, paired, welch

SAMPLES = st.lists(st.floats(-100, 100), min_size=2, max_size=12)


def test_mean_and_deviation_have_known_values():
    assert mean([2.0, 4.0, 9.0]) == 5.0
    assert deviation([2.0, 4.0, 9.0]) == pytest.approx(math.sqrt(13))
    assert deviation([7.0]) is None


@given(SAMPLES, SAMPLES)
def test_welchs_interval_is_scipys(ours, theirs):
    assume(np.var(ours) > 1e-6 and np.var(theirs) > 1e-6)
    expected = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    found = welch(ours, theirs)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-9)


@given(SAMPLES)
def test_pairs_of_the_same_seed_are_scipys_related_samples(ours):
    theirs = [value / 2 + number for number, value in enumerate(ours)]
    assume(np.var(np.subtract(ours, theirs)) > 1e-6)
    expected = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    found = paired(dict(enumerate(ours)), {**dict(enumerate(theirs)), 99: 5.0})
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-9)


def test_the_papers_summary_gives_the_same_interval_as_its_runs():
    ours, theirs = [5.1, 5.2, 5.4, 5.0, 5.3], [6.4, 6.1, 6.6, 6.5, 6.3]
    summaries = [Moments(mean(values), deviation(values) ** 2, len(values)) for values in (ours, theirs)]
    assert contrast(summaries, (1, -1)) == welch(ours, theirs)


def test_exchanging_the_sides_turns_the_interval_over():
    there, back = welch([1.0, 2.0, 4.0], [3.0, 3.5]), welch([3.0, 3.5], [1.0, 2.0, 4.0])
    assert (back.low, back.high) == pytest.approx((-there.high, -there.low))


def test_samples_without_spread_have_an_interval_without_width():
    assert welch([2.0, 2.0], [1.5, 1.5]) == Interval(0.5, 0.5, 0.5)


def test_a_single_run_has_no_interval():
    with pytest.raises(ValueError, match="two runs or more"):
        welch([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="two pairs"):
        paired({1: 1.0, 2: 2.0}, {2: 1.0, 3: 2.0})


def test_the_bootstrap_is_near_welch_for_well_behaved_samples_and_repeatable():
    generator = np.random.default_rng(1)
    ours, theirs = generator.normal(0, 1, 40).tolist(), generator.normal(1, 1, 40).tolist()
    resampled, usual = bootstrap(ours, theirs), welch(ours, theirs)
    assert resampled.difference == pytest.approx(usual.difference)
    assert (resampled.low, resampled.high) == pytest.approx((usual.low, usual.high), abs=0.12)
    assert bootstrap(ours[::-1], theirs) == resampled


def test_the_bootstrap_follows_the_skew_of_a_sample_with_outliers():
    authors = [0.97, 2.23, 1.02, 9.51, 1.02, 0.99, 3.81, 2.28, 1.04, 2.27]  # the authors' own, with 20 labels
    interval = bootstrap(authors, [0.5 + value / 100 for value in authors])
    assert interval.high - interval.difference > interval.difference - interval.low
    assert interval.low > 0


def test_the_bootstrap_of_constant_samples_is_welchs():
    assert bootstrap([1.0] * 9, [2.0] * 9) == Interval(-1.0, -1.0, -1.0)


@given(st.floats(-5, 5), st.floats(0, 5), st.floats(0.1, 5))
def test_within_a_margin_means_both_ends(middle, reach, margin):
    interval = Interval(middle, middle - reach, middle + reach)
    assert interval.within(margin) == (abs(interval.low) < margin and abs(interval.high) < margin)
