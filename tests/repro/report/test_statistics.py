"""Intervals are those of scipy, and behave at the edges."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from pbwn_repro.report.statistics import Interval, Moments, compare, contrast, deviation, mean, paired, signed_rank
from pbwn_repro.report.verdicts import between

AUTHORS = [0.97, 2.23, 1.02, 9.51, 1.02, 0.99, 3.81, 2.28, 1.04, 2.27]  # their ten seeds with 20 labels
SAMPLES = st.lists(st.floats(-100, 100), min_size=2, max_size=12)


def welch(ours, theirs):
    return contrast((Moments.of(ours), Moments.of(theirs)), (1, -1))


def by_seed(values, first=1):
    return dict(enumerate(values, first))


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
    found = paired(np.subtract(ours, theirs).tolist())
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
    with pytest.raises(ValueError, match="two runs or more"):
        paired([1.0])


@given(st.integers(0, 2**32 - 1), st.integers(8, 14), st.sampled_from([0.9, 0.95, 0.98]))
def test_the_signed_rank_interval_holds_the_shifts_that_scipys_exact_test_does_not_reject(seed, count, confidence):
    values = np.random.default_rng(seed).standard_cauchy(count)
    found = signed_rank(values.tolist(), confidence)

    def rejected(shift):
        return stats.wilcoxon(values - shift, method="exact").pvalue <= 1 - confidence

    for shift, outside in ((found.low, -1e-7), (found.high, 1e-7)):
        assert rejected(shift + outside)
        assert not rejected(shift - outside)


def test_so_few_pairs_have_no_interval_of_a_high_confidence():
    assert signed_rank([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 0.999) == Interval(4.5, -math.inf, math.inf)


def test_a_failed_run_carries_the_mean_and_not_the_ranks():
    ours, theirs = by_seed(AUTHORS), by_seed([value + 0.5 + value / 100 for value in AUTHORS])
    theirs[4] = 1.5  # the run that failed, at 9.51, had it not
    compared = compare(ours, theirs)
    assert compared.kind == "signed-rank test, 10 pairs by seed"
    assert compared.interval.difference < -0.4
    assert paired(compared.dots).difference > 0
    assert compared.dots[3] == pytest.approx(8.01)


@pytest.mark.parametrize(
    ("ours", "theirs", "kind", "counts"),
    [
        (by_seed([1.0, 5.0, 9.0]), by_seed([1.1, 5.1, 9.2, 100.0]), "paired t, 3 pairs by seed", (3, 3)),
        (by_seed(range(7)), by_seed(range(1, 8)), "paired t, 7 pairs by seed", (7, 7)),
        (by_seed(range(8)), by_seed(range(1, 9)), "signed-rank test, 8 pairs by seed", (8, 8)),
        (by_seed([1.0, 5.0, 9.0]), by_seed([1.1, 5.1], first=7), "Welch's test, 3 and 2 runs", (3, 2)),
        (by_seed([1.0, 5.0]), by_seed([1.1], first=2), "", (2, 1)),
    ],
)
def test_runs_of_the_same_seed_are_compared_in_pairs(ours, theirs, kind, counts):
    compared = compare(ours, theirs)
    assert (compared.kind, compared.counts) == (kind, counts)
    assert (compared.interval is None) == (kind == "")


def test_pairs_see_what_unpaired_runs_do_not():
    ours, theirs = by_seed([1.0, 5.0, 9.0]), by_seed([1.1, 5.15, 9.12])
    assert compare(ours, theirs).interval.high < 0
    assert welch(list(ours.values()), list(theirs.values())).contains_zero


@given(st.floats(-5, 5), st.floats(0, 5), st.floats(0.1, 5))
def test_within_a_margin_means_both_ends(middle, reach, margin):
    interval = Interval(middle, middle - reach, middle + reach)
    inside = abs(interval.low) <= margin and abs(interval.high) <= margin
    assert (between(interval, -margin, margin) == "holds") == inside
