"""Small tables and the estimators that every test of their contract is run over."""

import numpy as np
import pytest

from normalign.estimators import (
    RFAMClassifier,
    RFAMRegressor,
    RFMClassifier,
    RFMRegressor,
    _jobs,
)

CLASSIFIERS = [RFMClassifier, RFAMClassifier]
REGRESSORS = [RFMRegressor, RFAMRegressor]
ESTIMATORS = CLASSIFIERS + REGRESSORS

RNG = np.random.default_rng(0)
N, D = 60, 4
X = RNG.normal(size=(N, D))
FRESH = RNG.normal(size=(15, D))
# Only the first two columns matter, and one of them more.
NUMBERS = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1]
CODES = np.digitize(NUMBERS, np.quantile(NUMBERS, [1 / 3, 2 / 3]))
WORDS = np.array(["ant", "bee", "cat"])[CODES]
needs_variable_width = pytest.mark.skipif(
    not hasattr(np.dtypes, "StringDType"),
    reason="texts of variable width came with numpy 2",
)


def answers(kind: type) -> np.ndarray:
    """Targets that suit an estimator: words for classifiers."""
    return WORDS if kind in CLASSIFIERS else NUMBERS


def ticking(monkeypatch, *, seconds):
    """Let that much time pass, for a pace, before every look at the clock but one."""
    steps = iter([0, *(seconds if isinstance(seconds, list) else [])])
    now = 0.0

    def passed(pace):
        nonlocal now
        now += next(steps, seconds)
        return now

    monkeypatch.setattr(_jobs.Pace, "_now", passed)
