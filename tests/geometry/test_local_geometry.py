"""`local_geometry` against a loop over samples with a full SVD of each Jacobian."""

import gc
from copy import deepcopy
from weakref import ref

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from normalign import At, LocalGeometry, layer_profile, local_affine, local_geometry
from normalign.geometry import MatrixFreeOptions
from tests.cases import CASES, TokenModel, mlp
from tests.oracles import jacobian_by_loop, measures_by_svd

METHODS = ["exact", "matrix_free"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_every_measure_agrees_with_the_svd(case, method):
    model, x = case.model(), case.x()
    output = model(x).detach().flatten(1)
    y = output.argmax(1)
    y[0] = (y[0] + 1) % output.shape[1]  # one wrong prediction
    expected = measures_by_svd(jacobian_by_loop(model, x), output, x, y)
    # so small a space is exhausted: both routes are exact on it
    options = MatrixFreeOptions(rtol=1e-13)
    found = local_geometry(model, x, y, method=method, options=options).measures()
    assert set(expected) - set(found) <= {"participation_rank"}
    for name, value in found.items():
        torch.testing.assert_close(
            value,
            expected[name],
            rtol=1e-9,
            atol=1e-9,
            msg=lambda m, n=name: f"{n}: {m}",
        )


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_inner_maps_are_measured_at_the_inner_point(case):
    model, x = case.model(), case.x()
    found = local_geometry(model, x, at=case.inner)
    from normalign import alignment_ratio, local_affine

    affine = local_affine(model, x, at=case.inner)
    torch.testing.assert_close(
        found.alignment_ratio, alignment_ratio(affine.jacobian, affine.input).detach()
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("budget", [1, 10_000, None])
def test_chunks_and_budgets_do_not_matter(method, budget):
    case = CASES[2]
    model, x = case.model(), case.x(9)
    y = model(x).argmax(1)
    whole = local_geometry(model, x, y, method=method, chunk_size=None)
    parts = local_geometry(model, x, y, method=method, memory_budget=budget)
    for name, value in whole.measures().items():
        torch.testing.assert_close(getattr(parts, name), value)


def test_the_route_is_chosen_by_the_number_of_passes():
    few, many = nn.Linear(300, 10), nn.Linear(300, 400)
    x = torch.randn(2, 300)
    assert local_geometry(few, x).method == "exact"
    assert local_geometry(many, x).method == "matrix_free"
    assert local_geometry(nn.Linear(10, 400), x[:, :10]).method == "exact"


@pytest.mark.parametrize(
    "mode", [torch.no_grad, torch.inference_mode, torch.enable_grad]
)
@pytest.mark.parametrize("method", METHODS)
def test_modes(mode, method):
    model, x = mlp(), torch.randn(3, 10)
    expected = local_geometry(model, x, method=method).measures()
    with mode():
        for point in (x, x.clone()):  # the second is made where it is measured
            found = local_geometry(model, point, method=method).measures()
            for name, value in found.items():
                assert not value.requires_grad
                torch.testing.assert_close(value.clone(), expected[name])


@pytest.mark.parametrize("measure", [local_geometry, layer_profile, local_affine])
def test_weights_made_in_inference_mode_are_measured_like_others(measure):
    def seen(model):
        found = measure(model, x)
        if measure is local_affine:
            return found.jacobian.detach()
        found = found if measure is local_geometry else found["input"]
        return torch.stack([found.normal_alignment, found.jacobian_norm])

    model, x = mlp(), torch.randn(3, 10)
    with torch.inference_mode():
        frozen = deepcopy(model)
        inside = seen(frozen)
    assert next(frozen.parameters()).is_inference()
    expected = seen(model)
    torch.testing.assert_close(inside.clone(), expected)
    with torch.no_grad():
        torch.testing.assert_close(seen(frozen), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_reported_in_float32(dtype):
    torch.manual_seed(0)
    model, x = mlp(), torch.randn(4, 10)
    exact = local_geometry(model.double(), x.to(dtype).double())
    found = local_geometry(model.to(dtype), x.to(dtype))
    assert found.normal_alignment.dtype == torch.float32
    # the Jacobian itself carries the rounding of 8 or 11 bits
    torch.testing.assert_close(
        found.jacobian_norm.double(), exact.jacobian_norm, rtol=0.05, atol=0
    )


@pytest.mark.parametrize("method", METHODS)
def test_zero_jacobians_and_zero_inputs_have_defined_values(method):
    y = torch.zeros(3, dtype=torch.long)
    constant = local_geometry(
        lambda z: torch.tensor([1.0, 0.0]).expand(len(z), 2) + 0 * z[:, :1],
        torch.randn(3, 5),
        y,
        method=method,
    )
    zero = local_geometry(mlp(), torch.zeros(3, 10), y, method=method)
    for geometry in (constant, zero):
        for name, value in geometry.measures().items():
            assert not value.isnan().any(), name
        for name, value in geometry.error.items():
            assert not value.isnan().any(), name
    assert torch.equal(constant.normal_alignment, torch.zeros(3))
    assert torch.equal(constant.effective_rank, torch.zeros(3))
    assert constant.local_robustness.isinf().all()
    assert torch.equal(zero.normal_alignment, torch.zeros(3))
    assert bool((zero.effective_rank >= 1).all())


@pytest.mark.parametrize("method", METHODS)
def test_empty_batch(method):
    geometry = local_geometry(mlp(), torch.zeros(0, 10), method=method)
    assert len(geometry) == 0
    assert "0 samples" in repr(geometry)


def test_one_output_has_no_competitor():
    y = torch.zeros(2, dtype=torch.long)
    for method in METHODS:
        geometry = local_geometry(nn.Linear(4, 1), torch.randn(2, 4), y, method=method)
        assert geometry.local_robustness.isinf().all()


def test_tokens_from_their_embedding():
    model, tokens = TokenModel().double(), torch.randint(0, 7, (3, 4))
    every = local_geometry(model, tokens, at="embed")
    last = local_geometry(model, tokens, at=At("embed", token=-1))
    assert len(every) == len(last) == 3
    assert bool((last.jacobian_norm < every.jacobian_norm).all())


def test_mean_frame_and_repr():
    model, x = mlp(), torch.randn(4, 10)
    geometry = local_geometry(model, x)
    means = geometry.mean()
    assert "local_robustness" not in means
    assert means["effective_rank"] == pytest.approx(
        float(geometry.effective_rank.mean()), rel=1e-6
    )
    frame = geometry.to_frame()
    assert list(frame.columns) == list(means)
    assert len(frame) == 4
    text = repr(geometry)
    assert text.startswith("LocalGeometry of 4 samples (exact)")
    assert all(name in text for name in means)
    assert isinstance(geometry, LocalGeometry)


def test_complaints():
    model, x = mlp(), torch.randn(4, 10)
    with pytest.raises(ValueError, match=r"local_geometry: method must be one of"):
        local_geometry(model, x, method="svd")
    with pytest.raises(ValueError, match=r"class indices from 0 to 3"):
        local_geometry(model, x, torch.tensor([0, 1, 2, 4]))
    with pytest.raises(ValueError, match=r"y must be of shape \(4,\)"):
        local_geometry(model, x, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="memory_budget must be positive"):
        local_geometry(model, x, memory_budget=0)


@pytest.mark.cuda
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_cuda_agrees_with_cpu(case, method):
    model, x = case.model(), case.x()
    expected = local_geometry(model, x, method=method)
    found = local_geometry(model.cuda(), x.cuda(), method=method)
    assert found.radius.is_cuda
    for name, value in found.measures().items():
        torch.testing.assert_close(value.cpu(), getattr(expected, name))


@pytest.mark.parametrize("method", METHODS)
def test_a_sample_without_a_finite_jacobian_is_nan_and_the_others_are_not(method):
    x = torch.randn(3, 5, dtype=torch.float64)
    x[1, 2] = 0.0  # the root has no derivative there
    y = torch.zeros(3, dtype=torch.long)
    found = local_geometry(lambda z: z.abs().sqrt(), x, y, method=method)
    for name in ("normal_alignment", "effective_rank", "jacobian_norm"):
        value = getattr(found, name)
        assert value[1].isnan(), name
        assert bool(value[[0, 2]].isfinite().all()), name


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_maps_of_any_size_in_float64(scale):
    model, x = nn.Linear(4, 3, bias=False).double(), torch.randn(2, 4).double()
    expected = local_geometry(model, x)
    found = local_geometry(lambda z: scale * model(z), x)
    torch.testing.assert_close(found.normal_alignment, expected.normal_alignment)
    torch.testing.assert_close(found.effective_rank, expected.effective_rank)
    torch.testing.assert_close(found.jacobian_norm / scale, expected.jacobian_norm)


@pytest.mark.parametrize("method", METHODS)
def test_labels_need_not_be_a_tensor(method):
    model, x, y = mlp(), torch.randn(4, 10), [1, 0, 2, 1]
    expected = local_geometry(model, x, torch.tensor(y), method=method)
    for labels in (y, np.array(y), pd.Series(y)):
        found = local_geometry(model, x, labels, method=method)
        assert torch.equal(found.local_robustness, expected.local_robustness)
    profile = layer_profile(model, x, y, method=method)
    torch.testing.assert_close(
        profile["input"].local_robustness, expected.local_robustness
    )
    with pytest.raises(TypeError, match=r"^local_geometry: y must be a tensor, or an "):
        local_geometry(model, x, np.array(["a"] * 4), method=method)


@pytest.mark.parametrize("measure", [local_geometry, layer_profile, local_affine])
def test_nothing_that_the_network_computed_outlives_the_measurement(measure):
    """Without the collector's help: what it cannot see would never be given back."""
    model, computed = mlp(), []
    for layer in model.modules():
        layer.register_forward_hook(lambda _, __, out: computed.append(ref(out)))
    gc.collect()
    gc.disable()
    try:
        measure(model, torch.randn(4, 10))
        assert computed
        assert not any(tensor() is not None for tensor in computed)
    finally:
        gc.enable()
