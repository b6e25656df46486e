import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from normalign.nn.dense import mlp
from normalign.regularizers import (
    augmented_norm,
    exact_norm,
    finite_noise,
    input_probes,
    nuclear_split,
    orthogonal_probes,
    output_probes,
)
from normalign.theory import orthogonal_energy
from tests.regularizers.penalties import (
    CASES,
    generator,
    jacobian_of,
    local_map,
    network,
    normal,
)

PROBED = {
    "output": output_probes,
    "input": input_probes,
    "orthogonal": orthogonal_probes,
    "augmented": augmented_norm,
}
ALL = {**PROBED, "nuclear": nuclear_split, "exact": exact_norm, "noise": finite_noise}


@pytest.fixture(params=CASES, ids=str)
def case(request):
    model, shape, _ = CASES[request.param]
    return model, normal(4, *shape, seed=1)


def quadratic_form(name: str, model: nn.Module, x: Tensor) -> Tensor:
    """The matrix A of each sample whose trace the probes z^T A z estimate."""
    jacobian, offset = local_map(model, x)
    if name == "augmented":
        jacobian = torch.cat([jacobian, offset[:, :, None]], 2)
    if name in ("output", "augmented"):
        return jacobian @ jacobian.mT
    if name == "orthogonal":
        unit = functional.normalize(x.flatten(1))
        eye = torch.eye(unit.shape[1], dtype=x.dtype)
        jacobian = jacobian @ (eye - unit[:, :, None] * unit[:, None, :])
    return jacobian.mT @ jacobian


def variance(matrix: Tensor, probe: str) -> Tensor:
    """Of z^T A z for one probe z."""
    square, size = matrix.square().sum((1, 2)), matrix.shape[1]
    if probe == "normal":
        return 2 * square
    trace = matrix.diagonal(dim1=1, dim2=2).sum(1)
    return 2 * size / (size + 2) * (square - trace.square() / size)


COPIES = 400


def mean_of_many(estimate, model: nn.Module, x: Tensor, **settings) -> Tensor:
    """The mean over as many probes for each sample, in one batch."""
    copies = x.repeat(COPIES, *[1] * (x.ndim - 1))
    return estimate(model, copies, **settings)[1].detach().view(COPIES, -1).mean(0)


@pytest.mark.parametrize("name", ALL)
def test_the_outputs_are_the_models(name, case):
    model, x = case
    output, squared = ALL[name](model, x)
    torch.testing.assert_close(output, model(x))
    assert squared.shape == (len(x),)


@pytest.mark.parametrize("probe", ["sphere", "normal"])
@pytest.mark.parametrize("name", PROBED)
def test_the_mean_over_probes_is_the_exact_value(name, probe, case):
    model, x = case
    matrix = quadratic_form(name, model, x)
    exact = matrix.diagonal(dim1=1, dim2=2).sum(1)
    found = mean_of_many(PROBED[name], model, x, probe=probe, generator=generator(2))
    # Five standard errors of a mean of 400 draws: were it normal, one of the 160
    # samples of this test would miss with probability 1e-4.
    error = (variance(matrix, probe) / COPIES).sqrt()
    assert ((found - exact).abs() < 5 * error + 1e-9 * exact).all()


def test_the_orthogonal_part_is_that_of_the_theory(case):
    model, x = case
    matrix = quadratic_form("orthogonal", model, x)
    expected = orthogonal_energy(jacobian_of(model, x), x.flatten(1))
    torch.testing.assert_close(matrix.diagonal(dim1=1, dim2=2).sum(1), expected)


def test_the_exact_norm_needs_no_probes(case):
    model, x = case
    expected = jacobian_of(model, x).square().sum((1, 2))
    torch.testing.assert_close(exact_norm(model, x)[1].detach(), expected)


def test_shaking_a_piecewise_affine_model_a_little_gives_its_norm():
    model, x = CASES["relu"][0], normal(4, 5, seed=1)
    matrix = quadratic_form("input", model, x)
    found = mean_of_many(finite_noise, model, x, std=1e-6, generator=generator())
    exact = matrix.diagonal(dim1=1, dim2=2).sum(1)
    error = (variance(matrix, "normal") / COPIES).sqrt()
    # Five standard errors, as above; within 1e-5 of x there is no other piece.
    assert ((found - exact).abs() < 5 * error).all()


def test_shaking_is_a_difference_of_outputs():
    model, x = CASES["tanh"][0], normal(4, 5, seed=1)
    _, found = finite_noise(model, x, std=0.5, generator=generator(3))
    step = 0.5 * normal(4, 5, seed=3)
    expected = (model(x + step) - model(x)).square().sum(1) / 0.25
    torch.testing.assert_close(found, expected)


def halves(model: nn.Sequential, at: int, x: Tensor) -> tuple[Tensor, Tensor]:
    hidden = model[:at](x)
    return jacobian_of(model[:at], x), jacobian_of(model[at:], hidden.detach())


@pytest.mark.parametrize("name", CASES)
def test_the_split_is_the_mean_over_both_halves(name):
    model, shape, at = CASES[name]
    x = normal(4, *shape, seed=1)
    grams = [part @ part.mT for part in halves(model, int(at), x)]
    exact = sum(gram.diagonal(dim1=1, dim2=2).sum(1) for gram in grams) / 2
    spread = sum(variance(gram, "sphere") for gram in grams) / 4
    found = mean_of_many(nuclear_split, model, x, at=at, generator=generator(4))
    error = (spread / COPIES).sqrt()  # five of them, as above
    assert ((found - exact).abs() < 5 * error + 1e-9 * exact).all()


def test_the_split_bounds_the_nuclear_norm_and_reaches_it_when_balanced():
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 3, bias=False))
    model.double()
    whole = normal(3, 4)
    left, values, right = torch.linalg.svd(whole, full_matrices=False)
    with torch.no_grad():
        model[0].weight.copy_(values.sqrt()[:, None] * right)
        model[1].weight.copy_(left * values.sqrt())
    x = torch.ones(300, 4, dtype=torch.float64)
    _, found = nuclear_split(model, x, n_probes=30, generator=generator())
    # 9000 probes whose relative standard deviation is at most sqrt(2): 1.5 percent
    assert float(found.detach().mean()) == pytest.approx(float(values.sum()), rel=0.06)


def test_the_default_cut_is_the_middle_of_a_chain():
    model, x = CASES["tanh"][0], normal(4, 5)
    middle = nuclear_split(model, x, generator=generator(1))[1]
    named = nuclear_split(model, x, at="1", generator=generator(1))[1]
    assert torch.equal(middle, named)


def test_one_output_needs_one_probe():
    model, x = network("tanh", 4, 6, 1), normal(3, 4)
    matrix = quadratic_form("augmented", model, x)
    found = augmented_norm(model, x, probe="sphere")[1].detach()
    torch.testing.assert_close(found, matrix.flatten())


def test_one_probe_gives_the_quadratic_form_of_the_augmented_jacobian(case):
    model, x = case
    jacobian, offset = local_map(model, x)
    output, squared_norm = augmented_norm(model, x, generator=generator(5))
    probe = torch.randn(output.shape, generator=generator(5), dtype=x.dtype).flatten(1)
    rows = torch.einsum("nk,nkd->nd", probe, jacobian).square().sum(1)
    expected = rows + (probe * offset).sum(1).square()
    torch.testing.assert_close(squared_norm.detach(), expected)


def test_a_zero_input_is_not_projected():
    model, x = CASES["relu"][0], torch.zeros(2, 5, dtype=torch.float64)
    free = input_probes(model, x, generator=generator(6))[1]
    projected = orthogonal_probes(model, x, generator=generator(6))[1]
    assert torch.equal(free, projected)


def test_several_probes_are_the_mean_of_single_ones():
    model, x = CASES["tanh"][0], torch.ones(2, 5, dtype=torch.float64)
    together = augmented_norm(model, x, n_probes=3, generator=generator(4))[1]
    source = generator(4)
    alone = [augmented_norm(model, x, generator=source)[1] for _ in range(3)]
    torch.testing.assert_close(together, sum(alone) / 3)


class Given(nn.Module):
    """A module run with other tensors in the place of its parameters."""

    def __init__(self, inner: nn.Module, values: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.inner = inner
        names = [name for name, _ in inner.named_parameters()]
        self.state = dict(zip(names, values, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        return functional_call(self.inner, self.state, (x,))


def check_gradient(model: nn.Module, value: Callable[[nn.Module], Tensor]) -> bool:
    given = tuple(p.detach().clone().requires_grad_() for p in model.parameters())
    return torch.autograd.gradcheck(lambda *p: value(Given(model, p)), given)


@pytest.mark.parametrize(
    ("case", "name"),
    [*(("tanh", name) for name in ALL), ("images", "augmented"), ("tokens", "nuclear")],
)
def test_gradient_in_the_parameters_is_that_of_finite_differences(case, name):
    model, shape, at = CASES[case]
    x, source = normal(2, *shape, seed=6), generator()
    settings = {"exact": {}, "nuclear": {"at": f"inner.{at}", "generator": source}}

    def value(given: nn.Module) -> Tensor:
        source.manual_seed(7)
        chosen = settings.get(name, {"generator": source})
        return ALL[name](given, x, **chosen)[1].sum()

    assert check_gradient(model, value)


def test_gradient_reaches_an_encoder_before_the_model():
    for estimate in ALL.values():
        encoder, model = nn.Linear(3, 4), mlp([4, 5, 2], activation="tanh")
        _, squared_norm = estimate(model, encoder(torch.ones(2, 3)))
        squared_norm.sum().backward()
        assert encoder.weight.grad is not None
        assert encoder.weight.grad.any()


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.mix(x)[:, None]
        return functional.scaled_dot_product_attention(heads, heads, heads).flatten(1)


@pytest.mark.parametrize("name", ["augmented", "input"])
def test_fused_attention_has_its_second_derivative(name):
    model = Fused()
    _, squared_norm = ALL[name](model, torch.randn(2, 3, 8, generator=generator()))
    squared_norm.mean().backward()
    assert model.mix.weight.grad is not None
    assert torch.isfinite(model.mix.weight.grad).all()
    assert model.mix.weight.grad.any()


@pytest.mark.parametrize("name", ALL)
def test_nothing_of_the_callers_is_changed(name):
    model, x = mlp([4, 5, 2]), torch.ones(3, 4)
    settings = {} if name == "exact" else {"generator": generator()}
    state = torch.get_rng_state()
    _, squared_norm = ALL[name](model, x, **settings)
    assert torch.equal(torch.get_rng_state(), state)
    squared_norm.sum().backward()
    assert not x.requires_grad
    assert x.grad is None


@pytest.mark.parametrize("name", ALL)
def test_an_empty_batch_has_no_norms(name):
    output, squared_norm = ALL[name](mlp([4, 5, 2]), torch.empty(0, 4))
    assert output.shape == (0, 2)
    assert squared_norm.shape == (0,)


@pytest.mark.parametrize("name", ALL)
def test_a_first_layer_may_work_in_place(name):
    model = torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Linear(3, 2))
    x = torch.randn(2, 3)
    before = x.clone()
    ALL[name](model, x)[1].sum().backward()
    assert torch.equal(x, before)


def test_an_inference_tensor_can_be_penalised():
    with torch.inference_mode():
        x = torch.ones(3, 4)
    model = mlp([4, 5, 2])
    augmented_norm(model, x)[1].sum().backward()
    assert model[0].weight.grad is not None


def test_descending_it_shrinks_the_exact_norm():
    model = mlp([4, 16, 3], generator=generator(8), dtype=torch.float64)
    x = normal(8, 4, seed=9)
    optimizer, source = torch.optim.SGD(model.parameters(), lr=0.05), generator(10)

    def exact() -> float:
        jacobian, offset = local_map(model, x)
        return float(jacobian.square().sum() + offset.square().sum())

    before = exact()
    for _ in range(50):
        optimizer.zero_grad()
        augmented_norm(model, x, generator=source)[1].mean().backward()
        optimizer.step()
    assert exact() < before / 10


def frozen() -> nn.Module:
    return mlp([4, 5, 2]).requires_grad_(False)


def detached(x: Tensor) -> Tensor:
    return x.detach() * 2


def constant(x: Tensor) -> Tensor:
    return torch.ones(len(x), 2, requires_grad=True)


@pytest.mark.parametrize("name", ["augmented", "output", "input", "exact"])
@pytest.mark.parametrize(
    ("model", "words"),
    [
        (frozen(), "requires_grad=True"),
        (torch.compile(frozen(), backend="aot_eager"), "requires_grad=True"),
        (detached, "outputs without a graph"),
        (constant, "outputs that ignore x"),
        (lambda x: x.sum() * torch.ones(1, requires_grad=True), "shape"),
    ],
    ids=["frozen", "compiled", "detached", "constant", "one"],
)
def test_a_model_that_cannot_be_penalised_is_refused_with_the_remedy(
    model, words, name
):
    with pytest.raises(ValueError, match=r"^\w+: model must be") as caught:
        ALL[name](model, torch.ones(3, 4))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
        nn.Sequential(
            nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)
        ).eval(),
    ],
)
def test_batch_statistics_are_refused_where_they_cannot_be_held_fixed(model):
    with pytest.raises(ValueError, match="model must be") as caught:
        ALL["noise"](model, torch.ones(3, 4))
    assert "GroupNorm" in str(caught.value)


def test_batch_normalisation_in_eval_mode_is_an_affine_map():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval().double()
    x = normal(3, 4)
    _, estimate = augmented_norm(model, x, n_probes=200, generator=generator())
    jacobian, offset = local_map(model, x)
    exact = jacobian.square().sum((1, 2)) + offset.square().sum(1)
    # relative standard error of v^T A v over 200 probes is at most sqrt(2/200)
    assert ((estimate / exact - 1).abs() < 4 * math.sqrt(2 / 200)).all()


def test_without_gradients_the_call_is_refused():
    with torch.no_grad(), pytest.raises(ValueError, match="no_grad"):
        augmented_norm(mlp([4, 2]), torch.ones(3, 4))


@pytest.mark.parametrize(
    ("x", "settings", "error"),
    [
        (torch.ones(3, 4, dtype=torch.long), {}, TypeError),
        ([1.0], {}, TypeError),
        (torch.ones(4), {}, ValueError),
        (torch.ones(3, 4), {"n_probes": 0}, ValueError),
        (torch.ones(3, 4), {"n_probes": 1.5}, TypeError),
        (torch.ones(3, 4), {"probe": "cube"}, ValueError),
    ],
)
def test_wrong_arguments_are_named(x, settings, error):
    with pytest.raises(error, match=r"^output_probes: (x|n_probes|probe) must be"):
        output_probes(mlp([4, 2]), x, **settings)


@pytest.mark.parametrize("std", [0.0, -1.0, float("inf"), float("nan")])
def test_the_length_of_a_step_is_positive_and_finite(std):
    with pytest.raises(ValueError, match=r"^finite_noise: std must be positive"):
        finite_noise(mlp([4, 2]), torch.ones(3, 4), std=std)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.body(x))


def test_a_model_that_is_no_chain_needs_a_cut():
    with pytest.raises(ValueError, match=r"^nuclear_split: model must be") as caught:
        nuclear_split(Residual(), torch.ones(3, 4))
    assert "at=" in str(caught.value)


def test_a_cut_that_is_gone_around_is_refused():
    with pytest.raises(ValueError, match="goes around"):
        nuclear_split(Residual(), torch.ones(3, 4), at="body")
    nuclear_split(Residual(), torch.ones(3, 4), at="head")


@pytest.mark.parametrize("compiled", ["module", "function"])
def test_a_compiled_model_is_penalised_through_its_eager_self(compiled):
    model, x = mlp([4, 5, 2], activation="tanh"), torch.ones(3, 4)
    wrapped = (
        torch.compile(model, backend="aot_eager")
        if compiled == "module"
        else torch.compile(lambda z: model(z), backend="aot_eager")
    )
    right = augmented_norm(model, x, generator=generator())[1]
    found = augmented_norm(wrapped, x, generator=generator())[1]
    assert torch.equal(right, found)
    found.sum().backward()
    assert model[0].weight.grad.any()
