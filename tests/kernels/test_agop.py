"""The average gradient outer product: both sums, weights, diagonals."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign.kernels import (
    Gaussian,
    Laplace,
    ProductLaplace,
    _agop,
    _expansion,
    _sides,
    agop,
    expansion_jacobian,
    kernel_matrix,
)
from normalign.kernels._agop import cheaper_form
from tests.kernels.cases import DOUBLE, KERNELS, METRICS, metric, points

RADIAL = [kernel for kernel in KERNELS if "Product" not in repr(kernel)]


def averaged(x, centers, coef, kernel, seen, weights=None):
    jacobian = expansion_jacobian(x, centers, coef, kernel, metric=seen)
    share = torch.ones(len(x), dtype=DOUBLE) if weights is None else weights
    return torch.einsum("n,nkd,nke->de", share / share.sum(), jacobian, jacobian)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", METRICS)
@pytest.mark.parametrize("form", ["gradients", "pairs"])
@pytest.mark.parametrize("kernel", RADIAL, ids=repr)
def test_both_sums_are_the_average_of_the_jacobians(
    kernel, form, kind, weighted, monkeypatch
):
    monkeypatch.setattr(_sides, "_CPU_TILE", (4, 3))
    monkeypatch.setattr(_expansion, "_COLUMNS", 60)  # several passes over the outputs
    x, centers, coef = points(9, 3), points(11, 3, seed=1), points(11, 4, seed=2)
    seen = metric(kind, 3)
    weights = points(9, 1, seed=3)[:, 0].abs() if weighted else None
    found = agop(x, centers, coef, kernel, metric=seen, weights=weights, form=form)
    wanted = averaged(x, centers, coef, kernel, seen, weights)
    assert torch.allclose(found, wanted, rtol=1e-10, atol=1e-12)
    spread = agop(
        x, centers, coef, kernel, metric=seen, weights=weights, form=form, diagonal=True
    )
    assert torch.allclose(spread, wanted.diagonal(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("form", ["gradients", "pairs"])
@pytest.mark.parametrize("kernel", RADIAL, ids=repr)
def test_the_sum_over_a_wide_table_is_symmetric(kernel, form):
    x, centers, coef = points(4, 13), points(5, 13, seed=1), points(5, 2, seed=2)
    seen = metric("full", 13)
    found = agop(x, centers, coef, kernel, metric=seen, form=form)
    wanted = averaged(x, centers, coef, kernel, seen)
    assert torch.allclose(found, wanted, rtol=1e-10, atol=1e-12)
    assert torch.equal(found, found.T)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 12), k=st.integers(1, 5))
def test_both_sums_agree_at_the_centers_themselves(seed, n, k):
    x, coef = points(n, 3, seed=seed), points(n, k, seed=seed + 1)
    x = torch.cat([x, x[:1]])  # a duplicate
    coef = torch.cat([coef, coef[:1]])
    one, two = (agop(x, x, coef, Laplace(3.0), form=f) for f in ("gradients", "pairs"))
    assert torch.allclose(one, two, rtol=1e-8, atol=1e-10)


def test_the_product_kernel_has_one_form():
    x, coef = points(6, 3), points(6, 2, seed=1)
    kernel = KERNELS[-1]
    found = agop(x, x, coef, kernel, metric=metric("full", 3))
    assert torch.allclose(found, averaged(x, x, coef, kernel, metric("full", 3)))
    with pytest.raises(ValueError, match='form must be "gradients" for this kernel'):
        agop(x, x, coef, kernel, form="pairs")


def test_weights_are_repetitions():
    x, coef = points(5, 3), points(5, 2, seed=1)
    weights = torch.tensor([1, 2, 1, 4, 3], dtype=DOUBLE)
    rows = x.repeat_interleave(weights.long(), dim=0)
    found = agop(x, x, coef, Gaussian(2.0), weights=weights)
    assert torch.allclose(found, agop(rows, x, coef, Gaussian(2.0)), rtol=1e-12)


def test_shapes_decide_which_sum_is_taken():
    few, many, single = (2000, 2000, 2, 20), (2000, 2000, 100, 60), torch.float32
    assert cheaper_form(few, Laplace(), single) == "gradients"
    assert cheaper_form(many, Laplace(), single) == "pairs"
    assert cheaper_form(many, KERNELS[-1], single) == "gradients"
    # a Gaussian's coefficients cancel
    assert cheaper_form(many, Gaussian(), single) == "gradients"
    assert cheaper_form(many, Gaussian(), DOUBLE) == "pairs"


def test_an_unknown_form_is_refused():
    x = points(2, 2)
    with pytest.raises(ValueError, match="agop: form must be"):
        agop(x, x, x, Laplace(), form="tensor")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"weights": torch.ones(5, dtype=DOUBLE)}, r"weights must be positive, of sh"),
        ({"weights": torch.zeros(2, dtype=DOUBLE)}, r"weights must be positive"),
        ({"coef": torch.ones(3, 1, dtype=DOUBLE)}, r"coef must be of shape \(2, k\)"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(changes, said):
    x = points(2, 2)
    arguments = {"x": x, "centers": x, "coef": x, "kernel": Laplace()} | changes
    with pytest.raises(ValueError, match=said):
        agop(**arguments)


@pytest.mark.parametrize("form", ["gradients", "pairs"])
@pytest.mark.parametrize("distance", [1e-3, 1e-5, 1e-7])
def test_rows_near_a_center_keep_their_digits(form, distance):
    x, coef = points(40, 3), points(40, 2, seed=2)
    x[20:30] = x[:10] + distance * points(10, 3, seed=3)
    found = agop(x, x, coef, Laplace(3.0), metric=torch.eye(3).double(), form=form)
    apart = x[None] - x[:, None]
    lengths = apart.norm(dim=2) / 3.0
    slopes = torch.where(lengths > 0, torch.exp(-lengths) / lengths, 0.0)
    exact = torch.einsum("ij,jk,ijd->ikd", slopes, coef, apart) / 9.0
    wanted = torch.einsum("ikd,ike->de", exact, exact) / len(x)
    # a rounding over the distance
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=0)


def test_an_axis_that_is_rounding_has_no_sign():
    x, coef = points(30, 4), points(30, 1, seed=1)
    x[:, 2] = 0.0
    seen = metric("full", 4)
    seen[2, :], seen[:, 2] = 0.0, 0.0
    seen[2, 2] = 0.3
    found = agop(x, x, coef, ProductLaplace(2.0), metric=seen)
    assert found[2].abs().max() < 1e-13 * found.abs().max()


def exact_agop(x, coef, kernel, seen):
    """The sum by its definition, from differences of the points; ``seen`` is full."""
    apart = x[None] - x[:, None]
    if isinstance(kernel, ProductLaplace):
        spectrum, axes = torch.linalg.eigh(seen)
        root = axes @ torch.diag(spectrum.clamp(min=0).sqrt()) @ axes.T
        placed = apart @ root
        values = torch.exp(-placed.abs().sum(2) / kernel.bandwidth)
        each = torch.einsum("ij,jk,ijd->ikd", values, coef, placed.sign()) @ root
        each /= kernel.bandwidth
    else:
        images = apart @ seen / kernel.bandwidth**2
        squared = (apart * images).sum(2).clamp(min=0)
        if isinstance(kernel, Gaussian):
            slopes = torch.exp(-squared / 2)
        else:
            half = kernel.exponent / 2
            slopes = 2 * half * squared ** (half - 1) * torch.exp(-(squared**half))
        slopes = torch.where(squared > 0, slopes, 0.0)
        each = torch.einsum("ij,jk,ijd->ikd", slopes, coef, images)
    return torch.einsum("ikd,ike->de", each, each) / len(x)


def near_pairs(n, d, gap, scale, seed):
    """Rows of which every second one is a near-duplicate of the one before it."""
    rows = (points(n // 2, d, seed=seed) - 2) * scale
    return rows.repeat_interleave(2, 0) + gap * (points(n, d, seed=seed + 1) - 2)


@given(
    kernel=st.sampled_from(KERNELS),
    kind=st.sampled_from(METRICS),
    power=st.integers(2, 12),
    scale=st.sampled_from([0.2, 1.0, 100.0]),
    ridge=st.sampled_from([1e-3, 1e-8]),
    lone=st.integers(0, 20),
    seed=st.integers(0, 10**6),
)
def test_near_rows_leave_the_sum_positive_and_both_forms_equal(
    kernel, kind, power, scale, ridge, lone, seed
):
    gap, d = 10.0**-power, 12
    x = near_pairs(24, d, gap, scale, seed)
    x[:lone] = (points(lone, d, seed=seed + 2) - 2) * scale  # rows without a duplicate
    seen = metric(kind, d, seed)
    full = torch.eye(d, dtype=DOUBLE) if seen is None else seen
    full = full if full.ndim == 2 else torch.diag(full)
    # of near rows coefficients are large and cancel
    matrix = kernel_matrix(x, x, kernel, metric=seen) + ridge * torch.eye(24)
    coef = torch.linalg.lstsq(matrix, points(24, 3, seed=seed + 3)).solution
    forms = ["gradients", "pairs"] if "Product" not in repr(kernel) else ["gradients"]
    found = [agop(x, x, coef, kernel, metric=seen, form=form) for form in forms]
    wanted = exact_agop(x, coef, kernel, full)
    size = float(wanted.trace())
    # Centring rounds the points: of a gap, by a rounding of their size over it. Of
    # thousands of cases the largest error was 13 times that.
    lost = 1e-9 + 100 * torch.finfo(DOUBLE).eps * max(1.0, scale / gap)
    for one in found:
        assert float(one.trace()) > 0
        assert float(torch.linalg.eigvalsh(one)[0]) >= -1e-9 * float(one.trace())
        assert float((one - found[0]).abs().max()) <= lost * size
        assert float((one - wanted).abs().max()) <= lost * size


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kernel", RADIAL, ids=repr)
def test_coefficients_that_cancel_leave_digits_of_rows_far_from_them(
    kernel, weighted, dtype
):
    x, coef = points(40, 5, dtype=dtype), points(40, 2, seed=1, dtype=dtype)
    # A pair of centers, of which every row sees only the difference.
    gap = 1e-2 if dtype == torch.float32 else 1e-6
    centers = torch.cat([x, x[:1] + 0.5, x[:1] + 0.5 + gap])
    coef = torch.cat([coef, torch.ones(1, 2) / gap, -torch.ones(1, 2) / gap]).to(dtype)
    weights = points(40, 1, seed=3, dtype=dtype)[:, 0].abs() if weighted else None
    found = agop(x, centers, coef, kernel, weights=weights, form="pairs")
    exact = (part.double() for part in (x, centers, coef))
    share = None if weights is None else weights.double()
    wanted = averaged(*exact, kernel, None, share)
    tolerance = 1e-9 if dtype == DOUBLE else 1e-3  # what a sum over pairs may lose
    assert (found - wanted).abs().max() <= tolerance * wanted.trace()


def test_few_near_rows_are_taken_by_gradients_and_the_others_by_pairs(monkeypatch):
    x, coef = points(60, 30), points(60, 40, seed=1)
    x[1] = x[0] + 1e-9
    taken = []
    original = _agop._sum_over_pairs
    monkeypatch.setattr(
        _agop, "_sum_over_pairs",
        lambda rows, *rest: taken.append(len(rows)) or original(rows, *rest),
    )  # fmt: skip
    for kernel in RADIAL:
        agop(x, x, coef, kernel, form="pairs")
    assert taken == [58] * len(RADIAL)


@pytest.mark.parametrize("gap", [1e-9, 1e-12])
def test_near_rows_keep_their_signs_in_the_product_kernel(gap):
    x = near_pairs(30, 12, gap, 1.0, seed=1)
    coef, seen, kernel = points(30, 3, seed=2), metric("full", 12), ProductLaplace(2.0)
    coef[1::2] = -coef[::2]  # near rows see each other only
    found = agop(x, x, coef, kernel, metric=seen)
    wanted = exact_agop(x, coef, kernel, seen)
    # rounding over the gap is 2e-4 at most; a lost sign costs more than 1e-3
    assert (found - wanted).abs().max() <= 5e-4 * wanted.trace()
