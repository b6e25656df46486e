"""Algorithm 1: the plain transcription, weights, leave-one-out, Proposition 3."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign.kernels import (
    Gaussian,
    Laplace,
    Machine,
    Solver,
    _recursion,
    _solve,
    initial_metric,
    recursions,
)
from normalign.kernels._agop import centred_agop
from normalign.kernels._distances import new_generator
from tests.kernels import transcription
from tests.kernels.cases import DOUBLE, KERNELS, METRICS, metric, points


def fitted(x, y, **settings):
    given = {
        "kernel": Laplace(10.0), "ridge": 1e-3, "n_iter": 3,
        "metric": torch.eye(x.shape[1], dtype=x.dtype, device=x.device),
    } | settings  # fmt: skip
    return list(recursions(x, y, **given))


@pytest.mark.parametrize("identity_weight", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("k", [1, 4, 40])
def test_float64_agrees_with_the_plain_transcription(identity_weight, k):
    x, y = points(60, 5), points(60, k, seed=1)
    start = initial_metric(x, identity_weight=identity_weight)
    found = fitted(x, y, metric=start, n_iter=4)
    plain = transcription.rfm(
        x, y, n_iter=4, identity_weight=identity_weight, exact=True
    )
    assert len(found) == len(plain) == 5
    for one, (seen, coef) in zip(found, plain, strict=True):
        assert torch.allclose(one.machine.metric, seen, rtol=0, atol=1e-8)
        scale = coef.abs().max()
        assert torch.allclose(one.machine.coef / scale, coef / scale, atol=1e-8)
        assert (one.solved.solver, one.solved.jitter) == ("cholesky", 0)


def test_the_last_machine_alone_is_that_of_all():
    x, y = points(60, 5), points(60, 2, seed=1)
    *_, wanted = fitted(x, y)
    (found,) = fitted(x, y, every=False)
    assert found.index == wanted.index == 3
    assert torch.equal(found.machine.coef, wanted.machine.coef)
    assert torch.equal(
        found.left_out(torch.arange(9)), wanted.left_out(torch.arange(9))
    )


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("kind", METRICS[1:])
@pytest.mark.parametrize("rule", ["fixed", "median"])
def test_weights_are_repetitions(kernel, kind, rule):
    x, y = points(12, 3), points(12, 2, seed=1)
    weights = torch.tensor([1, 2, 1, 3, 1, 1, 2, 1, 1, 4, 1, 1], dtype=DOUBLE)
    counts = weights.long()
    settings = {
        "kernel": kernel, "metric": metric(kind, 3), "bandwidth_rule": rule,
        "center": True, "ridge": 1e-2, "n_iter": 2,
    }  # fmt: skip
    once = fitted(x, y, weights=weights, **settings)
    twice = fitted(
        x.repeat_interleave(counts, 0), y.repeat_interleave(counts, 0), **settings
    )
    fresh = points(5, 3, seed=7)
    first = torch.cumsum(counts, 0) - counts
    for one, two in zip(once, twice, strict=True):
        assert torch.allclose(one.machine(fresh), two.machine(fresh), atol=1e-9)
        assert torch.allclose(one.machine.metric, two.machine.metric, atol=1e-9)
        assert one.machine.metric.ndim == settings["metric"].ndim
    rows = torch.arange(12)
    # valid for the last one: nobody asked for another
    assert torch.allclose(once[-1].left_out(rows), twice[-1].left_out(first), atol=1e-7)


@pytest.mark.parametrize("ridge", [1e-3, 1e-6, 1e-8])
def test_where_float32_does_not_do_the_whole_machine_is_float64(ridge):
    x = points(300, 2, dtype=torch.float32)
    y = torch.sin(3 * x[:, :1]) + 0.3 * points(300, 1, seed=1, dtype=torch.float32)
    settings = {"kernel": Gaussian(3.0), "ridge": ridge, "n_iter": 2}
    found = fitted(x, y, **settings)
    wanted = fitted(x.double(), y.double(), **settings)
    fresh = points(50, 2, seed=5, dtype=torch.float32)
    for one, exact in zip(found, wanted, strict=True):
        assert one.machine.coef.dtype == one.machine.metric.dtype == DOUBLE
        apart = one.machine(fresh) - exact.machine(fresh)  # rows may be float32
        assert float(apart.abs().max()) < 1e-6
        assert one.machine.jacobian(fresh).dtype == DOUBLE
    rows = torch.arange(20)
    assert torch.allclose(
        found[-1].left_out(rows), wanted[-1].left_out(rows), atol=1e-3
    )


@pytest.mark.parametrize("ridge", [1e-3, 1e-6, 1e-10])
def test_left_out_outputs_hold_for_the_smallest_ridges(ridge):
    x, y = points(40, 4), points(40, 1, seed=1)
    settings = {"n_iter": 0, "ridge": ridge, "metric": metric("full", 4)}
    (last,) = fitted(x, y, **settings)
    found = last.left_out(torch.arange(3))
    for row in range(3):
        others = torch.arange(40) != row
        (without,) = fitted(x[others], y[others], **settings)
        assert torch.allclose(
            found[row], without.machine(x[row : row + 1])[0], atol=1e-6
        )


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_left_out_outputs_are_those_of_machines_fitted_without_the_row(solver):
    x, y = points(15, 3), points(15, 2, seed=1)
    seen = metric("full", 3)
    settings = {"metric": seen, "n_iter": 0, "ridge": 0.1}
    (last,) = fitted(x, y, solver=Solver(solver, tolerance=1e-12), **settings)
    found = last.left_out(torch.arange(15))
    for row in range(15):
        others = torch.arange(15) != row
        (without,) = fitted(x[others], y[others], **settings)
        wanted = without.machine(x[row : row + 1])[0]
        # conjugate gradients give the inverse's diagonal to two digits
        close = 1e-8 if solver == "cholesky" else 0.1
        assert torch.allclose(found[row], wanted, atol=close)


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_rows_are_left_out_until_the_next_iteration_is_asked_for(solver):
    x, y, rows = points(40, 3), points(40, 2, seed=1), torch.arange(5)
    settings = {"kernel": Laplace(2.0), "ridge": 0.1, "metric": metric("full", 3)}
    steps = recursions(x, y, n_iter=1, solver=Solver(solver), **settings)
    first = next(steps)
    assert first.left_out(rows).shape == (5, 2)
    last = next(steps)
    for late in (first.left_out, first.room):
        with pytest.raises(RuntimeError, match="until the next iteration is asked"):
            late(rows)
    assert next(steps, None) is None
    assert last.room(rows).shape == (5,)


def test_float32_is_let_go_before_float64_is_tried(monkeypatch):
    lost = iter([0.0, 1.0, 0.0, 0.0])  # the second is one of float32
    monkeypatch.setattr(_solve, "lost_share", lambda *_: next(lost))
    x = points(80, 3, dtype=torch.float32)
    settings = {"kernel": Laplace(2.0), "ridge": 0.1, "metric": torch.eye(3)}
    steps = list(recursions(x, x[:, :1], n_iter=2, **settings))
    assert [step.solved.dtype.itemsize for step in steps] == [4, 8, 8]
    memories = [step._solution.spare for step in steps]
    assert [len(memory.panels) > 0 for memory in memories] == [False, True, True]


def test_the_intercept_is_the_mean_and_takes_up_shifts():
    x, y = points(20, 3), points(20, 2, seed=1)
    plain, shifted = (
        fitted(x, target, center=True)[-1].machine for target in (y, y + 100)
    )
    assert torch.allclose(plain.intercept, y.mean(0))
    assert torch.allclose(shifted(x), plain(x) + 100, atol=1e-8)
    assert torch.equal(fitted(x, y)[0].machine.intercept, torch.zeros(2, dtype=DOUBLE))


@given(seed=st.integers(0, 10**6), identity_weight=st.floats(0, 1))
def test_the_feature_matrix_stays_a_combination_of_outer_products(
    seed, identity_weight
):
    """Proposition 3: M' = X^T C X, here for 4 points in 7 dimensions."""
    x, y = points(4, 7, seed=seed), points(4, 1, seed=seed + 1)
    start = initial_metric(x, identity_weight=0.0)
    inside = torch.linalg.pinv(x) @ x  # onto the span of the rows
    for one in fitted(x, y, metric=start, n_iter=3, ridge=1e-2):
        seen = one.machine.metric
        assert torch.allclose(inside @ seen @ inside, seen, atol=1e-8)
    mixed = fitted(
        x, y, metric=initial_metric(x, identity_weight=identity_weight), ridge=1e-2
    )
    # a start outside of the span is left at the first update
    for one in mixed[1:]:
        seen = one.machine.metric
        assert torch.allclose(inside @ seen @ inside, seen, atol=1e-8)


def test_the_metric_keeps_trace_d_and_finds_the_column_that_matters():
    x = points(80, 4)
    found = fitted(x, torch.sin(x[:, 2:3]), n_iter=4)
    for one in found:
        assert float(one.machine.metric.trace()) == pytest.approx(4)
    assert int(found[-1].machine.metric.diagonal().argmax()) == 2


def test_targets_without_a_gradient_leave_the_metric_alone():
    x = points(10, 3)
    found = fitted(x, torch.zeros(10, 1, dtype=DOUBLE))
    assert all(
        torch.equal(one.machine.metric, found[0].machine.metric) for one in found
    )


def test_one_row_is_a_machine():
    (*_, last) = fitted(points(1, 3), torch.ones(1, 1, dtype=DOUBLE))
    assert last.machine(points(1, 3)).item() == pytest.approx(1 / 1.001)


def test_many_rows_are_sampled_for_gradients_by_seed():
    x, y = points(50, 3), points(50, 1, seed=1)
    first, again, other, all_rows = (
        fitted(x, y, agop_samples=size, generator=torch.Generator().manual_seed(seed))
        for seed, size in ((0, 20), (0, 20), (1, 20), (0, 50))
    )
    assert torch.equal(first[-1].machine.metric, again[-1].machine.metric)
    assert not torch.equal(first[-1].machine.metric, other[-1].machine.metric)
    assert torch.equal(all_rows[-1].machine.metric, fitted(x, y)[-1].machine.metric)


def test_little_memory_forbids_the_square_of_slopes(monkeypatch):
    forms = []

    def watched(*tables, form, **settings):
        forms.append(form)
        return centred_agop(*tables, form=form, **settings)

    monkeypatch.setattr(_recursion, "centred_agop", watched)
    monkeypatch.setattr(_recursion, "_SMALL_SQUARE", 0)
    x, y = points(30, 6), points(30, 20, seed=1)
    for limit in (1 << 30, 10_000):
        fitted(x, y, n_iter=1, solver=Solver("cg", memory_limit=limit))
    assert forms == ["pairs", "gradients"]


def test_nothing_given_is_changed():
    x, y, start = points(20, 3), points(20, 2, seed=1), metric("full", 3)
    copies = x.clone(), y.clone(), start.clone()
    fitted(x, y, metric=start, weights=torch.ones(20, dtype=DOUBLE))
    assert all(torch.equal(a, b) for a, b in zip((x, y, start), copies, strict=True))


def test_a_machine_moves_between_precisions():
    machine = fitted(points(20, 3), points(20, 1, seed=1))[-1].machine
    moved = machine.to(dtype=torch.float32)
    assert isinstance(moved, Machine)
    x = points(4, 3, seed=3)
    assert torch.allclose(moved(x.float()).double(), machine(x), atol=1e-3)
    assert moved.jacobian(x.float()).dtype == torch.float32


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ridge": 0.0}, "ridge must be positive"),
        ({"n_iter": -1}, "n_iter must be 0 or more"),
        ({"weights": torch.zeros(6, dtype=DOUBLE)}, "weights must be positive"),
        ({"weights": torch.full((6,), 1e-320, dtype=DOUBLE)}, "is no number, got"),
        ({"weights": torch.full((6,), math.inf, dtype=DOUBLE)}, "positive and finite"),
        ({"bandwidth_rule": "medain"}, "bandwidth_rule must be"),
        ({"agop_samples": 0}, "agop_samples must be 1 or more"),
        ({"metric": torch.eye(3, dtype=DOUBLE)}, "metric must be of shape"),
    ],
)
def test_problems_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        fitted(points(6, 2), points(6, 1), **settings)


@pytest.mark.parametrize(
    "y", [torch.ones(6), torch.ones(5, 1), torch.ones(6, 1).half()]
)
def test_targets_that_do_not_fit_are_refused(y):
    with pytest.raises(ValueError, match="recursions: y must be of"):
        fitted(points(6, 2), y)


def test_targets_that_are_no_numbers_are_refused():
    y = points(6, 1)
    y[2] = float("nan")
    with pytest.raises(ValueError, match="y must be finite"):
        fitted(points(6, 2), y)


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    fitted(points(30, 2), points(30, 1), agop_samples=10, bandwidth_rule="median")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_resampled_update_counts_rows_as_often_as_they_are_drawn():
    x, y = points(30, 4), points(30, 2, seed=1)
    settings = {"kernel": Laplace(2.0), "ridge": 0.1, "metric": torch.eye(4).double()}
    first, second = recursions(
        x, y, n_iter=1, resampled=True, generator=new_generator(3), **settings
    )
    drawn = torch.randint(30, (30,), generator=new_generator(3))
    expected = sum(
        jacobian.T @ jacobian for jacobian in first.machine.jacobian(x)[drawn]
    )
    expected *= 4 / expected.trace()
    torch.testing.assert_close(second.machine.metric, expected)


@pytest.mark.parametrize("resampled", [False, True])
def test_rows_that_are_drawn_keep_their_weights(resampled):
    x, y = points(30, 4), points(30, 2, seed=1)
    weights = torch.linspace(0.5, 3, 30, dtype=DOUBLE)
    first, second = recursions(
        x, y, kernel=Laplace(2.0), ridge=0.1, metric=torch.eye(4).double(), n_iter=1,
        weights=weights, agop_samples=12, resampled=resampled,
        generator=new_generator(3),
    )  # fmt: skip
    drawn = torch.randint(30, (12,), generator=new_generator(3))
    if not resampled:
        drawn = torch.randperm(30, generator=new_generator(3))[:12]
    jacobians = first.machine.jacobian(x)[drawn]
    expected = torch.einsum("n,nkd,nke->de", weights[drawn], jacobians, jacobians)
    torch.testing.assert_close(second.machine.metric, expected * (4 / expected.trace()))


def test_a_resampled_update_draws_no_more_rows_than_are_wanted(monkeypatch):
    x, y = points(50, 3), points(50, 1, seed=1)
    counted = []

    def watched(rows, *more, weights, **settings):
        counted.append(float(weights.sum()))
        return centred_agop(rows, *more, weights=weights, **settings)

    monkeypatch.setattr("normalign.kernels._recursion.centred_agop", watched)
    settings = {"kernel": Laplace(2.0), "ridge": 0.1, "metric": torch.eye(3).double()}
    list(recursions(x, y, n_iter=2, resampled=True, agop_samples=20, **settings))
    list(recursions(x, y, n_iter=1, resampled=True, agop_samples=900, **settings))
    assert counted == [20, 20, 50]


@pytest.mark.parametrize(
    ("kernel", "settings"),
    [
        (Laplace(10.0, exponent=1.9), {}),
        (Laplace(10.0), {"solver": Solver("cg")}),
        (Laplace(10.0, exponent=1.5), {"agop_samples": 200}),
    ],
    ids=["exponent", "cg", "sampled"],
)
def test_a_wide_table_is_learned_alike_in_both_precisions(kernel, settings):
    x, at = points(400, 150), points(100, 150, seed=1)
    y = torch.sin(x[:, :1]) + 0.3 * points(400, 1, seed=2)
    outputs = []
    for dtype in (torch.float32, DOUBLE):
        start = initial_metric(x.to(dtype), identity_weight=0.0)
        *_, last = fitted(
            x.to(dtype), y.to(dtype), kernel=kernel, ridge=0.1, metric=start, n_iter=2,
            **settings,
        )  # fmt: skip
        outputs.append(last.machine(at.to(dtype)).double())
    # a metric nearly of rank one, from both sides of a sum, made it 2e-3 and more
    assert (outputs[0] - outputs[1]).abs().max() < 1e-3 * y.std()


@pytest.mark.parametrize("distance", [1e-3, 1e-5, 1e-6])
def test_rows_near_each_other_are_learned_from_as_the_formula_says(distance):
    x, y = points(80, 3), points(80, 1, seed=1)
    x[60:] = x[:20] + distance * points(20, 3, seed=2)
    *_, last = fitted(x, y, n_iter=1, ridge=0.1)
    apart = x[None] - x[:, None]
    lengths = apart.norm(dim=2) / 10
    coef = torch.linalg.solve(torch.exp(-lengths) + 0.1 * torch.eye(80), y)
    slopes = torch.where(lengths > 0, torch.exp(-lengths) / lengths, 0.0)
    gradients = torch.einsum("ij,jk,ijd->ikd", slopes, coef, apart)
    wanted = torch.einsum("ikd,ike->de", gradients, gradients)
    wanted *= 3 / wanted.trace()
    torch.testing.assert_close(last.machine.metric, wanted, rtol=0, atol=1e-8)


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e18, 1e30])
def test_targets_of_any_size_teach_the_same_metric(size):
    x, y = points(60, 3).float(), torch.sin(2 * points(60, 3)[:, :1]).float()
    *_, plain = fitted(x, y, n_iter=2)
    *_, last = fitted(x, y * size, n_iter=2)
    torch.testing.assert_close(
        last.machine.metric.float(), plain.machine.metric, rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("kernel", [Laplace(0.4), Gaussian(2.0)], ids=repr)
def test_gradients_too_small_to_be_squared_in_float32_are_learned_from(kernel):
    x = points(300, 300)
    settings = {"kernel": kernel, "n_iter": 1}
    *_, exact = fitted(x, x[:, :1], **settings)
    *_, last = fitted(x.float(), x[:, :1].float(), **settings)
    changed = (exact.machine.metric - torch.eye(300).double()).abs().max()
    assert changed > 0.3  # something was learned
    assert last.machine.dtype == DOUBLE
    torch.testing.assert_close(
        last.machine.metric, exact.machine.metric, rtol=1e-3, atol=1e-3
    )


def test_a_default_device_has_no_part_in_a_sample_of_rows():
    x, y = points(40, 2), points(40, 1, seed=1)
    settings = {"n_iter": 1, "metric": torch.eye(2).double(), "agop_samples": 10}
    for resampled in (False, True):
        *_, wanted = fitted(x, y, resampled=resampled, **settings)
        with torch.device("meta"):
            *_, found = fitted(x, y, resampled=resampled, **settings)
        assert torch.equal(found.machine.metric, wanted.machine.metric)


def test_an_iteration_is_shown_without_its_tables():
    (only,) = fitted(points(5, 2), points(5, 1), n_iter=0)
    assert "_system" not in repr(only)
