"""Compiled machines are those of tensors, and all at once those of one by one."""

import warnings

import pytest
import torch

from normalign.kernels import Gaussian, Laplace, Solver, direct, recursions
from normalign.kernels.compiled import layout, solution
from normalign.kernels.compiled.solution import CompiledSolution
from normalign.kernels.direct import DirectSolution
from normalign.kernels.memory import Needs
from normalign.kernels.solve import solve
from tests.kernels.cases import DOUBLE, dense, metric, points, system

KERNELS = pytest.mark.parametrize("kernel", [Laplace(2.0), Gaussian(3.0)], ids=repr)
SHAPES = [(1, 1, 1), (2, 3, 1), (33, 4, 2), (70, 5, 3), (40, 60, 2), (200, 3, 7)]


@pytest.fixture(params=[1, 3], ids=["alone", "three"])
def _members(request, monkeypatch):
    monkeypatch.setattr(solution, "team_size", lambda n: request.param)


def made(x, y, kernel, seen, *, tensors=False, every=True, **settings):
    """The iterations, by compiled code or by tensors alone."""
    with pytest.MonkeyPatch.context() as patch:
        if tensors:
            patch.setattr(direct.compiled, "is_available", lambda: False)
        settings = {"ridge": 1e-2, "n_iter": 3, **settings}
        return list(
            recursions(x, y, kernel=kernel, metric=seen, every=every, **settings)
        )


@pytest.mark.usefixtures("_members")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["diagonal", "full"])
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
@KERNELS
def test_a_compiled_machine_is_that_of_tensors(kernel, n, d, k, kind, weighted):
    x, y, seen = points(n, d), points(n, k, seed=1), metric(kind, d)
    if n > 30:
        x[11] = x[3]  # a duplicate, at which slopes vanish
    weights = points(n, 1, seed=2)[:, 0].abs() + 0.1 if weighted else None
    found = made(x, y, kernel, seen, weights=weights)
    wanted = made(x, y, kernel, seen, weights=weights, tensors=True)
    pays = k * (d + 1) < n  # else the metric is learned by pairs of rows
    for one, other in zip(found, wanted, strict=True):
        # where a row is its own only neighbour there is little to be told apart
        assert isinstance(one._solution, CompiledSolution) or k > n
        assert isinstance(other._solution, DirectSolution)
        for name in ("coef", "metric"):
            torch.testing.assert_close(
                getattr(one.machine, name), getattr(other.machine, name),
                rtol=1e-8, atol=1e-8,
            )  # fmt: skip
    assert pays or n < 100


@pytest.mark.usefixtures("_members")
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("kind", ["diagonal", "full"])
@KERNELS
def test_the_last_of_all_at_once_is_that_of_one_by_one_to_the_bit(kernel, kind, dtype):
    x, y = points(150, 5, dtype=dtype), points(150, 3, seed=1, dtype=dtype)
    seen, weights = metric(kind, 5).to(dtype), points(150, 1, seed=2, dtype=dtype)
    settings = {"weights": weights[:, 0].abs() + 0.1, "center": True, "ridge": 0.1}
    *_, wanted = made(x, y, kernel, seen, **settings)
    (found,) = made(x, y, kernel, seen, every=False, **settings)
    assert found.index == wanted.index == 3
    assert torch.equal(found.machine.coef, wanted.machine.coef)
    assert torch.equal(found.machine.metric, wanted.machine.metric)
    rows = torch.arange(0, 150, 7)
    assert torch.equal(found.left_out(rows), wanted.left_out(rows))


@pytest.mark.parametrize(
    "settings", [{"bandwidth_rule": "median"}, {"resampled": True}, {"n_iter": 0}]
)
def test_who_wants_the_last_one_gets_it_whatever_the_way(settings):
    x, y, seen = points(90, 4), points(90, 2, seed=1), metric("full", 4)
    *_, wanted = made(x, y, Laplace(2.0), seen, **settings)
    *_, found = made(x, y, Laplace(2.0), seen, every=False, **settings)
    assert torch.equal(found.machine.coef, wanted.machine.coef)


@KERNELS
def test_left_out_outputs_come_from_a_compiled_factor_too(kernel):
    x, y, seen = points(60, 4), points(60, 2, seed=1), metric("full", 4)
    rows = torch.arange(0, 60, 7)
    found = made(x, y, kernel, seen)
    wanted = made(x, y, kernel, seen, tensors=True)
    torch.testing.assert_close(
        found[-1].left_out(rows), wanted[-1].left_out(rows), rtol=1e-8, atol=1e-8
    )


@pytest.mark.parametrize("every", [True, False])
def test_where_float32_does_not_do_compiled_machines_go_to_float64(every):
    x = points(300, 2, dtype=torch.float32)
    y = torch.sin(3 * x[:, :1])
    settings = {"ridge": 1e-7, "every": every, "n_iter": 2}
    found = made(x, y, Gaussian(3.0), torch.eye(2), **settings)
    exact = made(
        x.double(), y.double(), Gaussian(3.0), torch.eye(2).double(), **settings
    )
    assert found[-1].machine.coef.dtype == DOUBLE
    apart = found[-1].machine(x) - exact[-1].machine(x.double())
    assert float(apart.abs().max()) < 1e-5


@pytest.mark.parametrize("every", [True, False])
def test_what_stays_indefinite_is_reported_as_ever(every):
    x = torch.zeros(50, 2, dtype=DOUBLE)
    with pytest.warns(UserWarning, match="not positive definite"):
        found = made(
            x, torch.ones(50, 1, dtype=DOUBLE), Laplace(1.0), torch.eye(2).double(),
            ridge=1e-300, every=every,
        )  # fmt: skip
    assert found[-1].solved.jitter > 0


def test_a_metric_without_gradients_stays_as_it_is():
    x, y = points(40, 3), torch.zeros(40, 1, dtype=DOUBLE)
    seen = metric("full", 3)
    for every in (True, False):
        found = made(x, y, Laplace(2.0), seen, every=every)
        assert torch.equal(found[-1].machine.metric, seen)


def slopes_kept(iteration):
    return len(iteration._solution.spare.slopes) > 0


@pytest.mark.usefixtures("_members")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["diagonal", "full"])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize(("n", "d", "k"), [(33, 4, 2), (200, 3, 7), (600, 40, 5)])
@KERNELS
def test_slopes_that_were_not_kept_are_made_again(
    kernel, n, d, k, dtype, kind, weighted, monkeypatch
):
    x, y = points(n, d, dtype=dtype), points(n, k, seed=1, dtype=dtype)
    x[11] = x[3]
    settings = {"n_iter": 2, "ridge": 0.1}
    if weighted:
        settings["weights"] = points(n, 1, seed=2, dtype=dtype)[:, 0].abs() + 0.1
    seen = metric(kind, d).to(dtype)
    kept = made(x, y, kernel, seen, **settings)
    monkeypatch.setattr(direct, "_KEPT_SLOPES", 0)
    found = made(x, y, kernel, seen, **settings)
    (last,) = made(x, y, kernel, seen, every=False, **settings)
    assert slopes_kept(kept[0])
    assert not slopes_kept(found[0])
    assert not slopes_kept(last)
    assert torch.equal(last.machine.metric, found[-1].machine.metric)
    near = 1e-9 if dtype == DOUBLE else 2e-3
    one, other = (some[-1].machine.metric for some in (found, kept))
    torch.testing.assert_close(one, other, rtol=near, atol=near)


@pytest.mark.usefixtures("_members")
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_outputs_may_learn_some_at_a_time(kind, kept, monkeypatch):
    x, y, seen = points(150, 5), points(150, 7, seed=1), metric(kind, 5)
    wanted = made(x, y, Laplace(2.0), seen)
    layout.layout_of.cache_clear()
    monkeypatch.setattr(layout.Layout, "at_once", 3)
    if not kept:
        monkeypatch.setattr(direct, "_KEPT_SLOPES", 0)
    found = made(x, y, Laplace(2.0), seen)
    (last,) = made(x, y, Laplace(2.0), seen, every=False)
    layout.layout_of.cache_clear()
    assert torch.equal(last.machine.metric, found[-1].machine.metric)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(
            one.machine.metric, other.machine.metric, rtol=1e-8, atol=1e-8
        )


@pytest.mark.usefixtures("_members")
def test_a_factor_may_take_many_calls(monkeypatch):
    x, y, seen = points(300, 4), points(300, 2, seed=1), metric("full", 4)
    wanted = made(x, y, Laplace(2.0), seen, n_iter=1)
    calls = []
    together = solution.together

    def counted(*args):
        calls.append(1)
        return together(*args)

    monkeypatch.setattr(solution, "_AT_ONCE", 1e5)
    monkeypatch.setattr(solution, "together", counted)
    found = made(x, y, Laplace(2.0), seen, n_iter=1)
    assert len(calls) > 10
    assert torch.equal(found[-1].machine.coef, wanted[-1].machine.coef)
    calls.clear()
    bad = torch.zeros(300, 4, dtype=DOUBLE)
    with pytest.warns(UserWarning, match="not positive definite"):
        made(bad, y, Laplace(2.0), seen, n_iter=0, ridge=1e-300)
    assert len(calls) == 1  # the first told it


def test_a_limit_of_memory_is_kept_to_with_slopes_without_them_or_by_panels():
    single = {"dtype": torch.float32}
    x, y = points(2500, 3, **single), points(2500, 1, seed=1, **single)
    needs = Needs(2500, 3, 1, x.dtype, x.device, Laplace(2.0), diagonal=False)
    slopes = layout.layout_of(2500, 3, 1, 4).bytes(full=True, slopes=True)
    roomy, tight = needs.base + slopes, needs.direct
    settings = {"ridge": 1.0, "n_iter": 1}
    for limit, kept in ((roomy, True), (roomy - 1, False), (tight, False)):
        solver = Solver("cholesky", memory_limit=limit)
        found, _ = made(x, y, Laplace(2.0), torch.eye(3), solver=solver, **settings)
        assert isinstance(found._solution, CompiledSolution)
        assert slopes_kept(found) == kept


def test_a_wide_table_has_room_for_its_metric_only_if_that_is_full():
    x, y = points(30, 900), points(30, 1, seed=1)
    settings = {"n_iter": 1, "solver": Solver("cholesky", memory_limit=4_000_000)}
    with pytest.raises(ValueError, match=r"least 4. MB to fit 30 rows by a Cholesky"):
        made(x, y, Laplace(2.0), metric("full", 900), **settings)
    first, *_ = made(x, y, Laplace(2.0), metric("diagonal", 900), **settings)
    assert isinstance(first._solution, CompiledSolution)


@pytest.mark.parametrize("every", [True, False])
def test_other_kernels_are_left_to_tensors(every):
    x, y = points(60, 3), points(60, 1, seed=1)
    found = made(x, y, Laplace(2.0, exponent=0.7), metric("full", 3), every=every)
    assert isinstance(found[-1]._solution, DirectSolution)


@KERNELS
def test_the_inverse_has_its_diagonal_in_the_order_that_was_asked_for(
    kernel, monkeypatch
):
    monkeypatch.setattr(solution, "_ASIDE", 1)  # as few columns at a time as may be
    problem = system(n=150, kernel=kernel)
    found = solve(problem, points(150, 2, seed=1), Solver())
    rows = torch.randperm(150, generator=torch.Generator().manual_seed(0))[:90]
    wanted = torch.linalg.inv(dense(problem)).diagonal()[rows]
    assert isinstance(found, CompiledSolution)
    torch.testing.assert_close(found.inverse_diagonal(rows), wanted)
    assert found.inverse_diagonal(rows[:0]).shape == (0,)


def test_what_is_beyond_float32_is_left_to_float64_without_a_word():
    x, y = points(40, 2, dtype=torch.float32), points(40, 1, dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = made(x, y, Laplace(1e-30), torch.eye(2), n_iter=1)
    assert found[-1].machine.coef.dtype == DOUBLE


@pytest.mark.parametrize("every", [True, False])
def test_a_metric_is_learned_however_wide_the_kernel(every):
    x, y = points(40, 2), points(40, 1, seed=1)
    near, far = (
        made(x, y, Gaussian(b), metric("full", 2), n_iter=1, every=every)[-1]
        for b in (1e70, 1e82)
    )
    assert not torch.allclose(near.machine.metric, metric("full", 2))
    torch.testing.assert_close(near.machine.metric, far.machine.metric)


def test_results_do_not_share_memory_with_what_comes_after():
    x, y, seen = points(60, 4), points(60, 2, seed=1), metric("full", 4)
    (first,) = made(x, y, Laplace(2.0), seen, every=False)
    kept = first.machine.coef.clone(), first.machine.metric.clone()
    made(x + 1, 2 * y, Laplace(1.0), seen, every=False)
    assert torch.equal(first.machine.coef, kept[0])
    assert torch.equal(first.machine.metric, kept[1])
    assert torch.equal(seen, metric("full", 4))  # and what was given is as it was
