import re
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.kernel_ridge import KernelRidge
from torch.func import jacrev, vmap

from normalign import local_geometry
from normalign.estimators import (
    RFAMClassifier,
    RFAMRegressor,
    RFMClassifier,
    RFMRegressor,
    _rfm,
    as_torch,
)
from normalign.kernels import Laplace, Machine
from tests.estimators.samples import CODES, FRESH, NUMBERS, REGRESSORS, WORDS, D, N, X
from tests.kernels import transcription

PAPER = {"center": False, "dtype": "float64"}


def test_the_regressor_is_the_plain_transcription_of_algorithm_1():
    x, y = torch.as_tensor(X), torch.as_tensor(NUMBERS)[:, None]
    metric, coef = transcription.rfm(x, y, exact=True)[-1]
    wanted = transcription.outputs(torch.as_tensor(FRESH), x, coef, metric, exact=True)
    machine = RFMRegressor(**PAPER).fit(X, NUMBERS)
    # what the issue asks of float64
    np.testing.assert_allclose(machine.metric_, metric, atol=1e-8)
    np.testing.assert_allclose(machine.predict(FRESH), wanted[:, 0], atol=1e-8)


def test_the_classifier_fits_indicators_of_its_classes():
    indicators = np.eye(3)[CODES]
    by_hand = RFMRegressor(**PAPER).fit(X, indicators)
    machine = RFMClassifier(**PAPER).fit(X, WORDS)
    outputs = by_hand.predict(FRESH)
    np.testing.assert_allclose(machine.decision_function(FRESH), outputs, rtol=1e-12)
    assert list(machine.predict(FRESH)) == [
        machine.classes_[j] for j in outputs.argmax(axis=1)
    ]


def test_without_iterations_it_is_kernel_ridge_regression():
    gamma = 1 / (2 * 3.0**2)
    ridge = KernelRidge(kernel="rbf", gamma=gamma, alpha=0.1).fit(X, NUMBERS)
    machine = RFMRegressor(
        kernel="gaussian", bandwidth=3.0, ridge=0.1, n_iter=0, **PAPER
    ).fit(X, NUMBERS)
    # distances by cancellation: half the digits near a center
    np.testing.assert_allclose(machine.predict(FRESH), ridge.predict(FRESH), rtol=1e-7)
    assert machine.n_iter_ == 0
    np.testing.assert_array_equal(machine.metric_, np.eye(D))


def test_the_product_kernel_without_iterations_is_the_l1_laplacian():
    ridge = KernelRidge(kernel="laplacian", gamma=0.2, alpha=0.1).fit(X, NUMBERS)
    machine = RFMRegressor(
        kernel="product_laplace", bandwidth=5.0, ridge=0.1, n_iter=0, **PAPER
    ).fit(X, NUMBERS)
    np.testing.assert_allclose(machine.predict(FRESH), ridge.predict(FRESH), rtol=1e-9)


def test_a_centred_machine_fits_deviations_and_predicts_the_mean_far_away():
    far = np.full((1, D), 1e6)
    centred = RFMRegressor().fit(X, NUMBERS)
    by_hand = RFMRegressor(center=False).fit(X, NUMBERS - NUMBERS.mean())
    np.testing.assert_allclose(centred.predict(far), NUMBERS.mean(), rtol=1e-12)
    np.testing.assert_allclose(
        centred.predict(FRESH), by_hand.predict(FRESH) + NUMBERS.mean(), rtol=1e-10
    )


def test_far_from_all_rows_the_largest_class_is_predicted():
    kept = np.r_[np.flatnonzero(CODES == 1), np.flatnonzero(CODES != 1)[:20]]
    machine = RFMClassifier().fit(X[kept], WORDS[kept])
    assert machine.predict(np.full((1, D), 1e6)) == ["bee"]
    shares = [np.mean(WORDS[kept] == name) for name in machine.classes_]
    np.testing.assert_allclose(machine.intercept_, shares)


@pytest.mark.parametrize("kernel", ["laplace", "gaussian", "product_laplace"])
@pytest.mark.parametrize("diagonal", [False, True])
def test_the_closed_form_jacobian_is_that_of_the_torch_module(kernel, diagonal):
    machine = RFMClassifier(kernel=kernel, diagonal=diagonal, n_iter=2).fit(X, WORDS)
    module = as_torch(machine)
    # fresh rows, and training rows, where the kernel has its kink
    points = torch.as_tensor(np.concatenate([FRESH, X[:5]]))
    wanted = vmap(jacrev(lambda x: module(x[None])[0]))(points)
    found = machine.jacobian(points.numpy())
    assert found.shape == (20, 3, D)
    np.testing.assert_allclose(found, wanted, atol=1e-8)
    np.testing.assert_allclose(
        module(points), machine.decision_function(points.numpy()), atol=1e-8
    )


def test_the_geometry_of_a_fitted_machine_is_measured_like_a_networks():
    machine = RFMRegressor(exponent=1.3).fit(X, np.stack([NUMBERS, X[:, 2]], 1))
    points = torch.as_tensor(FRESH)
    measured = local_geometry(as_torch(machine), points)
    norms = np.linalg.norm(machine.jacobian(FRESH), axis=(1, 2))
    np.testing.assert_allclose(measured.jacobian_norm, norms, rtol=1e-7)


def test_the_jacobian_is_the_derivative_of_the_outputs():
    machine = RFMRegressor(bandwidth=3e3).fit(1e3 * X + 5e4, 1e6 * NUMBERS + 1e9)
    at, step = 1e3 * FRESH + 5e4, 1e-2
    found = machine.jacobian(at)[:, 0]
    for j in range(D):
        move = step * np.eye(D)[j]
        slope = (machine.predict(at + move) - machine.predict(at - move)) / (2 * step)
        # 1e9 in float64 leaves 1e-7 of an answer, over 2 steps of a hundredth
        np.testing.assert_allclose(found[:, j], slope, rtol=1e-4, atol=1e-3)


def test_importances_are_squared_sensitivities_to_standard_deviations():
    machine = RFMRegressor().fit(X, NUMBERS)
    found = machine.feature_importances_
    assert found.sum() == pytest.approx(1)
    assert found[0] > found[1] > found[2:].max()
    wanted = machine.metric_.diagonal() * X.var(axis=0)
    np.testing.assert_allclose(found, wanted / wanted.sum(), rtol=1e-9)
    # in other units of the whole table
    again = RFMRegressor(bandwidth=1000.0).fit(100 * X, NUMBERS)
    np.testing.assert_allclose(again.feature_importances_, found, rtol=1e-9)
    constant = np.column_stack([X, np.full(N, 7.0)])
    assert RFMRegressor().fit(constant, NUMBERS).feature_importances_[-1] == 0


@pytest.mark.parametrize("kind", REGRESSORS)
@pytest.mark.parametrize("settings", [{}, {"max_leaf_size": 30}], ids=str)
def test_nothing_matters_to_a_constant_target(kind, settings):
    for number in (0.0, 1.0, 0.1):  # whose mean over 60 rows is rounded
        machine = kind(random_state=0, **settings).fit(X, np.full(N, number))
        np.testing.assert_array_equal(machine.feature_importances_, 0.0)
        np.testing.assert_array_equal(machine.predict(FRESH), number)


def test_a_constant_target_does_not_spoil_the_others():
    both = np.stack([np.full(N, 0.1), NUMBERS], axis=1)
    machine = RFMRegressor(dtype="float32").fit(X, both)
    alone = RFMRegressor(dtype="float32").fit(X, NUMBERS)
    np.testing.assert_array_equal(machine.predict(FRESH)[:, 0], 0.1)
    # sums over two columns of coefficients are in another order
    np.testing.assert_allclose(
        machine.predict(FRESH)[:, 1], alone.predict(FRESH), rtol=1e-3
    )


def test_a_median_bandwidth_does_not_see_the_units_of_a_table():
    settings = {"bandwidth_rule": "median", "bandwidth": 1.0}
    plain = RFMRegressor(**settings).fit(X, NUMBERS)
    scaled = RFMRegressor(**settings).fit(X * 1e-30, NUMBERS)
    np.testing.assert_allclose(
        scaled.predict(FRESH * 1e-30), plain.predict(FRESH), rtol=1e-9
    )
    assert scaled.bandwidth_ == pytest.approx(plain.bandwidth_ * 1e-30, rel=1e-9)


def test_shifting_a_table_by_a_lot_changes_nothing_even_in_single_precision():
    plain = RFMRegressor(dtype="float32").fit(X, NUMBERS)
    shifted = RFMRegressor(dtype="float32").fit(X + 2.0**30, NUMBERS - 2.0**30)
    assert shifted.dtype_ == "float32"
    # X + 2^30 keeps 22 bits behind the point, NUMBERS too
    np.testing.assert_allclose(
        shifted.predict(FRESH + 2.0**30) + 2.0**30, plain.predict(FRESH), atol=1e-5
    )


def test_the_precision_follows_the_number_of_rows_and_what_is_asked():
    big = np.repeat(X, 20, axis=0)
    assert RFMRegressor().fit(X, NUMBERS).dtype_ == "float64"
    with pytest.warns(UserWarning, match="bandwidths apart"):
        assert RFMRegressor().fit(1e20 * X, NUMBERS).dtype_ == "float64"
    coarse = RFMRegressor(n_iter=0).fit(big, np.repeat(NUMBERS, 20))
    assert coarse.dtype_ == "float32"
    assert coarse.predict(FRESH).dtype == np.float64
    assert coarse.predict(FRESH.astype(np.float32)).dtype == np.float32
    assert coarse.device_ == "cpu"


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_every_solver_reaches_the_same_machine(solver):
    settings = {"ridge": 0.1, "n_iter": 2}
    wanted = RFMRegressor(**settings).fit(X, NUMBERS).predict(FRESH)
    machine = RFMRegressor(solver=solver, **settings).fit(X, NUMBERS)
    assert machine.solver_ == solver
    assert machine.converged_
    assert machine.jitter_ == 0
    # conjugate gradients stop at a relative residual of 1e-4
    np.testing.assert_allclose(machine.predict(FRESH), wanted, atol=1e-2)


def test_auto_turns_to_conjugate_gradients_where_the_matrix_does_not_fit():
    n = 1500
    rng = np.random.default_rng(1)
    table = rng.normal(size=(n, 2))
    limit = n * n // 2 * 8 - 1  # a triangle in float64, almost
    machine = RFMRegressor(n_iter=0, ridge=0.1, dtype="float64", memory_limit=limit)
    assert machine.fit(table, table[:, 0]).solver_ == "cg"


def test_a_factor_that_does_not_fit_is_refused_with_three_remedies():
    machine = RFMRegressor(solver="cholesky", memory_limit=1000)
    with pytest.raises(ValueError, match="memory_limit must be at least") as caught:
        machine.fit(X, NUMBERS)
    for remedy in ("max_leaf_size", 'solver="cg"', "larger memory_limit"):
        assert remedy in str(caught.value)


def test_a_wide_table_that_does_not_fit_may_with_a_diagonal_metric():
    x, y = np.random.default_rng(0).normal(size=(20, 3000)), np.arange(20) % 2
    settings = {"n_iter": 1, "memory_limit": 20_000_000}
    with pytest.raises(ValueError, match="Set diagonal=True to keep one number"):
        RFMClassifier(**settings).fit(x, y)
    found = RFMClassifier(diagonal=True, **settings).fit(x, y)
    assert found.metric_.shape == (3000,)


def test_the_best_iteration_on_rows_kept_apart_is_kept():
    settings = {"validation_fraction": 0.3, "random_state": 1, "n_iter": 4}
    machine = RFMClassifier(**settings).fit(X, WORDS)
    scores = machine.validation_scores_
    assert len(scores) == 5
    assert machine.n_iter_ == int(np.argmax(scores))
    assert len(machine.X_fit_) == N - 18
    # the rows kept apart are those of X that are not in the machine
    known = {tuple(row) for row in machine.X_fit_}
    apart = np.array([tuple(row) not in known for row in X])
    assert machine.score(X[apart], WORDS[apart]) == pytest.approx(scores.max())
    # of every class the same share
    assert set(np.bincount(CODES[apart])) == {6}
    # nothing is refitted: stopping there gives the same machine
    again = RFMClassifier(n_iter=machine.n_iter_).fit(X[~apart], WORDS[~apart])
    np.testing.assert_allclose(
        again.decision_function(FRESH), machine.decision_function(FRESH), rtol=1e-9
    )


def test_a_regressor_scores_rows_kept_apart_by_their_weighted_r_squared():
    weights = np.random.default_rng(2).integers(1, 4, size=N)
    machine = RFMRegressor(validation_fraction=0.3, random_state=0, n_iter=2)
    machine.fit(X, np.stack([NUMBERS, X[:, 1]], 1), sample_weight=weights)
    known = {tuple(row) for row in machine.X_fit_}
    apart = np.array([tuple(row) not in known for row in X])
    score = machine.score(
        X[apart], np.stack([NUMBERS, X[:, 1]], 1)[apart], weights[apart]
    )
    assert score == pytest.approx(machine.validation_scores_.max(), rel=1e-9)


def test_probabilities_of_a_large_table_do_not_move_between_fits():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(800, 3))
    labels = table[:, 0] + rng.normal(size=800) > 0
    machine = RFMClassifier(n_iter=1)
    first = machine.fit(table, labels).predict_proba(table)
    for seed in (None, 7):
        machine.set_params(random_state=seed).fit(table, labels)
        np.testing.assert_array_equal(machine.predict_proba(table), first)


def test_the_same_random_state_gives_the_same_machine_and_another_one_another():
    def fitted(seed):
        return RFMRegressor(validation_fraction=0.5, random_state=seed).fit(X, NUMBERS)

    np.testing.assert_array_equal(fitted(0).X_fit_, fitted(0).X_fit_)
    assert not np.array_equal(fitted(0).X_fit_, fitted(1).X_fit_)


def test_fitting_never_draws_from_global_generators():
    np.random.seed(3)  # noqa: NPY002, the generator in question
    before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    RFMClassifier(validation_fraction=0.2).fit(X, WORDS)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_before)


def test_a_time_limit_stops_after_the_first_machine():
    start = time.perf_counter()
    machine = RFMRegressor(n_iter=100_000, time_limit_s=1e-9).fit(X, NUMBERS)
    assert machine.n_iter_ == 0
    assert time.perf_counter() - start < 30


def test_a_bar_is_shown_on_stderr_only_when_asked_for(capsys):
    RFMRegressor(n_iter=2).fit(X, NUMBERS)
    assert capsys.readouterr().err == ""
    RFMRegressor(n_iter=2, verbose=1).fit(X, NUMBERS)
    shown = capsys.readouterr()
    assert "3/3" in shown.err
    assert shown.out == ""


def test_the_fitted_arrays_are_the_machine():
    fitted = RFMRegressor().fit(X, NUMBERS)
    machine = Machine(
        *map(torch.as_tensor, (fitted.X_fit_, fitted.dual_coef_, fitted.metric_)),
        Laplace(fitted.bandwidth_),
        torch.as_tensor(fitted.intercept_),
    )
    np.testing.assert_allclose(
        machine(torch.as_tensor(FRESH))[:, 0], fitted.predict(FRESH), rtol=1e-9
    )


def test_parameters_changed_after_fit_wait_for_the_next_fit():
    machine = RFMRegressor().fit(X, NUMBERS)
    wanted = machine.predict(FRESH)
    machine.set_params(kernel="gaussian", bandwidth=0.1, exponent=1.0)
    machine._machine = []  # made of the arrays again
    np.testing.assert_array_equal(machine.predict(FRESH), wanted)


@pytest.mark.cuda
def test_a_machine_fitted_on_a_gpu_agrees_with_one_fitted_here():
    here = RFMClassifier(device="cpu").fit(X, WORDS)
    there = RFMClassifier(device="cuda").fit(X, WORDS)
    assert there.device_.startswith("cuda")
    np.testing.assert_allclose(
        there.predict_proba(FRESH), here.predict_proba(FRESH), rtol=1e-6
    )
    tensor = torch.as_tensor(FRESH, device="cuda")
    assert RFMClassifier().fit(torch.as_tensor(X).cuda(), CODES).device_ == "cuda:0"
    assert there.decision_function(tensor).device.type == "cuda"


def wide_table(kind, n=1200):
    rng = np.random.default_rng(4)
    table = rng.normal(size=(n, 4))
    y = np.sin(2 * table[:, 1]) + table[:, 2]
    if kind == "outlier":
        table[0, 0] = 1e8
    else:
        table[:, 0] = 300.0 * rng.integers(0, 2, size=n)
    return table, y


@pytest.mark.filterwarnings("ignore:.*bandwidths apart")
@pytest.mark.parametrize("kind", ["outlier", "clusters"])
def test_a_table_that_float32_would_blur_is_fitted_in_float64(kind):
    table, y = wide_table(kind)
    machine = RFMRegressor(n_iter=1).fit(table[:1100], y[:1100])
    assert machine.dtype_ == "float64"
    x, targets = torch.as_tensor(table[:1100]), torch.as_tensor(y[:1100])[:, None]
    shift = targets.mean()
    metric, coef = transcription.rfm(x, targets - shift, n_iter=1, exact=True)[-1]
    held = torch.as_tensor(table[1100:])
    wanted = transcription.outputs(held, x, coef, metric, exact=True) + shift
    np.testing.assert_allclose(machine.predict(held), wanted[:, 0], atol=1e-5)


def test_float32_by_force_warns_where_it_blurs_the_table():
    table, y = wide_table("outlier", n=200)
    with pytest.warns(UserWarning, match='RFMRegressor: .*Set dtype="float64", or sc'):
        RFMRegressor(dtype="float32", n_iter=0).fit(table, y)
    RFMRegressor(dtype="float64", n_iter=0).fit(table, y)


@pytest.mark.parametrize(
    "settings", [{"exponent": 0.5}, {"kernel": "product_laplace", "n_iter": 1}]
)
def test_kernels_steeper_than_a_laplace_kernel_are_computed_in_float64(settings):
    x = np.linspace(0, 1, 1100)[:, None]
    machine = RFMRegressor(**{"n_iter": 0, **settings}).fit(x, np.sin(12 * x[:, 0]))
    assert machine.dtype_ == "float64"
    plain = RFMRegressor(n_iter=0).fit(x, np.sin(12 * x[:, 0]))
    assert plain.dtype_ == "float32"


def test_where_single_precision_does_not_do_the_machine_is_in_double():
    settings = {"kernel": "gaussian", "ridge": 1e-10, "n_iter": 2}
    machine = RFMRegressor(dtype="float32", **settings).fit(X, NUMBERS)
    fine = RFMRegressor(dtype="float64", **settings).fit(X, NUMBERS)
    assert machine.solver_dtype_ == machine.dtype_ == "float64"
    assert machine.metric_.dtype == np.float64
    assert machine._model()[0].coef.dtype is torch.float64
    # rows enter unrounded, so from the first iteration on it is the same machine
    np.testing.assert_allclose(machine.predict(FRESH), fine.predict(FRESH), rtol=1e-6)
    np.testing.assert_allclose(machine.jacobian(X), fine.jacobian(X), atol=1e-5)
    module = as_torch(machine)
    np.testing.assert_allclose(
        module(torch.as_tensor(FRESH))[:, 0], machine.predict(FRESH), atol=1e-5
    )


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_targets_of_very_different_sizes_are_all_learned(solver):
    rng = np.random.default_rng(5)
    table = rng.normal(size=(1100, 3))
    y = np.stack([np.sin(table[:, 0]), table[:, 1]], axis=1)
    settings = {"n_iter": 0, "ridge": 0.1, "solver": solver}
    plain = RFMRegressor(dtype="float64", **settings).fit(table, y)
    mixed = RFMRegressor(**settings).fit(table, y * [1.0, 1e-60])
    assert mixed.dtype_ == "float64"
    # conjugate gradients stop at a relative residual of 1e-4
    np.testing.assert_allclose(
        mixed.predict(table) * [1.0, 1e60], plain.predict(table), atol=1e-3
    )


def test_targets_near_the_end_of_the_numbers_are_refused_or_learned():
    with pytest.raises(ValueError, match="RFMRegressor: y must be of absolute values"):
        RFMRegressor().fit(X, 1e308 * np.sign(NUMBERS))
    plain, large = (RFMRegressor().fit(X, s * NUMBERS) for s in (1.0, 1e249))
    np.testing.assert_allclose(
        large.predict(FRESH) / 1e249, plain.predict(FRESH), rtol=1e-9
    )


def test_rows_that_vanish_beside_an_outlier_are_refused():
    table = X.copy()
    table[0, 0] = 1e180
    with pytest.raises(ValueError, match="without rows beside which"):
        RFMRegressor(bandwidth_rule="median", bandwidth=1.0).fit(table, NUMBERS)


def test_single_precision_agrees_with_double_up_to_its_digits():
    rng = np.random.default_rng(3)
    table = rng.normal(size=(1200, 5))
    y = np.sin(table[:, 0]) + 0.1 * rng.normal(size=1200)
    fresh = rng.normal(size=(50, 5))
    settings = {"ridge": 1e-2, "n_iter": 3}
    coarse = RFMRegressor(**settings).fit(table, y)
    fine = RFMRegressor(dtype="float64", **settings).fit(table, y)
    assert (coarse.dtype_, fine.dtype_) == ("float32", "float64")
    # condition about n / ridge = 1e5, rounding 6e-8
    np.testing.assert_allclose(coarse.predict(fresh), fine.predict(fresh), atol=2e-2)
    np.testing.assert_allclose(coarse.metric_, fine.metric_, atol=1e-2)


def test_a_caution_of_the_solver_is_told_once_in_the_name_of_whom_was_called():
    x = np.random.default_rng(0).normal(size=(60, 2))
    machine = RFMRegressor(ridge=1e-18, kernel="gaussian", bandwidth=100.0)
    with pytest.warns(UserWarning, match="not positive definite") as told:
        machine.fit(x, x[:, 0])
    (one,) = (w for w in told if "definite" in str(w.message))
    assert str(one.message).startswith("RFMRegressor: K + ridge")
    assert one.filename == __file__
    assert machine.jitter_ > 0


@pytest.mark.parametrize(
    ("device", "n", "settings", "size"),
    [
        ("cpu", 20_000, {}, None),
        ("cpu", 20_001, {}, 8000),
        ("cuda", 200_000, {}, None),
        ("cuda", 200_001, {}, 40_000),
        ("cpu", 50_000, {"solver": "cg"}, None),
        ("cpu", 50_000, {"solver": "cholesky"}, None),
        ("cpu", 50_000, {"max_leaf_size": None}, None),
        ("cpu", 50_000, {"max_leaf_size": 999}, 999),
        ("cpu", 999, {"max_leaf_size": 999}, None),
    ],
)
def test_large_tables_are_fitted_in_parts_unless_one_system_is_asked_for(
    device, n, settings, size
):
    problem = SimpleNamespace(n=n, device=torch.device(device))
    assert RFMClassifier(**settings)._leaf_size(problem) == size


def test_a_table_above_the_limit_is_fitted_in_parts(monkeypatch):
    monkeypatch.setattr(_rfm, "_SINGLE_ROWS", {"cpu": 50, "accelerator": 50})
    monkeypatch.setattr(_rfm, "_LEAF_ROWS", {"cpu": 20, "accelerator": 20})
    machine = RFMRegressor(n_iter=0, random_state=0).fit(X, NUMBERS)
    wanted = RFMRegressor(n_iter=0, random_state=0, max_leaf_size=20).fit(X, NUMBERS)
    assert len(machine.leaves_["offsets"]) > 2
    np.testing.assert_array_equal(machine.predict(FRESH), wanted.predict(FRESH))


def test_conjugate_gradients_that_find_nothing_name_the_ridge():
    machine = RFMClassifier(solver="cg", ridge=1e-30, n_iter=3, bandwidth=1.0)
    said = (
        "RFMClassifier: ridge must be large enough for conjugate gradients to approach "
        'a solution, got 1.0e-30. Raise ridge, or use solver="cholesky".'
    )
    with pytest.raises(ValueError, match=re.escape(said)):
        machine.fit([[0.0], [0.0], [1.0]], [0, 1, 1])


@pytest.mark.parametrize("identity_weight", [0.0, 0.3, 1.0])
def test_it_is_algorithm_1_from_the_papers_initial_metric(identity_weight):
    x, y = torch.as_tensor(3 * X), torch.as_tensor(NUMBERS)[:, None]
    machines = transcription.rfm(x, y, identity_weight=identity_weight, exact=True)
    for n_iter in (0, 5):
        metric, coef = machines[n_iter]
        wanted = transcription.outputs(
            torch.as_tensor(FRESH), x, coef, metric, exact=True
        )
        machine = RFAMRegressor(
            identity_weight=identity_weight, n_iter=n_iter, center=False
        ).fit(3 * X, NUMBERS)
        np.testing.assert_allclose(machine.metric_, metric, atol=1e-8)
        np.testing.assert_allclose(machine.predict(FRESH), wanted[:, 0], atol=1e-8)


def test_with_the_identity_alone_it_is_an_rfm():
    aligned = RFAMClassifier(identity_weight=1.0).fit(X, WORDS)
    plain = RFMClassifier().fit(X, WORDS)
    np.testing.assert_array_equal(
        aligned.predict_proba(FRESH), plain.predict_proba(FRESH)
    )
    other = RFAMClassifier().fit(X, WORDS)
    assert np.abs(other.metric_ - plain.metric_).max() > 1e-3


@given(st.integers(0, 2**31), st.integers(2, 6))
def test_the_metric_stays_a_combination_of_outer_products_of_the_rows(seed, n):
    """The proposition on the feature matrix, with fewer rows than columns.

    The covariance lies in the span of the centred rows, and so does every update.
    """
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(n, 8))
    machine = RFAMRegressor(bandwidth=3.0).fit(table, rng.normal(size=n))
    centred = table - table.mean(axis=0)
    projection = np.linalg.pinv(centred) @ centred
    # rounding of a metric of trace 8, in five updates
    inside = projection @ machine.metric_ @ projection
    np.testing.assert_allclose(machine.metric_, inside, atol=1e-8)


def test_a_blend_keeps_its_meaning_whatever_frame_the_table_is_put_in():
    scale, weight = 2.0**13, 0.4
    machine = RFAMRegressor(identity_weight=weight, n_iter=0, bandwidth=scale).fit(
        scale * X, NUMBERS
    )
    blend = (1 - weight) * np.cov((scale * X).T) + weight * np.eye(D)
    np.testing.assert_allclose(
        machine.metric_, blend * (D / np.trace(blend)), rtol=1e-10
    )


def test_rfam_and_rfm_differ_in_their_names_and_one_parameter():
    more = set(RFAMRegressor().get_params()) - set(RFMRegressor().get_params())
    assert more == {"identity_weight"}
