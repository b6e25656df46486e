"""The span of a linear head holds the range of every Jacobian."""

import pytest
import torch
from torch import nn

from normalign import local_affine, local_geometry
from normalign._linear_map import LocalMap
from normalign.geometry._exact import range_basis
from tests.oracles import jacobian_by_loop, measures_by_svd


class TestRangeOfTheHead:
    """A linear head confines the Jacobian to the span of its weight."""

    def vocabulary_model(self, tail=nn.Identity):
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(300, 40), nn.GELU(), nn.Linear(40, 20))
        return nn.Sequential(body, nn.Tanh(), nn.Linear(20, 700), tail()).double()

    def test_measures_are_exact_from_as_many_passes_as_features(self):
        model, x = self.vocabulary_model(), torch.randn(3, 300).double()
        y = model(x).argmax(1)
        y[0] = (y[0] + 1) % 700
        basis = range_basis(LocalMap(model), x)
        assert basis.shape == (700, 20)
        found = local_geometry(model, x, y)
        assert found.method == "exact"
        jacobian = local_affine(model, x).jacobian.detach()
        expected = measures_by_svd(jacobian, model(x).detach(), x, y)
        # 280 of the 300 singular values are zero: only the sum of their square roots
        # of rounding errors differs
        for name in set(expected) - {"participation_rank"}:
            torch.testing.assert_close(getattr(found, name), expected[name])

    def test_a_token_of_many_is_found_by_its_memory(self):
        class Language(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.head = nn.Linear(30, 20), nn.Linear(20, 300)

            def forward(self, x):
                return self.head(torch.tanh(self.body(x)))

        model, x = Language().double(), torch.randn(2, 5, 30).double()
        local_map = LocalMap(model, output=lambda out: out[:, -1])
        assert range_basis(local_map, x).shape == (300, 20)

    @pytest.mark.parametrize(
        "tail",
        [
            lambda: nn.ReLU(inplace=True),
            lambda: nn.Softmax(dim=1),
            lambda: nn.Linear(700, 700),
        ],
    )
    def test_what_comes_after_the_head_is_noticed(self, tail):
        model, x = self.vocabulary_model(tail), torch.randn(3, 300).double()
        assert range_basis(LocalMap(model), x) is None

    def test_a_head_that_widens_nothing_is_no_help(self):
        model = nn.Sequential(nn.Linear(80, 90), nn.ReLU(), nn.Linear(90, 70))
        assert range_basis(LocalMap(model), torch.randn(2, 80)) is None

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_hides_nothing(self, dtype):
        model = self.vocabulary_model(nn.Tanh).to(dtype)
        x = torch.randn(2, 300).to(dtype)
        assert range_basis(LocalMap(model), x) is None
        model[3] = nn.Identity()
        assert range_basis(LocalMap(model), x).shape == (700, 20)

    @pytest.mark.parametrize("first", ["dead", "small"])
    def test_a_range_that_holds_at_the_first_sample_alone_is_not_used(self, first):
        torch.manual_seed(0)
        layers = [nn.Linear(100, 70), nn.ReLU(), nn.Linear(70, 300)]
        model = nn.Sequential(*layers, nn.Hardtanh(-0.3, 0.3, inplace=True)).double()
        x = torch.randn(4, 100, dtype=torch.float64)
        with torch.no_grad():
            if first == "dead":  # no output moves at all
                model[0].bias.fill_(-0.1)
                x[0] = 0
            else:  # no output is clipped
                model[2].bias.zero_()
                model[0].bias.zero_()
                x[0] *= 1e-3
        found = local_geometry(model, x)
        jacobian = jacobian_by_loop(model, x)
        norms = jacobian.flatten(1).norm(dim=1)
        torch.testing.assert_close(found.jacobian_norm, norms, rtol=1e-3, atol=1e-12)
