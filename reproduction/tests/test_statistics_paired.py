"""Intervals that cover, and tests that know their direction."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from normalign_reproduction.statistics import (
    bootstrap_interval,
    student_p,
    wilcoxon_p,
)

CHANGES = st.lists(
    st.integers(-1000, 1000).map(lambda n: n / 8), min_size=2, max_size=12
)


def signed_rank_p(changes, direction):
    """The exact test by counting: all signs are equally likely if nothing changes."""
    ranks = stats.rankdata(np.abs(changes))
    sign = 1 if direction == "greater" else -1
    seen = ranks[sign * np.asarray(changes) > 0].sum()
    sums = [np.dot(ranks, signs) for signs in product([0, 1], repeat=len(changes))]
    return np.mean([total >= seen for total in sums])


@pytest.mark.parametrize("direction", ["greater", "less"])
def test_the_t_test_is_the_paired_one_of_scipy(direction):
    rng = np.random.default_rng(0)
    one, other = rng.normal(0.3, 1, 25), rng.normal(0, 1, 25)
    known = stats.ttest_rel(one, other, alternative=direction).pvalue
    assert student_p(list(one - other), direction=direction) == pytest.approx(known)


@pytest.mark.parametrize("direction", ["greater", "less"])
def test_wilcoxons_test_counts_signs_of_ranks(direction):
    changes = [0.5, -1.5, 2.5, 3.5, -0.25, 4.5, 7.0, 0.125]
    found = wilcoxon_p(changes, direction=direction)
    assert found == pytest.approx(signed_rank_p(changes, direction))


def test_wilcoxons_test_of_ties_is_scipys_approximation():
    changes = [0.5, 0.5, -0.5, 1.0, 2.0]
    known = stats.wilcoxon(changes, alternative="greater", method="approx").pvalue
    assert wilcoxon_p(changes, direction="greater") == pytest.approx(known)


def test_changes_of_zero_say_nothing_to_wilcoxon():
    changes = [0.5, -1.5, 2.5, 3.5]
    with_zeros = wilcoxon_p([0.0, *changes, 0.0], direction="greater")
    assert with_zeros == wilcoxon_p(changes, direction="greater")
    assert wilcoxon_p([0.0, 0.0], direction="less") is None


@given(CHANGES)
def test_the_two_directions_of_the_t_test_share_all_probability(changes):
    up, down = (student_p(changes, direction=d) for d in ("greater", "less"))
    if up is None or down is None:
        assert up is down is None
        assert len(set(changes)) == 1
    else:
        assert up + down == pytest.approx(1)
        mirrored = student_p([-change for change in changes], direction="less")
        assert mirrored == pytest.approx(up)


@settings(max_examples=50)
@given(CHANGES, st.randoms(use_true_random=False))
def test_tests_do_not_see_the_order(changes, random):
    mixed = random.sample(changes, len(changes))
    for test in (student_p, wilcoxon_p):
        one, other = (test(some, direction="less") for some in (changes, mixed))
        assert one == pytest.approx(other) if one is not None else other is None


def test_a_direction_that_is_none_is_refused():
    with pytest.raises(ValueError, match="student_p: direction must be 'greater' or"):
        student_p([1.0, 2.0], direction="two-sided")
    with pytest.raises(ValueError, match="bootstrap_interval: statistic must be 'mean"):
        bootstrap_interval([1.0, 2.0], statistic="mode")


@pytest.mark.parametrize(
    ("statistic", "truth"), [("mean", 1.0), ("median", float(np.log(2)))]
)
def test_the_bootstrap_covers_the_truth_about_as_often_as_it_says(statistic, truth):
    # Skewed as the changes are: exponential, mean 1, median log 2. 300 samples of 120:
    # three binomial standard errors at 0.95 are 0.038, and the percentile interval of
    # a skewed mean is known to fall short by some 0.01.
    rng = np.random.default_rng(1)
    covered = []
    for _ in range(300):
        sample = rng.exponential(1.0, 120)
        low, high = bootstrap_interval(sample, statistic=statistic, n_resamples=1000)
        covered.append(low <= truth <= high)
    assert 0.90 <= np.mean(covered) <= 0.99


def test_the_bootstrap_of_a_mean_is_as_wide_as_its_standard_error_says():
    values = np.random.default_rng(2).normal(5, 2, 120)
    low, high = bootstrap_interval(list(values))
    error = values.std() / np.sqrt(120)  # the bootstrap divides by n, not n - 1
    # 10000 resamples place a 2.5 % quantile to 0.027 standard errors, so three of
    # these on either side make 0.16 of 3.92: four percent.
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.06)
    assert low < values.mean() < high


def test_the_bootstrap_repeats_itself_and_keeps_pairs():
    values = list(np.random.default_rng(3).normal(0, 1, 40))
    first = bootstrap_interval(values)
    assert bootstrap_interval(values) == first
    moved = bootstrap_interval([value + 10 for value in values])
    assert moved == pytest.approx([end + 10 for end in first])
    assert bootstrap_interval(values, seed=1) != first


@pytest.mark.parametrize("values", [[], [3.0]])
def test_what_has_no_spread_has_no_interval(values):
    assert bootstrap_interval(values) is None
