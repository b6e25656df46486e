"""The last or best machine of a recursion on a whole table."""

import dataclasses
import time

import numpy as np
import pytest

from normalign.estimators._fit import Recipe, Validation, fit_single
from normalign.estimators._jobs import Clock
from normalign.kernels import Laplace, Solver
from tests.estimators.samples import NUMBERS, X, ticking

RECIPE = Recipe(kernel=Laplace(bandwidth=5.0), ridge=0.1, n_iter=2)
Y = NUMBERS[:, None]


def test_without_time_there_is_iteration_zero():
    fit = fit_single(RECIPE, X, Y, clock=Clock(time.monotonic() - 1))
    assert fit.report.n_iter == 0
    assert fit.report.cut_short
    np.testing.assert_array_equal(fit.metric, np.eye(X.shape[1]))


def test_with_time_there_is_the_last():
    report = fit_single(RECIPE, X, Y).report
    assert report.n_iter == 2
    assert not report.cut_short


def test_no_iteration_is_begun_that_would_end_too_late(monkeypatch):
    ticking(monkeypatch, seconds=4)
    report = fit_single(RECIPE, X, Y, clock=Clock.within(10)).report
    assert report.n_iter == 1  # at 8 seconds; the next would be at 12
    assert report.cut_short


@pytest.mark.parametrize("best", [0, 1, 2])
def test_the_best_iteration_is_kept_and_all_are_scored(best):
    given = iter(-abs(index - best) for index in range(3))
    validation = Validation(X, Y, np.ones(len(X)), lambda *_: float(next(given)))
    fit = fit_single(RECIPE, X, Y, validation=validation)
    assert fit.report.n_iter == best
    assert len(fit.report.scores) == 3
    alone = fit_single(dataclasses.replace(RECIPE, n_iter=best), X, Y)
    np.testing.assert_allclose(fit.coef, alone.coef, rtol=1e-9, atol=1e-12)


def test_of_equal_iterations_the_first_is_kept():
    validation = Validation(X, Y, np.ones(len(X)), lambda *_: 1.0)
    assert fit_single(RECIPE, X, Y, validation=validation).report.n_iter == 0


def test_rows_are_left_out_of_the_machine_that_is_kept():
    chosen = np.array([3, 40])
    outputs, targets, weights = fit_single(RECIPE, X, Y, leave_out=chosen).left_out
    np.testing.assert_array_equal(targets, Y[chosen])
    assert weights is None
    used = np.arange(len(X)) != 3
    first = dataclasses.replace(RECIPE, n_iter=0)
    without, *_ = fit_single(first, X, Y, leave_out=chosen).left_out
    machine = fit_single(first, X[used], Y[used])
    distances = np.linalg.norm(X[3] - X[used], axis=1)
    np.testing.assert_allclose(without[0], np.exp(-distances / 5) @ machine.coef)
    assert np.abs(outputs - without).max() > 1e-6  # in another metric


def test_conjugate_gradients_leave_out_fewer_rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    recipe = dataclasses.replace(RECIPE, solver=Solver("cg"), n_iter=0)
    outputs, targets, _ = fit_single(
        recipe, x, x[:, :1], leave_out=np.arange(200)
    ).left_out
    assert len(outputs) == len(targets) == 64
    rows = np.flatnonzero(np.isin(x[:, 0], targets))
    exact, *_ = fit_single(
        dataclasses.replace(RECIPE, n_iter=0), x, x[:, :1], leave_out=rows
    ).left_out
    np.testing.assert_allclose(outputs, exact, atol=1e-3)
