"""Time, threads and memory of jobs side by side."""

import dataclasses
import itertools
import pickle
import time
from multiprocessing.pool import ThreadPool

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone

from normalign.estimators import RFAMRegressorCV, RFMRegressor, _jobs
from normalign.estimators._fit import Recipe
from normalign.estimators._jobs import Clock, Pace, shared_threads
from normalign.kernels import Laplace
from tests.estimators.samples import NUMBERS, X, ticking

RECIPE = Recipe(kernel=Laplace(bandwidth=5.0))


def threads_of(n_jobs):
    with shared_threads(n_jobs):
        return torch.get_num_threads()


def test_another_iteration_is_as_long_as_the_longest(monkeypatch):
    ticking(monkeypatch, seconds=[1, 4, 1, 2])
    pace = Pace(10.0)
    # at 1, 5, 6 and 8 seconds, with four more to come
    assert [pace.another() for _ in range(4)] == [True, True, True, False]


def test_without_a_limit_there_is_always_time():
    pace = Pace(Clock().budget())
    assert pace.another()


@pytest.mark.parametrize("kind", [RFMRegressor, RFAMRegressorCV])
def test_a_wall_clock_that_is_set_changes_no_time_limit(kind, monkeypatch):
    jumps = itertools.count(1e9, 1e6)
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    machine = kind(n_iter=2, time_limit_s=1000, random_state=0).fit(X, NUMBERS)
    if kind is RFMRegressor:
        assert machine.n_iter_ == 2
    else:
        assert np.isfinite(machine.cv_results_["mean_test_score"]).all()


def test_a_clock_keeps_its_time_in_another_process():
    clock = pickle.loads(pickle.dumps(Clock.within(50.0)))
    assert 49 < clock.budget() <= 50
    assert pickle.loads(pickle.dumps(Clock(None, 3))) == Clock(None, 3)


def test_a_clock_goes_on_with_the_seconds_left_on_another_machine(monkeypatch):
    # a job that waits for a second worker of this machine has used up its time
    sent = pickle.dumps(Clock.within(0.01))
    time.sleep(0.02)
    assert pickle.loads(sent).budget() == 0
    monkeypatch.setattr(_jobs, "_machine", lambda: "another")
    assert 0 < pickle.loads(sent).budget() <= 0.01


def test_workers_share_the_cores_and_leave_the_threads_as_they_were():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert threads_of(1) == 2
        assert threads_of(10**6) == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_jobs_that_overlap_in_one_process_restore_its_threads():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        one, other = shared_threads(10**6), shared_threads(10**6)
        one.__enter__()
        other.__enter__()
        one.__exit__(None, None, None)
        assert torch.get_num_threads() == 1
        other.__exit__(None, None, None)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_threading_backend_leaves_the_threads_to_come_as_they_were():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        for _ in range(2):
            with joblib.parallel_config("threading", n_jobs=2), ThreadPool(2) as pool:
                machine = RFMRegressor(n_iter=2, max_leaf_size=20, n_jobs=2)
                machine.fit(X, NUMBERS)
                # threads that stay between jobs, as the workers of a cluster do
                pool.map(threads_of, [10**6] * 20)
                assert set(pool.map(threads_of, [1] * 20)) == {4}
            with ThreadPool(1) as fresh:
                assert fresh.apply(torch.get_num_threads) == 4
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


def test_memory_is_divided_among_workers():
    solver = dataclasses.replace(RECIPE.solver, memory_limit=1000)
    recipe = dataclasses.replace(RECIPE, solver=solver)
    assert recipe.share_memory(4).solver.memory_limit == 250
    assert recipe.share_memory(1).solver.memory_limit == 1000
    assert RECIPE.share_memory(1).solver.memory_limit is None


@pytest.mark.parametrize("number", [np.int8, np.int32, np.int64, np.uint8])
def test_a_number_of_workers_of_numpys_overflows_nothing(number):
    with joblib.parallel_config("threading"):
        assert type(_jobs.jobs_at_once(number(2))) is int
        assert list(_jobs.parallel(len, ["ab", "c"], number(2))) == [2, 1]
        shared = {"n_jobs": number(2), "random_state": 0}
        machine = RFMRegressor(n_iter=1, max_leaf_size=20, **shared)
        search = RFAMRegressorCV(ridges=[1.0], n_iter=0, cv=2, **shared)
        for one in (machine, search):
            plain = clone(one).set_params(n_jobs=2).fit(X, NUMBERS)
            found = one.fit(X, NUMBERS).predict(X)
            np.testing.assert_array_equal(found, plain.predict(X))


def test_what_is_free_is_divided_among_workers(monkeypatch):
    monkeypatch.setattr(_jobs, "available_bytes", lambda device: 4 << 30)
    assert RECIPE.share_memory(4).solver.memory_limit == 1 << 30
    # of so little nobody is asked what is free, whoever works beside
    assert RECIPE.share_memory(4096).solver.memory_limit == 1 << 26
