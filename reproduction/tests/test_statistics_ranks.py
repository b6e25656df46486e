"""Tests by ranks, against scipy and the tables of their authors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from normalign_reproduction.statistics import (
    critical_difference,
    holm,
    signed_rank_p,
)

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@given(P_VALUES)
def test_holm_never_lowers_a_p_and_keeps_the_order(p_values):
    corrected = holm(p_values)
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    assert all(
        after >= before for before, after in zip(p_values, corrected, strict=True)
    )
    assert [corrected[i] for i in order] == sorted(corrected)
    smallest = min(1.0, len(p_values) * min(p_values))
    assert min(corrected) == pytest.approx(smallest)


def test_the_signed_rank_test_sees_both_sides():
    differences = [0.1, 0.2, 0.3, -0.05, 0.4, 0.25]
    opposite = [-value for value in differences]
    assert signed_rank_p(opposite) == pytest.approx(signed_rank_p(differences))
    assert signed_rank_p(differences) == stats.wilcoxon(differences).pvalue
    assert signed_rank_p([0.1]) is None
    assert signed_rank_p([1e-7, 0.0, -1e-7]) == 1.0


def test_differences_of_nothing_are_shared_between_the_sides():
    # Without its ties a method would look surely better after six tables of thirty.
    won = [0.01, 0.02, 0.03, 0.04, 0.05, 0.06]
    tied = won + [0.0] * 24
    assert signed_rank_p(won) == pytest.approx(2 / 2**6)
    assert signed_rank_p(tied) > signed_rank_p(won)
    assert signed_rank_p(won + [-1e-7] * 24) == signed_rank_p(tied)


def test_the_critical_difference_is_demsars():
    # Demsar (2006), Table 5a: q / sqrt(2) is 2.343 for three methods, 3.164 for ten.
    for k, q in ((3, 2.343), (10, 3.164)):
        expected = q * (k * (k + 1) / (6 * 30)) ** 0.5
        assert critical_difference(k, 30) == pytest.approx(expected, rel=1e-3)
