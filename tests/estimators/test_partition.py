from __future__ import annotations

import dataclasses
import math
import os
import pickle

import joblib
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.utils.estimator_checks import check_estimator

from normalign.estimators import RFAMRegressor, RFMClassifier, RFMRegressor, _partition
from normalign.estimators._fit import Recipe, Validation, fit_single
from normalign.estimators._jobs import Clock
from normalign.estimators._partition import (
    BlendedMachine,
    CutJob,
    Tree,
    band,
    cut_axes,
    fit_partitioned,
    grow,
    merge_rows,
    smoothstep,
)
from normalign.kernels import Gaussian, Laplace, ProductLaplace
from tests.estimators.samples import ticking

RECIPE = Recipe(kernel=Laplace(bandwidth=5.0), ridge=0.1, n_iter=2)


def rows(n=300, d=3, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, d))
    y = np.stack([np.sin(2 * x[:, 0]) + x[:, 1], x[:, 0] * x[:, 1]], axis=1)
    return x, y


def outputs(fitted, x, recipe=RECIPE):
    machine = fitted.machine(dtype=recipe.dtype)
    return machine(torch.as_tensor(x, dtype=recipe.dtype)).numpy()


@pytest.mark.usefixtures("half_by_default")
def test_cuts_do_not_depend_on_a_default_dtype_of_torch():
    x, y = rows(50)
    job = CutJob(RECIPE, x, y, np.ones(50), seed=0, n_jobs=1)
    found = cut_axes(job)
    torch.set_default_dtype(torch.float32)
    np.testing.assert_array_equal(found, cut_axes(job))


def explained(outputs, targets, weights):
    error = (weights[:, None] * (outputs - targets).square()).sum()
    return 1 - float(error / (weights[:, None] * targets.square()).sum())


def later_is_worse(outputs, targets, weights):
    later_is_worse.calls += 1
    return -float(later_is_worse.calls)


def test_one_leaf_is_the_direct_machine():
    x, y = rows(60)
    fitted = fit_partitioned(x, y, recipe=RECIPE, max_leaf_size=60)
    whole = fit_single(RECIPE, x, y)
    assert fitted.leaves["offsets"].tolist() == [0, 60]
    # Rows are in another order, so sums round differently; the system's condition
    # (60 / ridge) multiplies that.
    np.testing.assert_allclose(fitted.metric, whole.metric, rtol=1e-10, atol=1e-12)
    order = np.lexsort(fitted.x_fit.T)
    np.testing.assert_allclose(
        fitted.coef[order], whole.coef[np.lexsort(x.T)], rtol=1e-9, atol=1e-11
    )


def test_many_leaves_come_near_the_direct_machine():
    x, y = rows(800)
    at, truth = rows(400, seed=1)
    parts = fit_partitioned(x, y, recipe=RECIPE, max_leaf_size=150)
    direct = fit_partitioned(x, y, recipe=RECIPE, max_leaf_size=800)
    assert len(parts.leaves["offsets"]) > 8
    errors = [
        np.sqrt(np.mean((outputs(fitted, at) - truth) ** 2))
        for fitted in (parts, direct)
    ]
    # Half again as much error as with five times the rows in each system; a broken
    # blend or a metric of the wrong rows is off by the standard deviation, about 1.
    assert errors[0] < 1.5 * errors[1] < 0.5 * truth.std()


def test_the_metric_finds_the_columns_that_matter():
    x, _ = rows(600, d=5)
    y = np.sin(2 * x[:, 2:3])
    fitted = fit_partitioned(x, y, recipe=RECIPE, max_leaf_size=100)
    diagonal = fitted.metric.diagonal()
    assert diagonal.argmax() == 2
    assert diagonal[2] > 0.8 * diagonal.sum()
    np.testing.assert_allclose(diagonal.sum(), 5)


def test_a_diagonal_metric_stays_diagonal():
    x, y = rows(200)
    recipe = dataclasses.replace(RECIPE, diagonal=True)
    fitted = fit_partitioned(x, y, recipe=recipe, max_leaf_size=50)
    assert fitted.metric.shape == (3,)
    assert np.isfinite(outputs(fitted, x, recipe)).all()


@pytest.mark.parametrize(
    "kernel", [Laplace(5.0), Laplace(5.0, exponent=1.5), Gaussian(5.0)]
)
def test_the_jacobian_is_the_derivative_with_the_gates_in_it(kernel):
    x, y = rows(200)
    recipe = dataclasses.replace(RECIPE, kernel=kernel)
    fitted = fit_partitioned(x, y, recipe=recipe, max_leaf_size=40)
    machine = fitted.machine(dtype=torch.float64)
    at = torch.as_tensor(rows(50, seed=3)[0])
    bands = sum(int((visit.gate < 1).sum()) for visit in machine.tree.visits(at))
    assert bands > 20
    step = 1e-6
    for axis in range(3):
        shift = torch.zeros(3, dtype=torch.float64)
        shift[axis] = step
        numeric = (machine(at + shift) - machine(at - shift)) / (2 * step)
        # Central differences: error step^2 times third derivatives, which the
        # narrowest bands make large, and rounding 1e-16 / step.
        torch.testing.assert_close(
            machine.jacobian(at)[:, :, axis], numeric, rtol=1e-5, atol=1e-6
        )


def test_outputs_are_continuous_across_cells():
    x, y = rows(300)
    fitted = fit_partitioned(x, y, recipe=RECIPE, max_leaf_size=50)
    machine = fitted.machine(dtype=torch.float64)
    line = torch.linspace(-2, 2, 4001, dtype=torch.float64)[:, None] * torch.ones(3)
    jumps = (machine(line)[1:] - machine(line)[:-1]).abs().amax(1)
    slopes = machine.jacobian(line).sum(2).abs().amax(1)
    # No step is larger than the steepest slope along the line allows.
    assert jumps.max() < 2 * slopes.max() * 1e-3
    assert len(machine.machines) >= 8


def test_merged_rows_have_mean_targets_and_summed_weights():
    x = np.array([[1.0, 2.0], [0.0, -0.0], [1.0, 2.0], [0.0, 0.0]])
    y = np.array([[1.0], [5.0], [4.0], [5.0]])
    found, units = merge_rows(x, y, np.array([1.0, 2.0, 2.0, 3.0]))
    order = found[0][:, 0].argsort()
    assert found[0][order].tolist() == [[0.0, 0.0], [1.0, 2.0]]
    assert found[1][order].tolist() == [[5.0], [3.0]]
    assert found[2][order].tolist() == [5.0, 3.0]
    own = units.of(order[1:])  # of the row with two answers
    assert own.targets.tolist() == [[1.0], [4.0]]
    assert own.weights.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("rule", ["fixed", "median"])
def test_a_weight_of_two_is_the_row_twice_in_any_order(rule):
    x, y = rows(120)
    recipe = dataclasses.replace(
        RECIPE, bandwidth_rule=rule, kernel=Laplace(1.0), identity_weight=0.3,
        agop_samples=50,
    )  # fmt: skip
    weights = 1 + np.arange(120) % 3
    weighted = fit_partitioned(
        x, y, weights.astype(float), recipe=recipe, max_leaf_size=30, n_left_out=20
    )
    order = np.random.default_rng(5).permutation(weights.sum())
    repeated = fit_partitioned(
        x.repeat(weights, 0)[order],
        y.repeat(weights, 0)[order],
        recipe=recipe,
        max_leaf_size=30,
        n_left_out=20,
    )
    at = rows(50, seed=1)[0]
    np.testing.assert_allclose(
        outputs(weighted, at, recipe), outputs(repeated, at, recipe), rtol=1e-9
    )
    np.testing.assert_allclose(
        weighted.left_out.outputs, repeated.left_out.outputs, rtol=1e-9
    )


def test_left_out_outputs_are_those_of_fits_without_the_row():
    x, y = rows(60)
    recipe = dataclasses.replace(RECIPE, n_iter=0)
    fitted = fit_partitioned(x, y, recipe=recipe, max_leaf_size=60, n_left_out=5)
    for output, target in zip(*fitted.left_out[:2], strict=True):
        row = int(np.flatnonzero((y == target).all(1))[0])
        used = np.arange(60) != row
        without = fit_partitioned(x[used], y[used], recipe=recipe, max_leaf_size=60)
        np.testing.assert_allclose(
            outputs(without, x[row : row + 1], recipe)[0], output, rtol=1e-8
        )


def test_a_repeated_row_is_left_out_with_its_own_answer():
    x, y = rows(30)
    x, y = x.repeat(2, 0), y.repeat(2, 0)
    y[1::2] += np.random.default_rng(1).normal(size=(30, 2))
    weights = np.tile([1.0, 1.0, 1.0, 0.5], 15)
    recipe = dataclasses.replace(RECIPE, n_iter=0)
    fitted = fit_partitioned(
        x, y, weights, recipe=recipe, max_leaf_size=60, n_left_out=60
    )
    assert len(fitted.left_out.outputs) == 60
    for output, target, weight in zip(*fitted.left_out, strict=True):
        row = int(np.flatnonzero((y == target).all(1))[0])
        assert weights[row] == weight
        used = np.arange(60) != row
        without = fit_single(recipe, x[used], y[used], weights[used])
        distances = np.linalg.norm(x[row] - x[used], axis=1)
        wanted = np.exp(-distances / 5.0) @ without.coef
        # the merged system and the unmerged one, 60 rows of which half are equal
        np.testing.assert_allclose(output, wanted, rtol=1e-7)


def test_noisy_labels_of_repeated_rows_are_calibrated_alike_in_parts():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).repeat(2, 0)
    labels = (x[:, 0] + rng.normal(size=400) > 0).astype(int)
    whole = RFMClassifier(n_iter=1).fit(x, labels)
    parts = RFMClassifier(n_iter=1, max_leaf_size=399).fit(x, labels)
    assert len(parts.leaves_["offsets"]) == 2
    # one system with equal rows merged: its answers agree to about 1e-9
    np.testing.assert_allclose(parts.temperature_, whole.temperature_, rtol=1e-6)


@pytest.mark.parametrize("n_iter", [0, 1])
def test_a_leaf_that_needs_double_precision_keeps_it(n_iter):
    x, y = rows(300)
    # a ridge far below what float32 can see beside a diagonal of ones
    recipe = dataclasses.replace(
        RECIPE, kernel=Gaussian(5.0), ridge=1e-10, n_iter=n_iter, dtype=torch.float32
    )
    fitted = fit_partitioned(x, y, recipe=recipe, max_leaf_size=100)
    assert fitted.report.dtype == "float64"
    assert fitted.coef.dtype == fitted.x_fit.dtype == np.float64
    assert fitted.machine(dtype=torch.float32).dtype == torch.float64
    fine = dataclasses.replace(recipe, dtype=torch.float64)
    wanted = fit_partitioned(x, y, recipe=fine, max_leaf_size=100)
    at = rows(100, seed=1)[0]
    # float32 has a part in the cuts, and so in the blend
    np.testing.assert_allclose(
        outputs(fitted, at, fine), outputs(wanted, at, fine), atol=0.05 * y.std()
    )


def test_left_out_outputs_of_many_leaves_predict_worse_than_the_fit_but_well():
    x, y = rows(400)
    fitted = fit_partitioned(x, y, recipe=RECIPE, max_leaf_size=60, n_left_out=400)
    left_out = fitted.left_out
    assert left_out.outputs.shape == (400, 2)
    inside = np.mean((outputs(fitted, fitted.x_fit) - left_out.targets) ** 2)
    outside = np.mean((left_out.outputs - left_out.targets) ** 2)
    assert inside < outside < 0.5 * left_out.targets.var()


def test_the_best_iteration_is_kept_on_validation_rows():
    x, y = rows(200)
    at, truth = rows(50, seed=1)
    validation = Validation(at, truth, np.ones(50), explained)
    fitted = fit_partitioned(
        x, y, recipe=RECIPE, max_leaf_size=50, validation=validation
    )
    report = fitted.report
    assert len(report.scores) == 3
    assert report.n_iter == int(np.argmax(report.scores))
    again = validation(fitted.machine())
    assert again == pytest.approx(max(report.scores), rel=1e-12)


def test_the_first_of_equal_iterations_is_kept():
    x, y = rows(100)
    later_is_worse.calls = 0
    validation = Validation(x, y, np.ones(100), later_is_worse)
    fitted = fit_partitioned(
        x, y, recipe=RECIPE, max_leaf_size=30, validation=validation
    )
    assert fitted.report.n_iter == 0
    assert later_is_worse.calls == 3


def test_a_time_limit_already_past_leaves_iteration_zero():
    x, y = rows(100)
    fitted = fit_partitioned(
        x, y, recipe=RECIPE, max_leaf_size=30, clock=Clock.within(1e-9), n_left_out=10
    )
    assert fitted.report.n_iter == 0
    assert fitted.report.cut_short
    np.testing.assert_array_equal(fitted.metric, np.eye(3))
    assert len(fitted.left_out.outputs) == 10


def test_no_iteration_is_begun_that_would_end_too_late(monkeypatch):
    x, y = rows(100)
    ticking(monkeypatch, seconds=4)
    # iterations end at 4 and 8 seconds; a third would at 12
    fitted = fit_partitioned(
        x, y, recipe=RECIPE, max_leaf_size=30, clock=Clock.within(10)
    )
    assert fitted.report.n_iter == 1
    assert fitted.report.cut_short


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_workers_do_not_change_the_answer(backend):
    x, y = rows(200)
    settings = {"recipe": RECIPE, "max_leaf_size": 40, "seed": 3, "n_left_out": 20}
    alone = fit_partitioned(x, y, **settings)
    with joblib.parallel_config(backend):
        together = fit_partitioned(x, y, n_jobs=2, **settings)
    for name, array in alone.leaves.items():
        np.testing.assert_allclose(together.leaves[name], array, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(together.coef, alone.coef, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(together.metric, alone.metric, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(
        together.left_out.outputs, alone.left_out.outputs, rtol=1e-10
    )


def test_leaves_run_on_a_cluster_of_two_processes_with_the_same_answer():
    distributed = pytest.importorskip(
        "distributed", reason="dask.distributed is not installed"
    )
    x, y = rows(200)
    settings = {"ridge": 0.1, "n_iter": 2, "max_leaf_size": 40, "random_state": 3}
    alone = RFMRegressor(**settings).fit(x, y)
    with (
        distributed.LocalCluster(
            n_workers=2,
            processes=True,
            threads_per_worker=1,
            dashboard_address=None,
        ) as cluster,
        distributed.Client(cluster) as client,
        joblib.parallel_config("dask"),
    ):
        spread = RFMRegressor(**settings).fit(x, y)
        processes = set(client.run(os.getpid).values())
        done = client.run(lambda dask_worker: dask_worker.state.executed_count)
    assert len(processes - {os.getpid()}) == 2
    # every leaf of every iteration was solved by one of the two
    leaves = len(spread.leaves_["offsets"]) - 1
    assert sum(done.values()) >= 3 * leaves
    assert min(done.values()) > 0
    at = rows(50, seed=1)[0]
    np.testing.assert_allclose(
        spread.predict(at), alone.predict(at), rtol=1e-10, atol=1e-10
    )


@pytest.fixture
def jobs(monkeypatch):
    """What is handed to workers: the jobs, and how many workers there may be."""
    seen = []

    def watched(call, jobs, n_jobs):
        seen.append((jobs, n_jobs))
        return parallel(call, jobs, n_jobs)

    parallel = _partition.parallel
    monkeypatch.setattr(_partition, "parallel", watched)
    return seen


def test_an_estimator_hands_its_number_of_workers_on(jobs):
    x, y = rows(120)
    RFMRegressor(max_leaf_size=40, n_iter=1, n_jobs=2).fit(x, y)
    assert {n_jobs for _, n_jobs in jobs} == {2}


def test_an_estimator_shows_a_bar_over_its_leaves(capfd):
    x, y = rows(120)
    RFMRegressor(max_leaf_size=40, n_iter=1, verbose=1).fit(x, y)
    assert "leaves: 100%" in capfd.readouterr().err


def test_an_estimator_hands_its_time_limit_on(monkeypatch):
    x, y = rows(120)
    ticking(monkeypatch, seconds=4)
    machine = RFMRegressor(max_leaf_size=40, n_iter=5, time_limit_s=10).fit(x, y)
    assert machine.n_iter_ == 1


def test_gradients_are_taken_at_a_sample_of_the_rows_of_all_leaves(jobs):
    x, y = rows(200)
    recipe = dataclasses.replace(RECIPE, agop_samples=50)
    fit_partitioned(x, y, recipe=recipe, max_leaf_size=40)
    sweeps = [some for some, _ in jobs if hasattr(some[0], "gradients_at")]
    assert len(sweeps) == 3
    for number, sweep in enumerate(sweeps):
        taken = np.concatenate([job.x[job.gradients_at] for job in sweep])
        # a row between two leaves counts in both, by its gates
        assert len(np.unique(taken, axis=0)) == (0 if number == 2 else 50)


def test_another_seed_cuts_elsewhere():
    x, y = rows(3000)
    recipe = dataclasses.replace(RECIPE, n_iter=0)
    one, other = (
        fit_partitioned(x, y, recipe=recipe, max_leaf_size=1600, seed=seed)
        for seed in (0, 1)
    )
    assert (one.leaves["directions"] != other.leaves["directions"]).any()


def test_a_bar_counts_leaves_and_iterations(capfd):
    x, y = rows(100)
    fit_partitioned(x, y, recipe=RECIPE, max_leaf_size=30, progress=True)
    told = capfd.readouterr()
    assert told.out == ""
    assert "leaves: 100%" in told.err
    fit_partitioned(x, y, recipe=RECIPE, max_leaf_size=30)
    assert capfd.readouterr().err == ""


def test_nothing_given_is_changed():
    x, y = rows(100)
    weights = np.ones(100)
    before = x.copy(), y.copy()
    fit_partitioned(x, y, weights, recipe=RECIPE, max_leaf_size=30)
    assert (x == before[0]).all()
    assert (y == before[1]).all()
    assert (weights == 1).all()


def test_centred_targets_come_back_far_from_all_rows():
    x, y = rows(100)
    machine = RFMRegressor(max_leaf_size=30, n_iter=1).fit(x, y + 7)
    far = machine.predict(np.full((1, 3), 1e9))
    np.testing.assert_allclose(far[0], (y + 7).mean(0))


@pytest.mark.parametrize(
    "make",
    [
        lambda random: np.repeat(random.normal(size=(5, 3)), 40, axis=0),
        lambda random: random.integers(0, 2, size=(200, 3)).astype(float),
        lambda random: np.c_[random.normal(size=200), np.zeros((200, 2))],
        lambda random: np.eye(200)[:, :50] * random.normal(),
        lambda random: random.normal(size=(200, 300)),
    ],
    ids=["duplicates", "binary", "constant columns", "one-hot", "more columns"],
)
def test_awkward_tables_give_finite_machines(make):
    x = make(np.random.default_rng(0))
    y = x[:, :1] + 1.0
    fitted = fit_partitioned(x, y, recipe=RECIPE, max_leaf_size=30)
    assert np.diff(fitted.leaves["offsets"]).max() <= 30
    assert np.isfinite(outputs(fitted, x)).all()
    machine = fitted.machine(dtype=torch.float64)
    assert torch.isfinite(machine.jacobian(torch.as_tensor(x))).all()


def test_leaves_of_one_row_interpolate():
    x, y = rows(20)
    recipe = dataclasses.replace(RECIPE, ridge=1e-9)
    fitted = fit_partitioned(x, y, recipe=recipe, max_leaf_size=1)
    assert np.diff(fitted.leaves["offsets"]).max() == 1
    # The only row of each leaf, whose gate there is 1; the ridge is 1e-9 of k(x, x).
    (_, wanted, _), _ = merge_rows(x, y, None)
    np.testing.assert_allclose(outputs(fitted, fitted.x_fit), wanted)


def test_a_constant_target_is_predicted():
    x, _ = rows(100)
    machine = RFMRegressor(max_leaf_size=20).fit(x, np.full(100, 3.0))
    np.testing.assert_array_equal(machine.predict(x), 3.0)


def test_the_product_kernel_works_in_leaves():
    x, y = rows(200)
    recipe = dataclasses.replace(RECIPE, kernel=ProductLaplace(5.0))
    fitted = fit_partitioned(x, y, recipe=recipe, max_leaf_size=50)
    assert np.abs(outputs(fitted, x, recipe) - y).mean() < 0.5 * np.abs(y).mean()


def test_a_blended_machine_moves_between_precisions():
    x, y = rows(150)
    fitted = fit_partitioned(x, y, recipe=RECIPE, max_leaf_size=40)
    double = fitted.machine(dtype=torch.float64)
    single = double.to(dtype=torch.float32)
    assert isinstance(single, BlendedMachine)
    at = torch.as_tensor(x)
    assert single(at.float()).dtype == torch.float32
    # float32 has seven digits, and coefficients of both signs cancel some of them.
    torch.testing.assert_close(
        single(at.float()).double(), double(at), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("kind", [RFMClassifier, RFAMRegressor])
def test_the_contract_of_scikit_learn_holds_in_parts(kind):
    check_estimator(kind(max_leaf_size=15, n_iter=1))


def test_a_classifier_in_parts_answers_like_one_in_one_piece():
    x, y = rows(600)
    labels = np.where(y[:, 0] > 0, "up", "down")
    at, truth = rows(300, seed=1)
    wanted = np.where(truth[:, 0] > 0, "up", "down")
    settings = {"ridge": 0.1, "n_iter": 2, "random_state": 0}
    whole = RFMClassifier(**settings).fit(x, labels)
    parts = RFMClassifier(max_leaf_size=150, **settings).fit(x, labels)
    assert len(parts.leaves_["offsets"]) > 4
    # 300 rows: two standard errors of an accuracy near 0.95 are 0.025.
    assert parts.score(at, wanted) > whole.score(at, wanted) - 0.025
    np.testing.assert_array_equal(
        parts.classes_[parts.predict_proba(at).argmax(1)], parts.predict(at)
    )
    np.testing.assert_allclose(
        parts.feature_importances_, whole.feature_importances_, atol=0.1
    )
    again = pickle.loads(pickle.dumps(parts))
    np.testing.assert_array_equal(again.predict_proba(at), parts.predict_proba(at))
    step = 1e-5
    shift = np.array([step, 0.0, 0.0])
    numeric = parts.decision_function(at + shift) - parts.decision_function(at - shift)
    jacobian = parts.jacobian(at)
    np.testing.assert_allclose(
        (jacobian[:, 1] - jacobian[:, 0])[:, 0], numeric / (2 * step), atol=1e-3
    )


def test_probabilities_in_parts_do_not_move_between_fits():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, 3))
    labels = x[:, 0] + rng.normal(size=900) > 0
    # so few rows are cut in one way only, whatever the seed
    settings = {"max_leaf_size": 400, "n_iter": 1, "ridge": 0.1}
    first, second = (
        RFMClassifier(**settings, random_state=seed).fit(x, labels).predict_proba(x)
        for seed in (0, 1)
    )
    np.testing.assert_array_equal(first, second)


def test_an_estimator_keeps_its_best_iteration_in_parts():
    x, y = rows(300)
    settings = {"max_leaf_size": 80, "validation_fraction": 0.2, "random_state": 0}
    machine = RFAMRegressor(n_iter=3, ridge=0.1, **settings).fit(x, y)
    assert machine.validation_scores_.shape == (4,)
    assert machine.n_iter_ == machine.validation_scores_.argmax()
    assert machine.score(*rows(200, seed=1)) > 0.5


def coordinate_axes(x):
    return lambda nodes: [torch.eye(x.shape[1], dtype=torch.float64) for _ in nodes]


def random_axes(x, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (3, x.shape[1])
    return lambda nodes: [
        torch.randn(shape, generator=generator, dtype=torch.float64) for _ in nodes
    ]


def table(n, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64)


def gates(tree, x):
    """All gates as one (n, leaves) matrix."""
    dense = torch.zeros(len(x), tree.n_leaves, dtype=torch.float64)
    for visit in tree.visits(x):
        dense[visit.rows, visit.leaf] = visit.gate
    return dense


def test_smoothstep_has_flat_ends_and_is_symmetric():
    place = torch.linspace(0, 1, 11, dtype=torch.float64, requires_grad=True)
    value = smoothstep(place)
    torch.testing.assert_close(value + smoothstep(1 - place), torch.ones_like(value))
    (slope,) = torch.autograd.grad(value.sum(), place)
    assert slope[0] == slope[-1] == 0
    torch.testing.assert_close(slope, 6 * place * (1 - place))


@given(
    values=st.lists(st.integers(-3, 3), min_size=2, max_size=40),
    overlap=st.floats(0, 0.9),
)
def test_a_band_leaves_something_beyond_each_of_its_ends(values, overlap):
    projection = torch.tensor(values, dtype=torch.float64)
    edges = band(projection, overlap=overlap)
    if len(set(values)) == 1:
        assert edges is None
        return
    assert edges is not None
    assert edges[0] < edges[1]
    assert (projection <= edges[0]).any()
    assert (projection >= edges[1]).any()


@given(n=st.integers(2, 200), overlap=st.floats(0, 0.9))
def test_without_ties_no_side_holds_more_than_half_and_half_the_overlap(n, overlap):
    edges = band(torch.arange(n, dtype=torch.float64), overlap=overlap)
    assert edges is not None
    held = sum(value < edges[1] for value in range(n))
    # The quantiles are counted in whole rows, hence one row of slack.
    assert held <= max(n * (1 + overlap) / 2 + 1, 1)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 120),
    d=st.integers(1, 4),
    limit=st.integers(2, 30),
    overlap=st.sampled_from([0.0, 0.1, 0.4]),
    seed=st.integers(0, 5),
)
def test_gates_are_a_partition_of_unity_and_leaves_hold_their_support(
    n, d, limit, overlap, seed
):
    x = table(n, d, seed)
    tree, leaves = grow(
        x, max_leaf_size=limit, overlap=overlap, axes=random_axes(x, seed)
    )
    assert len(leaves) == tree.n_leaves
    assert max(len(rows) for rows in leaves) <= limit
    assert min(len(rows) for rows in leaves) >= 1
    everywhere = torch.cat([x, 3 * table(50, d, seed + 100)])
    dense = gates(tree, everywhere)
    assert (dense >= 0).all()
    # A product of at most log2(n) pairs that each sum to 1 in float64.
    torch.testing.assert_close(
        dense.sum(1), torch.ones(len(everywhere), dtype=torch.float64)
    )
    for leaf, rows in enumerate(leaves):
        reached = set((dense[:n, leaf] > 1e-12).nonzero()[:, 0].tolist())
        assert reached <= set(rows.tolist())


def test_gate_gradients_are_those_of_automatic_differentiation():
    x = table(60, 3)
    tree, _ = grow(x, max_leaf_size=10, overlap=0.4, axes=random_axes(x))
    at = table(40, 3, seed=1).requires_grad_(True)
    dense = gates(tree, at)
    crossing = 0
    gradients = torch.zeros(40, tree.n_leaves, 3, dtype=torch.float64)
    for visit in tree.visits_with_gradients(at.detach()):
        gradients[visit.rows, visit.leaf] = visit.gradient
        crossing += int((visit.gradient != 0).any(1).sum())
    assert crossing > 20
    for leaf in range(tree.n_leaves):
        (expected,) = torch.autograd.grad(dense[:, leaf].sum(), at, retain_graph=True)
        torch.testing.assert_close(gradients[:, leaf], expected)


def test_gates_are_continuous_across_every_band_edge():
    tree = Tree(torch.ones(1, 1), torch.tensor([[0.0, 1.0]]), torch.tensor([[-1, -2]]))
    around = torch.tensor([[-1e-6], [0.0], [1e-6], [1 - 1e-6], [1.0], [1 + 1e-6]])
    dense = gates(tree, around.double())
    # The slope at an edge is 0, so 1e-6 away the gate moved by about 3e-12; the
    # float32 literals above round 1 - 1e-6 by up to 6e-8 more.
    assert (dense[:3, 1] < 1e-11).all()
    assert (dense[3:, 1] > 1 - 1e-11).all()


def test_no_cut_gives_one_leaf_that_answers_alone():
    x = table(5, 2)
    tree, leaves = grow(x, max_leaf_size=5, overlap=0.1, axes=random_axes(x))
    assert [rows.tolist() for rows in leaves] == [[0, 1, 2, 3, 4]]
    (visit,) = tree.visits(x)
    assert visit.leaf == 0
    assert visit.gate.tolist() == [1.0] * 5


def test_identical_rows_become_one_leaf_whatever_their_number():
    x = torch.ones(50, 3, dtype=torch.float64)
    tree, leaves = grow(x, max_leaf_size=4, overlap=0.1, axes=random_axes(x))
    assert tree.n_leaves == 1
    assert len(leaves[0]) == 50


def test_a_binary_axis_is_cut_between_its_two_values():
    x = torch.tensor([[0.0]] * 7 + [[1.0]] * 3, dtype=torch.float64)
    tree, leaves = grow(x, max_leaf_size=8, overlap=0.1, axes=coordinate_axes(x))
    assert [len(rows) for rows in leaves] == [7, 3]
    assert tree.bands.tolist() == [[0.0, 1.0]]


def test_rounding_around_a_binary_axis_does_not_cut_inside_its_atoms():
    x = table(200, 2)
    x[:, 0] = (x[:, 0] > 0.8).double()
    axis = torch.tensor([[1.0, 1e-15]], dtype=torch.float64)
    tree, _ = grow(
        x, max_leaf_size=199, overlap=0.0, axes=lambda nodes: [axis for _ in nodes]
    )
    torch.testing.assert_close(
        tree.bands, torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    )


def test_a_lopsided_axis_gives_way_to_a_more_even_one():
    x = table(100, 2)
    x[:, 0] = 0.0
    x[0, 0] = 1.0
    tree, leaves = grow(x, max_leaf_size=60, overlap=0.0, axes=coordinate_axes(x))
    assert tree.directions.tolist() == [[0.0, 1.0]]
    assert [len(rows) for rows in leaves] == [50, 50]


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_leaves_do_not_depend_on_the_unit_of_the_data(scale):
    x = table(64, 2)
    here = grow(x, max_leaf_size=10, overlap=0.1, axes=random_axes(x)).leaves
    there = grow(scale * x, max_leaf_size=10, overlap=0.1, axes=random_axes(x)).leaves
    assert [rows.tolist() for rows in here] == [rows.tolist() for rows in there]


def test_outliers_of_every_scale_do_not_stop_growth():
    x = torch.tensor([[10.0**power] for power in range(60)], dtype=torch.float64)
    _, leaves = grow(x, max_leaf_size=12, overlap=0.1, axes=coordinate_axes(x))
    assert max(len(rows) for rows in leaves) <= 12
    assert torch.cat(leaves).unique().tolist() == list(range(60))


def test_depth_is_logarithmic_for_continuous_data():
    x = table(4096, 3)
    tree, _ = grow(x, max_leaf_size=64, overlap=0.0, axes=random_axes(x))
    assert tree.n_leaves == 64
    assert math.log2(tree.n_leaves) == 6


def test_growth_asks_for_the_axes_of_a_whole_level_at_once():
    x = table(64, 2)
    asked = []

    def axes(nodes):
        asked.append(len(nodes))
        return [torch.eye(2, dtype=torch.float64) for _ in nodes]

    grow(x, max_leaf_size=8, overlap=0.0, axes=axes)
    assert asked == [1, 2, 4]
