import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap
from torch.nn import functional

from normalign.nn.mlp import mlp
from normalign.nn.transformer import Transformer
from normalign.regularizers.estimators import augmented_norm


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def local_map(model, x: Tensor) -> tuple[Tensor, Tensor]:
    """Jacobian (n, k, d) and offset (n, k), the naive way."""
    jacobian = vmap(jacrev(lambda z: model(z[None])[0].flatten()))(x).flatten(2)
    output = model(x).flatten(1)
    offset = output - torch.einsum("nkd,nd->nk", jacobian, x.flatten(1))
    return jacobian.detach(), offset.detach()


class Convolutional(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.Tanh(), nn.Flatten()
        )


CASES = {
    "relu": (mlp([5, 7, 3], generator=generator(), dtype=torch.float64), (5,)),
    "tanh": (
        mlp([5, 7, 3], activation="tanh", generator=generator(), dtype=torch.float64),
        (5,),
    ),
    "images": (Convolutional().double(), (2, 4, 4)),
    "tokens": (
        nn.Sequential(
            Transformer(4, 4, width=4, n_heads=2, hidden=5).double().blocks,
            nn.Flatten(),
            nn.Linear(12, 2).double(),
        ),
        (3, 4),
    ),
}


@pytest.fixture(params=CASES, ids=str)
def case(request):
    model, shape = CASES[request.param]
    x = torch.randn(4, *shape, dtype=torch.float64, generator=generator(1))
    return model, x


def test_the_outputs_are_the_models(case):
    model, x = case
    output, squared_norm = augmented_norm(model, x, generator=generator())
    torch.testing.assert_close(output, model(x))
    assert squared_norm.shape == (len(x),)


def test_one_probe_gives_the_quadratic_form_of_the_augmented_jacobian(case):
    model, x = case
    jacobian, offset = local_map(model, x)
    output, squared_norm = augmented_norm(model, x, generator=generator(5))
    probe = torch.randn(output.shape, generator=generator(5), dtype=x.dtype).flatten(1)
    rows = torch.einsum("nk,nkd->nd", probe, jacobian).square().sum(1)
    expected = rows + (probe * offset).sum(1).square()
    torch.testing.assert_close(squared_norm.detach(), expected)


def test_the_mean_over_probes_is_the_exact_norm(case):
    model, x = case
    jacobian, offset = local_map(model, x)
    exact = jacobian.square().sum((1, 2)) + offset.square().sum(1)
    n_probes = 200
    _, estimate = augmented_norm(model, x, n_probes=n_probes, generator=generator(2))
    # v^T A v has variance 2 |A|_F^2 for normal v. Four standard errors: a right
    # estimator fails for one of sixteen samples with probability below 0.002.
    gram = jacobian @ jacobian.mT + offset[:, :, None] * offset[:, None, :]
    error = gram.square().sum((1, 2)).mul(2 / n_probes).sqrt()
    assert ((estimate.detach() - exact).abs() < 4 * error).all()


def test_a_linear_model_is_penalised_by_weight_and_bias():
    model = nn.Linear(4, 1).double()
    x = torch.randn(3, 4, dtype=torch.float64, generator=generator())
    _, squared_norm = augmented_norm(model, x, generator=generator(3))
    probe = torch.randn(3, 1, generator=generator(3), dtype=torch.float64)
    expected = probe[:, 0] ** 2 * (model.weight.square().sum() + model.bias**2)
    torch.testing.assert_close(squared_norm, expected)


def test_several_probes_are_the_mean_of_single_ones():
    model, x = CASES["tanh"][0], torch.ones(2, 5, dtype=torch.float64)
    together = augmented_norm(model, x, n_probes=3, generator=generator(4))[1]
    source = generator(4)
    alone = [augmented_norm(model, x, generator=source)[1] for _ in range(3)]
    torch.testing.assert_close(together, sum(alone) / 3)


@pytest.mark.parametrize("name", ["tanh", "images"])
def test_gradient_in_the_parameters_is_that_of_finite_differences(name):
    model, shape = CASES[name]
    x = torch.randn(2, *shape, dtype=torch.float64, generator=generator(6))
    names = [name for name, _ in model.named_parameters()]
    values = tuple(
        p.detach().clone().requires_grad_() for _, p in model.named_parameters()
    )

    def penalty(*parameters: Tensor) -> Tensor:
        state = dict(zip(names, parameters, strict=True))

        def call(z: Tensor) -> Tensor:
            return torch.func.functional_call(model, state, (z,))

        return augmented_norm(call, x, generator=generator(7))[1].sum()

    assert torch.autograd.gradcheck(penalty, values)


def test_gradient_reaches_an_encoder_before_the_model():
    encoder, model = nn.Linear(3, 4), mlp([4, 5, 2], activation="tanh")
    _, squared_norm = augmented_norm(model, encoder(torch.ones(2, 3)))
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


def test_fused_attention_has_its_second_derivative():
    model = Fused()
    _, squared_norm = augmented_norm(model, torch.randn(2, 3, 8, generator=generator()))
    squared_norm.mean().backward()
    assert model.mix.weight.grad is not None
    assert torch.isfinite(model.mix.weight.grad).all()
    assert model.mix.weight.grad.any()


def test_nothing_of_the_callers_is_changed():
    model, x = mlp([4, 5, 2]), torch.ones(3, 4)
    state = torch.get_rng_state()
    augmented_norm(model, x, generator=generator())
    assert not x.requires_grad
    assert x.grad is None
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_an_empty_batch_has_no_norms():
    output, squared_norm = augmented_norm(mlp([4, 5, 2]), torch.empty(0, 4))
    assert output.shape == (0, 2)
    assert squared_norm.shape == (0,)


def test_descending_it_shrinks_the_exact_norm():
    model = mlp([4, 16, 3], generator=generator(8), dtype=torch.float64)
    x = torch.randn(8, 4, dtype=torch.float64, generator=generator(9))
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


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (frozen(), "requires_grad=True"),
        (detached, "outputs without a graph"),
        (constant, "outputs that ignore x"),
        (lambda x: x.sum() * torch.ones(1, requires_grad=True), "shape"),
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), "eval()"),
        (
            nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))
            .eval(),
            "GroupNorm",
        ),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_penalised_is_refused_with_the_remedy(model, words):
    with pytest.raises(ValueError, match=r"^augmented_norm: model must be") as caught:
        augmented_norm(model, torch.ones(3, 4))
    assert words in str(caught.value)


def test_batch_normalisation_in_eval_mode_is_an_affine_map():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval().double()
    x = torch.randn(3, 4, dtype=torch.float64, generator=generator())
    _, estimate = augmented_norm(model, x, n_probes=200, generator=generator())
    jacobian, offset = local_map(model, x)
    exact = jacobian.square().sum((1, 2)) + offset.square().sum(1)
    # relative standard error of v^T A v over 200 probes is at most sqrt(2/200)
    assert ((estimate / exact - 1).abs() < 4 * math.sqrt(2 / 200)).all()


def test_without_gradients_the_call_is_refused():
    with torch.no_grad(), pytest.raises(ValueError, match="no_grad"):
        augmented_norm(mlp([4, 2]), torch.ones(3, 4))


@pytest.mark.parametrize(
    ("x", "n_probes", "error"),
    [
        (torch.ones(3, 4, dtype=torch.long), 1, TypeError),
        (torch.ones(4), 1, ValueError),
        (torch.ones(3, 4), 0, ValueError),
        (torch.ones(3, 4), 1.5, TypeError),
    ],
)
def test_wrong_arguments_are_named(x, n_probes, error):
    with pytest.raises(error, match=r"^augmented_norm: (x|n_probes) must be"):
        augmented_norm(mlp([4, 2]), x, n_probes=n_probes)


def test_a_first_layer_may_work_in_place():
    model = torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Linear(3, 2))
    x = torch.randn(2, 3)
    before = x.clone()
    augmented_norm(model, x)[1].sum().backward()
    assert torch.equal(x, before)
