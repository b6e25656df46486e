"""Kernel expansions: outputs, Jacobians and vector-Jacobian products."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign.kernels import (
    Columns,
    Laplace,
    Machine,
    ProductLaplace,
    _expansion,
    _sides,
    agop,
    expansion,
    expansion_jacobian,
    pull_back,
)
from normalign.kernels._expansion import (
    apply_factor,
    gradients_of_slopes,
    jacobian_pull_back,
)
from tests.kernels.cases import (
    DOUBLE,
    KERNELS,
    METRICS,
    metric,
    naive_jacobian,
    naive_kernel,
    points,
)

RADIAL = [kernel for kernel in KERNELS if "Product" not in repr(kernel)]


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(_sides, "_CPU_TILE", (3, 4))


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("kind", METRICS)
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_outputs_are_the_sum_of_the_definition(kernel, kind):
    x, centers, coef = points(8, 3), points(11, 3, seed=1), points(11, 2, seed=2)
    seen = metric(kind, 3)
    found = expansion(x, centers, coef, kernel, metric=seen)
    assert torch.allclose(found, naive_kernel(x, centers, kernel, seen) @ coef)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("outputs", [1, 1 << 24])
@pytest.mark.parametrize("kind", METRICS)
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_jacobians_are_those_of_central_differences(kernel, kind, outputs, monkeypatch):
    monkeypatch.setattr(_expansion, "_COLUMNS", outputs)
    x, centers, coef = points(8, 3), points(11, 3, seed=1), points(11, 2, seed=2)
    seen = metric(kind, 3)
    found = expansion_jacobian(x, centers, coef, kernel, metric=seen)
    wanted = naive_jacobian(x, centers, coef, kernel, seen)
    assert found.shape == (8, 2, 3)
    # differences of step 1e-6 of a function with second derivatives of order one
    assert torch.allclose(found, wanted, atol=1e-7)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_a_center_and_its_duplicates_contribute_nothing_at_it(kernel):
    centers, coef = points(6, 3), points(6, 2, seed=1)
    doubled = torch.cat([centers, centers[:1]])
    heavy = torch.cat([coef, 1e6 * coef[:1]])
    found = expansion_jacobian(centers[:1], doubled, heavy, kernel)
    alone = expansion_jacobian(centers[:1], centers[1:], coef[1:], kernel)
    assert torch.allclose(found, alone, rtol=1e-9, atol=1e-9)


def jacobian_of_differences(x, centers, coef, kernel, seen):
    """For a radial kernel in float64, from the differences of all pairs."""
    x, centers, coef = x.double(), centers.double(), coef.double()
    apart = centers - x[:, None]
    image = apart * seen if seen.ndim == 1 else apart @ seen
    image = image / kernel.bandwidth**2
    squared = (apart * image).sum(2)
    squared[squared <= 0] = torch.inf
    slope = kernel.slope_(squared, torch.empty_like(squared))
    return torch.einsum("nm,mk,nmd->nkd", slope, coef, image)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("kind", ["diagonal", "full"])
@pytest.mark.parametrize("gap", [1e-3, 1.0, 1e3])  # in roundings
@pytest.mark.parametrize("kernel", RADIAL, ids=repr)
def test_points_closer_than_rounding_have_the_gradients_of_their_differences(
    kernel, gap, kind, dtype
):
    eps, seen = torch.finfo(dtype).eps, metric(kind, 6).to(dtype)
    centers = points(12, 6).to(dtype)
    centers[:, 5] = 0  # the median of a column of zeros is exact
    centers[7], centers[3] = centers[1], centers[0]
    centers[7, 5], centers[3, 5] = gap * eps, -gap * eps
    coef, far = points(12, 2, seed=1).to(dtype), points(3, 6, seed=2).to(dtype)
    x = torch.cat([far, centers])
    wanted = jacobian_of_differences(x, centers, coef, kernel, seen.double())
    tolerance = 1e-2 * float(wanted.abs().max())
    found = expansion_jacobian(x, centers, coef, kernel, metric=seen)
    assert (found - wanted).abs().max() <= tolerance
    columns = Columns.of(centers, coef, kernel, metric=seen)
    pulled = pull_back(x, columns, lambda outputs, _: torch.ones_like(outputs))[1]
    assert (pulled - wanted.sum(1)).abs().max() <= 2 * tolerance
    sides = kernel.sides(centers, seen)
    slopes = kernel.slopes_(sides, sides, x.new_empty(12, 12), x.new_empty(12, 12))
    raw = gradients_of_slopes(centers, coef, slopes, kernel, sides)
    again = apply_factor(torch.cat([part for _, part in raw]), kernel, seen)
    assert (again - wanted[3:]).abs().max() <= tolerance
    average = torch.einsum("nkd,nke->de", wanted, wanted) / len(x)
    for form in ["gradients", "pairs"]:
        found = agop(x, centers, coef, kernel, metric=seen, form=form)
        assert (found - average).abs().max() <= 2e-2 * average.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("kernel", RADIAL, ids=repr)
def test_points_apart_in_columns_beside_a_large_one_are_not_taken_for_duplicates(
    kernel, dtype
):
    centers, coef = points(12, 4).to(dtype), points(12, 2, seed=1).to(dtype)
    centers[:, 0] = torch.arange(12).div(4, rounding_mode="floor").sub(1)
    centers[:, 0] *= 0.1 / torch.finfo(dtype).eps
    wanted = jacobian_of_differences(
        centers, centers, coef, kernel, torch.ones(4, dtype=DOUBLE)
    )
    found = expansion_jacobian(centers, centers, coef, kernel)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5)


def test_other_kernels_are_refused():
    with pytest.raises(TypeError, match="kernel must be Radial or ProductLaplace"):
        next(
            _expansion.raw_gradients(
                points(2, 2), points(2, 2), points(2, 1), object(), (None, None)
            )
        )


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
        patch.setattr(_expansion, "_CPU_WAITING", room * 8)
        patch.setattr("normalign.kernels._sides._CPU_TILE", (5, 7))
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
