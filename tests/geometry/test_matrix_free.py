"""The route for many outputs: accuracy, error estimates, and what it never does."""

import pytest
import torch
from torch import nn

from normalign import local_geometry
from normalign._linear_map import LinearMap, LocalMap
from normalign.geometry import MatrixFreeOptions
from normalign.geometry._matrix_free import Compressed, leading_space, squared_norm


def decaying(k=600, d=500, power=1.0, seed=0):
    """A linear model whose singular values fall as a power law."""
    generator = torch.Generator().manual_seed(seed)
    rank = min(k, d)
    u = torch.linalg.qr(torch.randn(k, rank, generator=generator).double())[0]
    v = torch.linalg.qr(torch.randn(d, rank, generator=generator).double())[0]
    s = torch.arange(1, rank + 1, dtype=torch.float64) ** -power
    model = nn.Linear(d, k).double()
    model.weight.data = u * s @ v.T
    return model, s, v


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_values_are_within_the_tolerance(power):
    model, s, v = decaying(power=power)
    x = torch.randn(3, 500, dtype=torch.float64)
    geometry = local_geometry(model, x)
    assert geometry.method == "matrix_free"
    norm = s.square().sum().sqrt()
    # rtol=1e-3 is four standard errors of the norm: one failure in 16000
    assert bool(((geometry.jacobian_norm / norm - 1).abs() < 1e-3).all())
    cosine = (x @ v[:, 0]).abs() / x.norm(dim=1)
    assert bool(((geometry.normal_alignment - cosine).abs() < 1e-3).all())
    rank = s.square().sum() / s[0].square()
    assert bool(((geometry.effective_rank / rank - 1).abs() < 2e-3).all())


def test_centroid_offset_and_radius_are_exact():
    model, *_ = decaying()
    x = torch.randn(3, 500, dtype=torch.float64)
    free = local_geometry(model, x, method="matrix_free")
    exact = local_geometry(model, x, method="exact")
    for name in ("centroid_alignment", "radius", "offset_norm"):
        torch.testing.assert_close(getattr(free, name), getattr(exact, name))
        assert name not in free.error


def test_error_estimates_cover_the_truth():
    """At a loose tolerance the standard error is honest: 40 norms, few beyond two."""
    model, s, _ = decaying(power=0.5)
    x = torch.randn(40, 500, dtype=torch.float64)
    options = MatrixFreeOptions(rtol=0.1, max_rank=8)
    geometry = local_geometry(model, x, options=options)
    z = (geometry.jacobian_norm - s.square().sum().sqrt()) / geometry.error[
        "jacobian_norm"
    ]
    # for 40 normal values the chance of ten beyond 2 is below 1e-5
    assert int((z.abs() > 2).sum()) < 10
    assert float(z.abs().mean()) > 0.3  # nor is it inflated


def test_the_estimate_of_the_norm_is_unbiased():
    model, s, _ = decaying(k=300, d=280, power=0.3)
    x = torch.randn(200, 280, dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    options = MatrixFreeOptions(rtol=0.1, max_rank=8)
    with torch.no_grad():
        linear = Compressed(LinearMap(*LocalMap(model).on(x)), None)
        jx = linear.push(x.unsqueeze(0))[0]
        space = leading_space(linear, jx, options, generator)
        total, error = squared_norm(linear, space, options, generator)  # not None
    z = (total - s.square().sum()) / error
    # the mean of 200 standard normal values has standard deviation 0.07
    assert abs(float(z.mean())) < 0.35


def test_two_equal_leading_values_are_owned_up_to():
    model, s, _ = decaying()
    u, _, vh = torch.linalg.svd(model.weight.detach(), full_matrices=False)
    s[1] = s[0]
    model.weight.data = u * s @ vh
    geometry = local_geometry(model, torch.randn(2, 500, dtype=torch.float64))
    assert bool((geometry.error["normal_alignment"] > 0.5).all())
    assert bool((geometry.error["jacobian_norm"] < 1e-2).all())


def test_outputs_are_summed_one_by_one_when_probes_would_cost_more():
    model, s, _ = decaying(k=300, d=400, power=0.2)
    x = torch.randn(2, 400, dtype=torch.float64)
    options = MatrixFreeOptions(rtol=1e-4)
    geometry = local_geometry(model, x, method="matrix_free", options=options)
    norm = s.square().sum().sqrt().expand(2)
    torch.testing.assert_close(geometry.jacobian_norm, norm)
    assert torch.equal(geometry.error["jacobian_norm"], torch.zeros(2).double())


def test_a_flat_spectrum_needs_no_luck():
    """Probes on a sphere see the same energy in every direction."""
    model = nn.Linear(400, 300).double()
    nn.init.orthogonal_(model.weight)
    x = torch.randn(2, 400, dtype=torch.float64)
    geometry = local_geometry(model, x, method="matrix_free")
    expected = torch.full((2,), 300.0, dtype=torch.float64).sqrt()
    torch.testing.assert_close(geometry.jacobian_norm, expected)
    assert bool((geometry.error["normal_alignment"] > 0.5).all())  # no leading vector


def test_robustness_is_exact_where_the_bound_says_so_and_never_too_small():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 500)).double()
    x = torch.randn(12, 40, dtype=torch.float64)
    y = model(x).argmax(1)
    y[0] = (y[0] + 1) % 500
    exact = local_geometry(model, x, y, method="exact").local_robustness
    free = local_geometry(model, x, y, method="matrix_free")
    value, slack = free.local_robustness, free.error["local_robustness"]
    assert bool((value >= exact - 1e-12).all())
    assert bool((value - slack <= exact + 1e-12).all())
    # sixteen candidates out of 500 classes find the nearest one nearly always
    assert int(((value - exact).abs() < 1e-9).sum()) >= 11
    assert value[0] == 0


def test_the_same_call_gives_the_same_numbers_and_leaves_the_random_state():
    model, *_ = decaying()
    x = torch.randn(2, 500, dtype=torch.float64)
    state = torch.get_rng_state()
    first, second = local_geometry(model, x), local_geometry(model, x)
    assert torch.equal(first.jacobian_norm, second.jacobian_norm)
    assert torch.equal(state, torch.get_rng_state())


def test_few_products_are_needed():
    model, *_ = decaying(power=2.0)
    products = []

    class Counting(nn.Module):
        def forward(self, z):
            return Count.apply(model(z))

    class Count(torch.autograd.Function):
        @staticmethod
        def forward(z):
            return z.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad):
            products.append(1)
            return grad

        @staticmethod
        def jvp(ctx, tangent):
            products.append(1)
            return tangent.clone()

        @staticmethod
        def vmap(info, in_dims, z):
            return Count.apply(z), in_dims[0]

    local_geometry(Counting(), torch.randn(1, 500, dtype=torch.float64))
    assert 0 < len(products) < 20  # blocks of eight vectors; a row each would be 600


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rough_but_not_lost(dtype):
    model, s, _ = decaying(power=1.0)
    model, x = model.to(dtype), torch.randn(2, 500).to(dtype)
    found = local_geometry(model, x, method="matrix_free")
    rank = float(s.square().sum() / s[0].square())
    # products are rounded to 8 or 11 bits
    assert found.effective_rank.tolist() == pytest.approx([rank] * 2, rel=0.05)


@pytest.mark.parametrize(
    ("option", "value"),
    [("block", 1), ("candidates", 0), ("max_rank", 0), ("rtol", 0.0), ("block", 2.5)],
)
def test_options_are_checked(option, value):
    with pytest.raises(ValueError, match=f"MatrixFreeOptions: {option} must be"):
        MatrixFreeOptions(**{option: value})


def test_a_sample_of_low_rank_beside_others_of_full_rank():
    """Its range is exhausted first, while the space of the others still grows."""
    layer, x = nn.Linear(300, 400).double(), torch.randn(6, 300).double()
    with torch.no_grad():
        layer.bias[:] = -1
        layer.bias[0] = 1  # at x[0] this output alone is alive
        x[0] *= 0.01
    found = local_geometry(lambda z: layer(z).relu(), x, method="matrix_free")
    exact = local_geometry(lambda z: layer(z).relu(), x, method="exact")
    assert float(found.effective_rank[0]) == pytest.approx(1.0)
    torch.testing.assert_close(
        found.effective_rank, exact.effective_rank, rtol=3e-3, atol=0
    )
