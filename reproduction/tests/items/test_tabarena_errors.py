"""The errors against scikit-learn's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from normalign_reproduction.items.tabarena.experiment import (
    auc_error,
    error_of,
    log_loss,
    rmse,
)

SEEDS = st.integers(0, 10_000)


@given(seed=SEEDS, n=st.integers(2, 40), levels=st.integers(1, 6))
def test_the_auc_is_scikit_learns_also_with_ties(seed, n, levels):
    random = np.random.default_rng(seed)
    scores = random.integers(levels, size=n).astype(float)
    truth = random.permutation(np.arange(n) % 2)
    expected = 1 - metrics.roc_auc_score(truth, scores)
    assert auc_error(scores, truth) == pytest.approx(expected, abs=1e-12)


@given(seed=SEEDS, n=st.integers(2, 40))
def test_a_ranking_turned_round_has_the_other_error(seed, n):
    random = np.random.default_rng(seed)
    scores, truth = random.normal(size=n), random.permutation(np.arange(n) % 2)
    both = auc_error(scores, truth) + auc_error(-scores, truth)
    assert both == pytest.approx(1.0, abs=1e-12)
    assert auc_error(-scores, 1 - truth) == pytest.approx(auc_error(scores, truth))


def test_one_class_alone_has_no_auc():
    assert np.isnan(auc_error(np.ones(3), np.zeros(3, dtype=int)))


@given(seed=SEEDS, n=st.integers(1, 30), k=st.integers(2, 6))
def test_the_log_loss_is_scikit_learns(seed, n, k):
    random = np.random.default_rng(seed)
    chances = random.dirichlet(np.full(k, 0.3), size=n)
    truth = random.integers(k, size=n)
    expected = metrics.log_loss(truth, chances, labels=np.arange(k))
    # one rounds off at the ends, the other within its arguments
    assert log_loss(chances, truth) == pytest.approx(expected, rel=1e-6)


def test_a_sure_mistake_costs_the_precision_of_a_double():
    cost = log_loss(np.array([[1.0, 0.0]]), np.array([1]))
    assert cost == pytest.approx(52 * np.log(2))


def test_the_rmse_is_scikit_learns():
    random = np.random.default_rng(0)
    found, truth = random.normal(size=(2, 50))
    expected = metrics.root_mean_squared_error(truth, found)
    assert rmse(found, truth) == pytest.approx(expected, rel=1e-12)


class Knowing:
    """A machine that was shown classes 0 and 2 of three."""

    classes_ = np.array([0, 2])

    def predict_proba(self, x):
        return np.tile([0.25, 0.75], (len(x), 1))


def test_a_class_that_was_not_shown_has_no_chance():
    x = np.zeros((2, 1))
    settings = {"metric": "log_loss", "n_classes": 3}
    assert error_of(Knowing(), x, np.array([0, 0]), **settings) == pytest.approx(
        np.log(4)
    )
    assert error_of(Knowing(), x, np.array([1, 1]), **settings) > 36
