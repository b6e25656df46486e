"""Outputs and one gradient at each row, beside Jacobians and autograd."""

from dataclasses import replace
from sys import modules

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign.kernels import Columns, Laplace, Machine, ProductLaplace, pull_back
from normalign.kernels._pull_back import jacobian_pull_back
from tests.kernels.cases import DOUBLE, KERNELS, METRICS, metric, points


def machine(kernel, kind="full", *, m=40, d=5, k=3, seed=0):
    given_metric = metric(kind, d)
    if given_metric is None:
        given_metric = torch.eye(d, dtype=DOUBLE)
    coef = points(m, k, seed + 1) - 2
    return Machine(points(m, d, seed), coef, given_metric, kernel, points(1, k)[0])


@pytest.mark.parametrize("kind", METRICS)
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_the_gradient_is_the_jacobian_times_the_cotangent(kernel, kind):
    fitted = machine(kernel, kind)
    x = torch.cat([points(7, 5, seed=9), fitted.centers[:2]])
    fixed = points(9, 3, seed=4)
    outputs, gradient = fitted.pull_back(x, lambda found, rows: fixed[rows] * found)
    expected = torch.einsum("nkd,nk->nd", fitted.jacobian(x), fixed * fitted(x))
    torch.testing.assert_close(outputs, fitted(x))
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-10)


def test_the_gradient_is_autograds_through_the_formula():
    fitted = machine(Laplace(2.0))
    x = points(6, 5, seed=3).requires_grad_()
    gap = x[:, None] - fitted.centers
    distance = torch.einsum("nmd,de,nme->nm", gap, fitted.metric, gap).sqrt()
    formula = fitted.intercept + torch.exp(-distance / 2.0) @ fitted.coef
    (expected,) = torch.autograd.grad((formula**2).sum(), x)
    outputs, gradient = fitted.pull_back(x.detach(), lambda found, rows: 2 * found)
    torch.testing.assert_close(outputs, formula.detach())
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-10)


@given(n=st.integers(0, 40), m=st.integers(1, 60), room=st.integers(1, 2000))
def test_how_many_rows_wait_at_a_time_does_not_matter(n, m, room):
    fitted = machine(Laplace(2.0), m=m)
    x, fixed = points(n, 5, seed=1), points(n, 3, seed=2)

    def cotangent(found, rows):
        assert len(found) == rows.stop - rows.start
        return fixed[rows]

    whole = fitted.pull_back(x, cotangent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modules["normalign.kernels._pull_back"], "_CPU_WAITING", room * 8)
        patch.setattr("normalign.kernels._tiles._CPU_TILE", (5, 7))
        parts = fitted.pull_back(x, cotangent)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_what_has_jacobians_alone_gives_the_same():
    fitted = machine(Laplace(2.0))
    x, fixed = points(9, 5, seed=1), points(9, 3, seed=2)
    found = jacobian_pull_back(
        x, lambda _, rows: fixed[rows], outputs=fitted, jacobian=fitted.jacobian,
        rows_at_once=4,
    )  # fmt: skip
    expected = fitted.pull_back(x, lambda _, rows: fixed[rows])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_columns_are_made_once_for_many_calls():
    fitted = machine(Laplace(2.0))
    assert fitted._columns is fitted._columns
    columns = Columns.of(
        fitted.centers, fitted.coef, fitted.kernel, metric=fitted.metric
    )
    ones = pull_back(points(3, 5), columns, lambda f, _: torch.ones_like(f))
    expected = fitted.jacobian(points(3, 5)).sum(1)
    torch.testing.assert_close(ones[1], expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        (
            {"centers": np.ones((40, 5))},
            TypeError,
            "centers must be .*, got a float64 nd",
        ),
        ({"coef": points(39, 3)}, ValueError, r"coef must be of shape \(40, k\)"),
        ({"kernel": "laplace"}, TypeError, "kernel must be a Kernel"),
        ({"metric": np.eye(5)}, TypeError, "metric must be a tensor"),
        ({"metric": torch.eye(5)}, ValueError, "metric must be float64"),
        (
            {"metric": metric("full", 4)},
            ValueError,
            r"metric must be of shape \(5, 5\)",
        ),
    ],
    ids=["centers", "coef", "kernel", "metric", "dtype", "shape"],
)
def test_parts_that_make_no_expansion_are_refused(changed, error, words):
    fitted = machine(Laplace(2.0))
    names = ("centers", "coef", "kernel", "metric")
    parts = {name: getattr(fitted, name) for name in names} | changed
    with pytest.raises(error, match=rf"^Columns\.of: {words}"):
        Columns.of(**parts)


@pytest.mark.parametrize("kernel", [Laplace(2.0), ProductLaplace(2.0)], ids=repr)
def test_rows_and_cotangents_that_do_not_fit_are_refused(kernel):
    columns = machine(kernel)._columns
    for wrong, error, words in (
        ((np.ones((3, 5)), columns, None), TypeError, "cotangent must be callable"),
        ((np.ones((3, 5)), columns, len), TypeError, "x must be a float32 or"),
        ((points(3, 4), columns, len), ValueError, r"x must be of shape \(n, 5\)"),
        ((points(3, 5).float(), columns, len), ValueError, "x must be float64 on cpu"),
        ((points(3, 5), None, len), TypeError, r"columns must be .* Use Columns\.of"),
        (
            (points(3, 5), columns, lambda f, _: f[:, 0]),
            ValueError,
            "cotangent must be",
        ),
        (
            (points(3, 5), columns, lambda f, _: 1.0),
            ValueError,
            "cotangent must be one",
        ),
    ):
        with pytest.raises(error, match=f"^pull_back: {words}"):
            pull_back(*wrong)


def test_a_machine_in_float32_takes_rows_of_any_precision():
    fitted = machine(Laplace(2.0)).to(dtype=torch.float32)
    outputs, gradient = fitted.pull_back(points(2, 5), lambda found, _: found)
    assert outputs.dtype == gradient.dtype == torch.float32


@pytest.mark.parametrize("kernel", [Laplace(2.0), ProductLaplace(2.0)], ids=repr)
def test_rows_and_coefficients_that_require_gradients_are_taken(kernel):
    fitted = machine(kernel)
    expected = fitted.pull_back(points(3, 5), lambda found, _: found)
    learned = replace(fitted, coef=fitted.coef.clone().requires_grad_())
    x = points(3, 5).requires_grad_()
    found = learned.pull_back(x, lambda found, _: found)
    for one, other in zip(found, expected, strict=True):
        assert not one.requires_grad
        torch.testing.assert_close(one, other)
