"""Jacobians and offsets, over models of many kinds and in many modes."""

import pytest
import torch
from torch import nn

from normalign import At, local_affine
from normalign.geometry.linearize import Linearization
from normalign.geometry.local_map import LocalMap
from tests.cases import CASES, Recurrent, TokenModel, cnn, mlp
from tests.oracles import jacobian_by_loop


@pytest.mark.parametrize("case", CASES, ids=repr)
class TestAgainstTheLoop:
    def test_jacobian(self, case):
        model, x = case.model(), case.x()
        found = local_affine(model, x).jacobian
        torch.testing.assert_close(found, jacobian_by_loop(model, x), rtol=0, atol=1e-9)

    def test_output_is_jacobian_times_input_plus_offset(self, case):
        model, x = case.model(), case.x()
        affine = local_affine(model, x)
        rebuilt = torch.einsum("nkd,nd->nk", affine.jacobian, x.flatten(1))
        torch.testing.assert_close(rebuilt + affine.offset, model(x))
        torch.testing.assert_close(affine.output, model(x))
        torch.testing.assert_close(affine.input, x.flatten(1))

    @pytest.mark.parametrize("chunk_size", [1, 4, None])
    def test_chunks_do_not_matter(self, case, chunk_size):
        model, x = case.model(), case.x()
        for a, b in zip(
            local_affine(model, x),
            local_affine(model, x, chunk_size=chunk_size),
            strict=True,
        ):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)

    def test_a_tiny_budget_only_costs_time(self, case):
        model, x = case.model(), case.x()
        tight = local_affine(model, x, memory_budget=1)
        torch.testing.assert_close(tight.jacobian, local_affine(model, x).jacobian)

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_same_without_grad_mode(self, case, mode):
        model, x = case.model(), case.x()
        expected = local_affine(model, x).jacobian.detach()
        with mode():
            found = local_affine(model, x.clone()).jacobian
        assert not found.requires_grad
        torch.testing.assert_close(found.clone(), expected)

    def test_input_is_left_alone(self, case):
        model, x = case.model(), case.x()
        before = x.clone()
        local_affine(model, x)
        assert torch.equal(x, before)
        assert not x.requires_grad

    def test_inner_map_is_that_of_the_rest_of_the_network(self, case):
        model, x = case.model(), case.x()
        seen = []
        handle = model.get_submodule(case.inner).register_forward_pre_hook(
            lambda _, args: seen.append(args[0])
        )
        model(x)
        handle.remove()
        affine = local_affine(model, x, at=case.inner)
        torch.testing.assert_close(affine.input, seen[0].flatten(1))
        torch.testing.assert_close(affine.output, model(x))
        step = 1e-6 * torch.randn_like(seen[0])

        def shifted(_, args):
            return (args[0] + step,)

        handle = model.get_submodule(case.inner).register_forward_pre_hook(shifted)
        moved = model(x) - affine.output
        handle.remove()
        expected = torch.einsum("nkd,nd->nk", affine.jacobian, step.flatten(1))
        # second-order terms of a step of 1e-6 are of order 1e-12
        torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-10)


def test_a_linear_model_has_its_weight_and_bias():
    model, x = nn.Linear(5, 3).double(), torch.randn(7, 5, dtype=torch.float64)
    affine = local_affine(model, x)
    torch.testing.assert_close(affine.jacobian, model.weight.expand(7, 3, 5))
    torch.testing.assert_close(affine.offset, model.bias.expand(7, 3))


def test_gradients_reach_the_parameters():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = torch.randn(2, 3, dtype=torch.float64)
    parameters = dict(model.named_parameters())

    def energy(*values):
        def call(z):
            return torch.func.functional_call(
                model, dict(zip(parameters, values, strict=True)), (z,)
            )

        affine = local_affine(call, x)
        return affine.jacobian.square().sum() + affine.offset.square().sum()

    values = [p.detach().clone().requires_grad_() for p in parameters.values()]
    assert torch.autograd.gradcheck(energy, values)


@pytest.mark.parametrize("cell", [nn.GRU, nn.LSTM, nn.RNN])
def test_recurrent_layers_take_the_loop(cell):
    model, x = Recurrent(cell).double(), torch.randn(3, 5, 6, dtype=torch.float64)
    found = local_affine(model, x).jacobian
    torch.testing.assert_close(found, jacobian_by_loop(model, x), rtol=0, atol=1e-9)


def test_the_encoder_layer_of_torch_has_derivatives_in_evaluation_mode():
    layer = nn.TransformerEncoderLayer(6, 2, 12, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(30, 4)).double().eval()
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    expected = jacobian_by_loop(model, x)
    with torch.no_grad():
        linear = Linearization(LocalMap(model).on(x))
        torch.testing.assert_close(local_affine(model, x).jacobian, expected)
        pushed = linear.push(x.flatten(1).unsqueeze(0))[0]
    torch.testing.assert_close(
        pushed, torch.einsum("nkd,nd->nk", expected, x.flatten(1))
    )


def test_a_layer_that_works_in_place_does_not_touch_the_input():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    before = x.clone()
    local_affine(model, x)
    assert torch.equal(x, before)


class OldStyleExp(torch.autograd.Function):
    """An autograd function that torch.func does not take."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].exp()


def test_old_autograd_functions_fall_back_to_plain_autograd():
    x = torch.randn(3, 4, dtype=torch.float64)
    linear = Linearization(LocalMap(OldStyleExp.apply).on(x))
    expected = torch.diag_embed(x.exp())
    torch.testing.assert_close(local_affine(OldStyleExp.apply, x).jacobian, expected)
    pushed = linear.push(x.unsqueeze(0))[0]
    torch.testing.assert_close(pushed, x.exp() * x)


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_result_has_the_dtype_of_the_model(dtype):
    model, x = mlp().to(dtype), torch.randn(3, 10).to(dtype)
    affine = local_affine(model, x)
    assert {value.dtype for value in affine} == {dtype}


def test_channels_last_input():
    model, x = cnn().double().eval(), torch.randn(3, 2, 8, 8, dtype=torch.float64)
    turned = x.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(
        local_affine(model, turned).jacobian, local_affine(model, x).jacobian
    )


def test_empty_batch():
    affine = local_affine(mlp(), torch.zeros(0, 10))
    assert affine.jacobian.shape == (0, 4, 10)
    assert affine.offset.shape == (0, 4)


def test_outputs_of_one_number_and_of_many_dimensions():
    x = torch.randn(3, 4)
    assert local_affine(lambda z: z.sum(1), x).jacobian.shape == (3, 1, 4)
    assert local_affine(lambda z: z[:, :, None] * z[:, None], x).jacobian.shape == (
        3,
        16,
        4,
    )


def test_output_picks_the_tensor():
    model = lambda z: {"logits": z[:, :2], "other": z}  # noqa: E731
    x = torch.randn(3, 4)
    with pytest.raises(TypeError, match="one tensor, got a dict"):
        local_affine(model, x)
    picked = local_affine(model, x, output=lambda out: out["logits"])
    assert picked.jacobian.shape == (3, 2, 4)


class TestPlacesInsideAModel:
    def setup_method(self):
        torch.manual_seed(0)
        self.model = TokenModel().double()
        self.tokens = torch.randint(0, 7, (3, 4))

    def rest(self, hidden):
        model = self.model
        return model.attention(model.twice(torch.tanh(model.twice(hidden))))

    def test_tokens_are_refused_with_the_name_of_their_embedding(self):
        with pytest.raises(TypeError, match="at='embed'"):
            local_affine(self.model, self.tokens)

    def test_an_embedding_stands_for_its_output(self):
        embedded = self.model.embed(self.tokens).detach()
        found = local_affine(self.model, self.tokens, at="embed")
        torch.testing.assert_close(
            found.jacobian, jacobian_by_loop(self.rest, embedded)
        )

    @pytest.mark.parametrize("token", [0, 2, -1])
    def test_one_token(self, token):
        embedded = self.model.embed(self.tokens).detach()
        whole = jacobian_by_loop(self.rest, embedded).unflatten(2, (4, 8))
        found = local_affine(self.model, self.tokens, at=At("embed", token=token))
        torch.testing.assert_close(found.jacobian, whole[:, :, token])
        torch.testing.assert_close(found.input, embedded[:, token])

    def test_a_layer_that_runs_twice_needs_its_call(self):
        with pytest.raises(ValueError, match=r"ran 2 times.*call=0"):
            local_affine(self.model, self.tokens, at="twice")
        hidden = torch.tanh(self.model.twice(self.model.embed(self.tokens))).detach()
        found = local_affine(self.model, self.tokens, at=At("twice", call=1))
        expected = jacobian_by_loop(
            lambda h: self.model.attention(self.model.twice(h)), hidden
        )
        torch.testing.assert_close(found.jacobian, expected)

    def test_unknown_names_and_calls(self):
        with pytest.raises(ValueError, match=r"name of a submodule.*attention"):
            local_affine(self.model, self.tokens, at="atention")
        with pytest.raises(ValueError, match=r"at.call must be between -2 and 1"):
            local_affine(self.model, self.tokens, at=At("twice", call=2))
        with pytest.raises(ValueError, match=r"at.token must be a position"):
            local_affine(self.model, self.tokens, at=At("embed", token=4))
        with pytest.raises(TypeError, match=r"nn.Module when at="):
            local_affine(lambda t: self.model(t), self.tokens, at="embed")

    def test_a_layer_that_does_not_run(self):
        self.model.spare = nn.Linear(2, 2)
        with pytest.raises(ValueError, match="'spare', which did not run"):
            local_affine(self.model, self.tokens, at="spare")

    def test_a_layer_that_takes_two_tensors(self):
        class Sum(nn.Module):
            def forward(self, a, b):
                return a + 2 * b

        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.sum = Sum()

            def forward(self, x):
                return self.sum(x, b=x.square())

        x = torch.randn(2, 3)
        with pytest.raises(ValueError, match=r"takes 2.*argument=0"):
            local_affine(Two(), x, at="sum")
        first = local_affine(Two(), x, at=At("sum", argument=0))
        second = local_affine(Two(), x, at=At("sum", argument="b"))
        torch.testing.assert_close(first.jacobian, torch.eye(3).expand(2, 3, 3))
        torch.testing.assert_close(second.jacobian, 2 * torch.eye(3).expand(2, 3, 3))
        torch.testing.assert_close(second.input, x.square())


class TestWhatIsRefused:
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
            linear = Linearization(LocalMap(model).on(x))
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


@pytest.mark.cuda
def test_a_model_on_two_devices():
    class Split(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 3).cuda()

        def forward(self, x):
            return self.second(torch.relu(self.first(x)).cuda())

    model, x = Split().double(), torch.randn(4, 5, dtype=torch.float64)
    affine = local_affine(model, x)
    assert affine.jacobian.device == x.device
    expected = jacobian_by_loop(lambda z: model(z).cpu(), x)
    torch.testing.assert_close(affine.jacobian, expected)
