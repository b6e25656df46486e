import importlib

import pytest
import torch
from torch import nn

from normalign.geometry._ntk import ntk


def naive_ntk(model, x, z, names=None):
    """Gradients of every output of every sample, one at a time."""
    chosen = [
        p
        for n, p in model.named_parameters()
        if (p.requires_grad if names is None else n in names)
    ]

    def rows(points):
        gradients = [
            torch.autograd.grad(value, chosen, retain_graph=True)
            for value in model(points).flatten()
        ]
        flat = [torch.cat([g.flatten() for g in row]) for row in gradients]
        return torch.stack(flat).unflatten(0, (len(points), -1))

    return torch.einsum("nap,mbp->nmab", rows(x), rows(z))


def randn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, 5)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Scaled(nn.Module):
    """A buffer enters the output and is no parameter."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 2)
        self.register_buffer("scale", torch.tensor(3.0))

    def forward(self, x):
        return self.scale * self.linear(x)


def mlp():
    return nn.Sequential(
        nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, 6), nn.GELU(),
        nn.Linear(6, 3),
    )  # fmt: skip


def batch_normed():
    model = nn.Sequential(
        nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)
    )
    model[1].running_mean.copy_(torch.arange(4.0))
    model[1].running_var.copy_(torch.arange(1.0, 5.0))
    return model.eval()


def attention():
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.Unflatten(1, (5, 1)), nn.Linear(1, 4), layer, nn.Flatten(), nn.Linear(20, 2)
    ).eval()


CASES = {
    "mlp": mlp,
    "tied": Tied,
    "buffer": Scaled,
    "batch-norm": batch_normed,
    "attention": attention,
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 3, 2), nn.ReLU(), nn.Flatten()
    ),
    "scalar output": lambda: nn.Sequential(nn.Linear(5, 1), nn.Flatten(0)),
}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def model(request):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return request.param().double()


@pytest.mark.parametrize("method", ["auto", "contraction", "products"])
def test_ntk_is_the_gram_matrix_of_gradients(model, method):
    x, z = randn(3, 5), randn(4, 5, seed=1)
    expected = naive_ntk(model, x, z)
    torch.testing.assert_close(
        ntk(model, x, z, method=method), expected, atol=1e-9, rtol=1e-9
    )


@pytest.mark.parametrize("method", ["contraction", "products"])
def test_ntk_of_x_with_itself_is_the_square_case(model, method):
    x = randn(4, 5)
    torch.testing.assert_close(
        ntk(model, x, method=method), ntk(model, x, x.clone(), method=method)
    )


def test_ntk_is_symmetric_and_positive_semidefinite(model):
    x = randn(4, 5)
    kernel = ntk(model, x)
    n, _, k, _ = kernel.shape
    gram = kernel.transpose(1, 2).reshape(n * k, n * k)
    torch.testing.assert_close(gram, gram.T, atol=1e-10, rtol=1e-10)
    values = torch.linalg.eigvalsh(gram)
    # Rounding of a Gram matrix: a few ulps of its largest eigenvalue.
    assert values[0] > -1e-12 * values[-1]


@pytest.mark.parametrize("method", ["contraction", "products"])
@pytest.mark.parametrize("chunk_size", [1, 2, 5, 100])
@pytest.mark.parametrize("square", [True, False])
def test_chunking_does_not_change_the_kernel(method, chunk_size, square):
    model = CASES["mlp"]().double()
    x, z = randn(5, 5), None if square else randn(4, 5, seed=1)
    torch.testing.assert_close(
        ntk(model, x, z, method=method, chunk_size=chunk_size), ntk(model, x, z)
    )


def test_a_tiny_memory_budget_gives_the_same_kernel():
    model, x = CASES["mlp"]().double(), randn(3, 5)
    torch.testing.assert_close(ntk(model, x, memory_budget=1), ntk(model, x))


def test_blocks_of_jacobians_stay_inside_the_memory_budget(monkeypatch):
    # The folder exports the function under the module's name.
    tangents = importlib.import_module("normalign.geometry._ntk")._Tangents
    seen = []
    original = tangents.jacobian

    def recorded(self, points):
        rows = original(self, points)
        seen.append(sum(r.numel() * r.element_size() for r in rows))
        return rows

    monkeypatch.setattr(tangents, "jacobian", recorded)
    model = CASES["mlp"]().double()
    budget = 100_000
    ntk(model, randn(40, 5), method="contraction", memory_budget=budget)
    assert len(seen) > 1
    assert 2 * max(seen) <= budget


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("method", ["contraction", "products"])
def test_ntk_works_where_gradients_are_switched_off(context, method):
    model, x = CASES["mlp"]().double(), randn(3, 5)
    expected = ntk(model, x, method=method)
    with context():
        torch.testing.assert_close(ntk(model, x.clone(), method=method), expected)


def test_frozen_parameters_are_left_out_unless_named():
    model, x = CASES["mlp"]().double(), randn(3, 5)
    model[0].requires_grad_(False)
    kept = [n for n, p in model.named_parameters() if p.requires_grad]
    torch.testing.assert_close(ntk(model, x), naive_ntk(model, x, x))
    torch.testing.assert_close(ntk(model, x), ntk(model, x, params=kept))
    frozen = ntk(model, x, params=["0.weight", "0.bias"])
    model.requires_grad_(True)
    torch.testing.assert_close(ntk(model, x), ntk(model, x, params=kept) + frozen)


def test_the_kernel_of_a_linear_layer_is_known():
    x, z = randn(3, 5), randn(2, 5, seed=1)
    model = nn.Linear(5, 2).double()
    expected = (x @ z.T + 1)[:, :, None, None] * torch.eye(2, dtype=torch.float64)
    torch.testing.assert_close(ntk(model, x, z), expected)


def test_ntk_leaves_the_model_as_it_was():
    model, x = CASES["mlp"]().double(), randn(3, 5)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    kernel = ntk(model, x)
    assert not kernel.requires_grad
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])


def test_an_empty_batch_has_an_empty_kernel():
    model = CASES["mlp"]().double()
    assert ntk(model, randn(0, 5), randn(2, 5)).shape == (0, 2, 3, 3)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda m: (m.train(), {}), ValueError, r"BatchNorm1d '1' in training.*eval"),
        (lambda m: (m, {"params": ["nope"]}), ValueError, "params must be names"),
        (lambda m: (m.requires_grad_(False), {}), ValueError, "Unfreeze"),
        (lambda m: (m, {"method": "magic"}), ValueError, "method must be one of"),
        (lambda m: (m, {"chunk_size": 0}), ValueError, "chunk_size must be 'auto'"),
        (lambda m: (torch.sin, {}), TypeError, "model must be an nn.Module"),
    ],
)
def test_what_has_no_kernel_is_refused_with_a_remedy(change, error, text):
    model, options = change(batch_normed())
    with pytest.raises(error, match=text):
        ntk(model, torch.zeros(2, 5), **options)


def test_active_dropout_is_refused():
    model = nn.Sequential(nn.Linear(5, 2), nn.Dropout(0.5))
    with pytest.raises(ValueError, match=r"Dropout '1' in training mode.*eval"):
        ntk(model, torch.zeros(2, 5))


def test_auto_takes_the_other_way_where_there_is_no_forward_rule():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 6))
    model = nn.Sequential(layer, nn.Tanh(), nn.Linear(6, 5)).double()
    x = torch.randn(2, 4, dtype=torch.float64)
    torch.testing.assert_close(ntk(model, x), ntk(model, x, method="contraction"))


def test_group_norm_on_channels_last():
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 2)
    ).double()
    x = torch.randn(2, 2, 6, 6, dtype=torch.float64)
    last = x.contiguous(memory_format=torch.channels_last)
    for method in ("contraction", "products"):
        torch.testing.assert_close(ntk(model, last, method=method), ntk(model, x))


def test_tokens():
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2)).double()
    assert ntk(model, torch.randint(0, 5, (3, 2))).shape == (3, 3, 2, 2)
