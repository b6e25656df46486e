"""Models that treat a sample by its company or its position are refused; others not."""

import pytest
import torch
from torch import nn

import normalign as na
from normalign.geometry import ntk
from normalign.robustness import masking_report, minimal_radius, pgd
from tests.cases import CASES, Recurrent
from tests.oracles import jacobian_by_loop


class Masked(nn.Module):
    """Keeps a row for each sample, and takes as many of them as samples come."""

    def __init__(self, n, amplitude=1e-2, same_ends=False, exact=False):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.mask = 1 + amplitude * torch.randn(n, 8)
        if same_ends:
            self.mask[-1] = self.mask[0]
        self.exact = exact

    def forward(self, x):
        mask = self.mask if self.exact else self.mask[: len(x)]
        return self.last(torch.tanh(self.first(x)) * mask)


X, Y = torch.linspace(-1, 1, 30).sin().view(5, 6), torch.zeros(5, dtype=torch.long)
CALLS = {
    "local_affine": lambda model: na.local_affine(model, X, chunk_size=1),
    "all at once": lambda model: na.local_affine(model, X, chunk_size=None),
    "local_geometry": lambda model: na.local_geometry(model, X, chunk_size=2),
    "matrix_free": lambda model: na.local_geometry(model, X, method="matrix_free"),
    "layer_profile": lambda model: na.layer_profile(model, X),
    "layer": lambda model: na.local_affine(model, X, at="last"),
    "ntk": lambda model: ntk(model, X),
    "ntk of others": lambda model: ntk(model, X[:1], X),
    "pgd": lambda model: pgd(model, X, Y, radii=0.1, n_steps=1),
    "minimal_radius": lambda m: minimal_radius(m, X, Y, max_radius=1.0, n_steps=1),
    "masking_report": lambda m: masking_report(m, X, Y, radii=0.1, n_steps=1),
}


@pytest.mark.parametrize("call", CALLS)
def test_rows_kept_on_the_model_are_refused_with_the_remedy(call):
    words = r"depends on the position in the batch.*a row for each sample"
    for settings in ({}, {"same_ends": True}, {"amplitude": 1e2}):
        with pytest.raises(ValueError, match=words):
            CALLS[call](Masked(5, **settings))


@pytest.mark.parametrize("call", CALLS)
def test_rows_for_one_batch_size_are_refused_with_the_remedy(call):
    words = r"one row for each sample.*no tensor on the model that has a row for each"
    with pytest.raises(ValueError, match=words):
        CALLS[call](Masked(5, exact=True))


@pytest.mark.parametrize("n", [3, 5])
def test_a_model_that_fails_for_other_batch_sizes_is_refused(n):
    class OutputOfFixedSize(nn.Linear):
        def forward(self, x):
            return super().forward(x).view(n, 3)

    with pytest.raises(ValueError, match=r"fails for other batch sizes: shape"):
        na.local_affine(OutputOfFixedSize(6, 3), X[:n])


def test_a_model_that_fails_for_every_batch_says_why_itself():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        na.local_affine(nn.Linear(4, 2), X)


@pytest.mark.parametrize("size", [1e-3, 1.0])
def test_samples_that_mix_get_the_other_remedy(size):
    words = r"differs when others are in the batch.*model.eval\(\)"
    with pytest.raises(ValueError, match=words):
        na.local_affine(lambda z: z - size * z.mean(0), X)


def test_the_rows_of_a_large_batch():
    model = Masked(3000, same_ends=True)
    with pytest.raises(ValueError, match="position in the batch"):
        na.local_geometry(model, torch.randn(3000, 6))


def test_the_memory_budget_limits_what_is_run_together():
    sizes = []

    def model(z):
        sizes.append(len(z))
        return z.repeat(1, 20).tanh()[:, :3]

    x = torch.randn(200, 50)
    na.local_affine(model, x, memory_budget=2**16)
    assert max(sizes) < 20
    sizes.clear()
    na.local_affine(model, x)
    assert max(sizes) == 200  # a chunk; 128 are compared


def test_a_penalty_takes_the_rows_of_its_own_batch():
    model = Masked(5).double()
    model.mask = model.mask.double()
    x = X.double()
    _, value = na.GrokAlign(1.0, estimator="exact", offset=False)(model, x)
    each = []
    for i in range(5):

        def alone(z, i=i):
            return model.last(torch.tanh(model.first(z)) * model.mask[i])

        each.append(jacobian_by_loop(alone, x[i : i + 1]).square().sum())
    torch.testing.assert_close(value, torch.stack(each).mean())


class TestNoFalseAlarms:
    @pytest.mark.parametrize("case", CASES, ids=repr)
    @pytest.mark.parametrize(
        "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16]
    )
    @pytest.mark.parametrize("size", [1e-3, 1.0, 1e2])
    def test_plain_models(self, case, dtype, size):
        na.local_affine(case.model().to(dtype), size * case.x(40).to(dtype))

    def test_deep_networks_in_single_precision(self):
        layers = [m for _ in range(40) for m in (nn.Linear(64, 64), nn.ReLU())]
        for layer in layers[::2]:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        model = nn.Sequential(*layers, nn.Linear(64, 4))
        na.local_affine(model, torch.randn(300, 64))

    def test_outputs_that_cancel(self):
        model = nn.Linear(512, 2, bias=False)
        x = torch.randn(64, 512)
        along = model.weight.detach()
        x = x - x @ torch.linalg.pinv(along) @ along  # outputs of rounding alone
        x[0] += 1.0
        na.local_affine(model, x)

    def test_autocast(self):
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            na.local_affine(lambda z: model(z).float(), torch.randn(50, 64))

    def test_a_sample_that_is_not_finite(self):
        x = torch.randn(4, 10)
        x[0, 0], x[3, 1] = torch.nan, torch.inf
        na.local_affine(nn.Linear(10, 2), x)

    def test_recurrence(self):
        na.local_affine(Recurrent(nn.LSTM).eval(), torch.randn(40, 5, 6))


def test_models_that_amplify_rounding_are_measured():
    torch.manual_seed(0)
    offset = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.Linear(32, 3))
    x = torch.rand(64, 20) * 0.01 + 1000
    for _ in range(100):
        offset(x)
    outputs = na.local_geometry(offset.eval(), x)
    assert outputs.jacobian_norm.isfinite().all()
    # The same data with the offset's rounding, and a mask for each sample.
    mask = 1 + torch.randn(64, 32)
    with pytest.raises(ValueError, match="depends on the position"):
        na.local_geometry(lambda x: offset[2](offset[:2](x) * mask[: len(x)]), x)
