"""What is peculiar about models: refused with the remedy, or made to work."""

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from sklearn.ensemble import RandomForestClassifier
from sklearn.kernel_ridge import KernelRidge
from torch import nn

from normalign import (
    GrokAlign,
    RFMRegressor,
    layer_profile,
    local_affine,
    local_geometry,
)
from normalign._linear_map import LinearMap, LocalMap
from normalign.geometry import ntk
from normalign.robustness import pgd
from tests.cases import Recurrent, cnn, mlp
from tests.oracles import jacobian_by_loop


def test_the_encoder_layer_of_torch_has_derivatives_in_evaluation_mode():
    layer = nn.TransformerEncoderLayer(6, 2, 12, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(30, 4)).double().eval()
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    expected = jacobian_by_loop(model, x)
    with torch.no_grad():
        linear = LinearMap(*LocalMap(model).on(x))
        torch.testing.assert_close(local_affine(model, x).jacobian, expected)
        pushed = linear.push(x.flatten(1).unsqueeze(0))[0]
    torch.testing.assert_close(
        pushed, torch.einsum("nkd,nd->nk", expected, x.flatten(1))
    )


@pytest.mark.parametrize("wrap", ["model", "function", "inner"])
def test_compiled_models_are_unwrapped(wrap):
    model, x = mlp().double(), torch.randn(3, 10, dtype=torch.float64)
    expected = jacobian_by_loop(model, x)
    compiled = {
        "model": lambda: torch.compile(model, backend="aot_eager"),
        "function": lambda: torch.compile(lambda z: model(z), backend="aot_eager"),
        "inner": lambda: nn.Sequential(
            torch.compile(model[:2], backend="aot_eager"), model[2:]
        ),
    }[wrap]()
    torch.testing.assert_close(local_affine(compiled, x).jacobian, expected)


class TestWhatMixesOrIsRandom:
    def test_batch_norm_in_training_mode(self):
        with pytest.raises(ValueError, match=r"BatchNorm2d '1'.*model.eval\(\)"):
            local_affine(cnn().train(), torch.randn(3, 2, 8, 8))

    def test_batch_norm_without_running_statistics(self):
        norm = nn.BatchNorm1d(4, track_running_stats=False).eval()
        with pytest.raises(ValueError, match="without running statistics"):
            local_affine(norm, torch.randn(3, 4))

    def test_samples_that_mix_out_of_sight(self):
        with pytest.raises(ValueError, match="function of each sample alone"):
            local_affine(lambda z: z - z.mean(0), torch.randn(3, 4))

    def test_dropout_warns_and_measures_one_sub_network(self):
        model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)).double()
        x = torch.ones(4, 6, dtype=torch.float64)
        state = torch.get_rng_state()
        with pytest.warns(UserWarning, match=r"Dropout '0'.*model.eval\(\)"):
            affine = local_affine(model, x)
        assert torch.equal(state, torch.get_rng_state())
        rebuilt = torch.einsum("nkd,nd->nk", affine.jacobian, x) + affine.offset
        torch.testing.assert_close(rebuilt, affine.output)
        torch.testing.assert_close(affine.offset, model[1].bias.expand(4, 3))

    def test_dropout_masks_agree_between_both_products(self):
        model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)).double()
        x = torch.ones(4, 6, dtype=torch.float64)
        with pytest.warns(UserWarning, match="Dropout"):
            linear = LinearMap(*LocalMap(model).on(x))
        basis = torch.eye(3, dtype=torch.float64)[:, None].expand(3, 4, 3)
        jx = (linear.pull(basis) * x).sum(-1).T
        pushed = linear.push(torch.stack([x, 2 * x]))
        torch.testing.assert_close(pushed[0], jx)
        torch.testing.assert_close(pushed[1], 2 * jx)

    def test_a_single_sample_without_a_batch(self):
        with pytest.raises(ValueError, match=r"batch of shape.*unsqueeze"):
            local_affine(mlp(), torch.randn(10))

    @pytest.mark.parametrize("chunk_size", [0, -1, "some", 2.5, True])
    def test_bad_chunk_sizes(self, chunk_size):
        with pytest.raises(ValueError, match=r"chunk_size must be a positive integer"):
            local_affine(mlp(), torch.randn(2, 10), chunk_size=chunk_size)

    def test_not_a_model(self):
        with pytest.raises(TypeError, match="model must be callable"):
            local_affine(3, torch.randn(2, 10))


@pytest.mark.parametrize(
    "mixing",
    [lambda z: z.cumsum(0), lambda z: z - z.mean(0), lambda z: z + z.flip(0)],
)
@pytest.mark.parametrize("same", [False, True])
def test_mixing_is_noticed_in_either_direction_and_among_equals(mixing, same):
    x = torch.ones(4, 3) if same else torch.randn(4, 3)
    with pytest.raises(ValueError, match="function of each sample alone"):
        local_affine(mixing, x)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("method", ["exact", "matrix_free"])
def test_recurrent_layers_in_float32_without_grad_mode(cell, method):
    model, x = Recurrent(cell).eval(), torch.randn(3, 5, 6)
    found = local_geometry(model, x, method=method)
    jacobian = jacobian_by_loop(model, x)
    torch.testing.assert_close(
        found.jacobian_norm, jacobian.flatten(1).norm(dim=1), rtol=1e-4, atol=0
    )


def test_activation_checkpointing():
    body, head = nn.Sequential(nn.Linear(5, 8), nn.Tanh()), nn.Linear(8, 3)
    plain = nn.Sequential(body, head).double()
    x = torch.randn(2, 5, dtype=torch.float64)

    def model(z):
        return head(torch.utils.checkpoint.checkpoint(body, z, use_reentrant=False))

    found = local_affine(model, x).jacobian
    torch.testing.assert_close(found, jacobian_by_loop(plain, x))


class TestWhatIsNoTorchModel:
    """Every function that takes a model names the remedy."""

    x, y = torch.linspace(-1, 1, 20).view(5, 4), torch.tensor([0, 1, 2, 0, 1])
    calls = (
        lambda model, x, y: local_affine(model, x),
        lambda model, x, y: local_geometry(model, x),
        lambda model, x, y: layer_profile(model, x),
        lambda model, x, y: ntk(model, x),
        lambda model, x, y: GrokAlign()(model, x),
        lambda model, x, y: pgd(model, x, y, radii=0.1, n_steps=1),
    )
    takes_functions = tuple(call for i, call in enumerate(calls) if i != 3)

    class Foreign:  # an array of another library
        shape, dtype = (5, 3), "float32"

        def __array__(self, dtype=None, copy=None):
            return np.ones((5, 3), "float32")

    @pytest.mark.parametrize("call", takes_functions)
    @pytest.mark.parametrize(
        "model",
        [
            lambda z: z.numpy()[:, :3],
            lambda z: z.detach().numpy()[:, :3],
            np.tanh,
            lambda z: TestWhatIsNoTorchModel.Foreign(),
        ],
    )
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_arrays_of_other_libraries(self, call, model):
        words = r"^\w+: .*must be .*a function of tensors made of torch operations"
        with pytest.raises((TypeError, ValueError), match=words):
            call(model, self.x, self.y)

    @pytest.mark.parametrize("call", calls)
    def test_estimators(self, call):
        forest = RandomForestClassifier(2).fit(self.x, self.y)
        machine = KernelRidge().fit(self.x, self.y)
        with pytest.raises(TypeError, match=r"as_torch.*forests.*no Jacobian"):
            call(forest, self.x, self.y)
        if call is self.calls[-1]:
            return  # what pgd says of regressors is another matter
        with pytest.raises(TypeError, match=r"estimators.as_torch\(model\)"):
            call(machine, self.x, self.y)
        with pytest.raises(TypeError, match=r"as_torch\(model\), once it is fitted"):
            call(RFMRegressor(), self.x, self.y)

    @pytest.mark.parametrize("call", calls)
    def test_nets_of_skorch(self, call):
        class NeuralNet:
            module_ = nn.Linear(4, 3)

            def predict(self, x):
                raise NotImplementedError

        with pytest.raises(TypeError, match=r"net\.module_"):
            call(NeuralNet(), self.x, self.y)


class TestConnection:
    x = torch.randn(3, 4)

    @pytest.mark.parametrize(
        "model",
        [
            lambda z: z.detach() * 2,
            torch.no_grad()(lambda z: z.sin()),
            lambda z: torch.as_tensor(z.tolist()),
        ],
    )
    def test_a_model_without_a_graph_is_refused(self, model):
        for measure in (local_affine, local_geometry, layer_profile):
            for n in (1, 3):
                with pytest.raises(ValueError, match="does not connect with x"):
                    measure(model, self.x[:n])

    def test_weights_with_a_graph_do_not_hide_it(self):
        layer = nn.Linear(4, 2)
        with pytest.raises(ValueError, match="does not connect with x"):
            local_affine(lambda z: layer(z.detach()), self.x)

    def test_constants_and_steps_have_a_zero_jacobian(self):
        constant = nn.Parameter(torch.ones(2))
        for model in (
            lambda z: torch.ones(len(z), 2),
            lambda z: constant.expand(len(z), 2),
            torch.round,
        ):
            assert not local_affine(model, self.x).jacobian.any()
