"""Small tables to search over, and the same search by a plain loop."""

from __future__ import annotations

import numpy as np
import pytest

from normalign.estimators import RFAMClassifier, RFAMRegressor
from normalign.estimators._search import RFAMClassifierCV, RFAMRegressorCV

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(90, 3))
NUMBERS = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.3 * RANDOM.normal(size=90)
WORDS = np.array(["ant", "bee", "cat"])[np.digitize(NUMBERS, [-0.5, 0.5])]
WEIGHTS = RANDOM.integers(1, 4, size=90).astype(float)
SMALL = {"ridges": (1.0, 0.01), "identity_weights": (0.0, 1.0), "n_iter": 2}
KINDS = [(RFAMClassifierCV, RFAMClassifier), (RFAMRegressorCV, RFAMRegressor)]


def answers(kind):
    return WORDS if kind in (RFAMClassifier, RFAMClassifierCV) else NUMBERS


def plain_loop(plain, splits, y, weights=None, scorer=None, **fixed):
    """Mean scores by a triple loop over fresh fits."""
    found = {}
    for weight in SMALL["identity_weights"]:
        for ridge in SMALL["ridges"]:
            for n_iter in range(SMALL["n_iter"] + 1):
                scores = []
                for train, test in splits:
                    machine = plain(
                        ridge=ridge, identity_weight=weight, n_iter=n_iter, **fixed
                    )
                    part = None if weights is None else weights[train]
                    machine.fit(X[train], y[train], part)
                    if scorer is None:
                        mass = None if weights is None else weights[test]
                        scores.append(machine.score(X[test], y[test], mass))
                    else:
                        scores.append(scorer(machine, X[test], y[test]))
                found[ridge, weight, n_iter] = np.array(scores)
    return found


def agree(machine, found):
    """Compare every score, the choice and its score with the plain loop's."""
    results = machine.cv_results_
    for index, params in enumerate(results["params"]):
        expected = found[params["ridge"], params["identity_weight"], params["n_iter"]]
        ours = [
            results[f"split{fold}_test_score"][index] for fold in range(len(expected))
        ]
        # The same machines and the same formulas; R squared is summed otherwise.
        np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(results["mean_test_score"][index], expected.mean())
    best = max(value.mean() for value in found.values())
    assert machine.best_score_ == pytest.approx(best, abs=1e-10)
    equals = [key for key, value in found.items() if value.mean() > best - 1e-10]
    ridge, weight, n_iter = min(equals, key=lambda key: (-key[0], key[2], 1 - key[1]))
    assert (machine.ridge_, machine.identity_weight_, machine.n_iter_) == (
        ridge,
        weight,
        n_iter,
    )
