"""Which map is measured: a place inside a model, one of its outputs."""

import pytest
import torch
from torch import nn

from normalign import At, local_affine, local_geometry
from tests.cases import TokenModel
from tests.oracles import jacobian_by_loop


def test_a_layer_that_works_in_place_does_not_touch_the_input():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    before = x.clone()
    local_affine(model, x)
    assert torch.equal(x, before)


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


class TestWhichTensorIsTheInput:
    """Not the mask that happens to have the size of the batch."""

    class Masked(nn.Module):
        def __init__(self, flatten=False):
            super().__init__()
            self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)
            self.block, self.flatten = self.Block(), flatten

        class Block(nn.Module):
            def forward(self, x, mask, scale):
                return torch.tanh(mask @ x) * scale if x.ndim == 3 else torch.tanh(x)

        def forward(self, tokens):
            t = tokens.shape[1]
            x, mask = self.embed(tokens), torch.ones(t, t).tril().to(self.head.weight)
            if self.flatten:
                x = self.block(x.flatten(0, 1), mask, mask.sum()).unflatten(0, (-1, t))
            else:
                x = self.block(x, mask, mask.sum())
            return self.head(x[:, -1])

    @pytest.mark.parametrize("n", [1, 3, 5])
    def test_a_mask_as_long_as_the_batch(self, n):
        model = self.Masked().double()
        found = local_affine(model, torch.randint(0, 7, (n, 3)), at="block")
        assert found.jacobian.shape == (n, 3, 3 * 4)

    def test_tokens_flattened_into_the_batch_are_refused(self):
        with pytest.raises(ValueError, match=r"with the batch first, got 'block'"):
            local_affine(self.Masked(True), torch.randint(0, 7, (2, 3)), at="block")

    @pytest.mark.parametrize("n", [2, 5])
    def test_tokens_before_the_batch_are_refused_even_if_as_many(self, n):
        class TokensFirst(nn.Module):
            def __init__(self):
                super().__init__()
                self.mix, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

            def forward(self, x):
                return self.head(torch.tanh(self.mix(x.transpose(0, 1)))[-1])

        with pytest.raises(ValueError, match=r"with the batch first, got 'mix'"):
            local_affine(TokensFirst(), torch.randn(n, 5, 4), at="mix")


def test_an_inference_tensor_is_copied_where_autograd_needs_it():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    with torch.inference_mode():
        x = torch.randn(2, 3)
    found = local_affine(model, x)
    assert found.jacobian.requires_grad


class TestLayersThatWorkInPlace:
    """The input of a submodule is what it was when the submodule was called."""

    def test_after_the_submodule(self):
        class Embedded(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(10, 6)
                self.place = nn.Parameter(torch.randn(4, 6))
                self.head = nn.Linear(24, 5)

            def forward(self, tokens):
                hidden = self.embed(tokens)
                hidden += self.place
                return self.head(hidden.tanh().flatten(1))

        model, tokens = Embedded().double(), torch.randint(0, 10, (3, 4))
        found = local_affine(model, tokens, at="embed")
        torch.testing.assert_close(found.output, model(tokens))
        torch.testing.assert_close(found.input, model.embed(tokens).flatten(1))

    def test_inside_the_submodule(self):
        inner = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3))
        model, x = nn.Sequential(nn.Linear(6, 6), inner).double(), torch.randn(4, 6)
        found = local_affine(model, x.double(), at="1")
        torch.testing.assert_close(found.input, model[0](x.double()))


def test_outputs_must_be_real_and_keep_the_batch():
    x = torch.randn(3, 4)
    with pytest.raises(TypeError, match="of real floating point numbers"):
        local_affine(torch.fft.fft, x)
    with pytest.raises(TypeError, match="of real floating point numbers"):
        local_affine(lambda z: z.argmax(1), x)
    with pytest.raises(ValueError, match=r"one row for each sample.*no squeeze\(\)"):
        local_affine(lambda z: z.sum(1, keepdim=True).squeeze(), x)


def test_a_submodule_without_a_floating_tensor_is_refused():
    class Sum(nn.Module):
        def forward(self, parts):
            return parts[0] + parts[1]

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.sum = Sum()

        def forward(self, x):
            return self.sum([x, x])

    with pytest.raises(ValueError, match=r"whole numbers alone, got 'sum'"):
        local_affine(Pair(), torch.randn(2, 3), at="sum")


@pytest.mark.parametrize("method", ["exact", "matrix_free"])
@pytest.mark.parametrize("k", [5, 20])
def test_inputs_whose_entries_share_memory(method, k):
    x = torch.rand(4, 1, 3, 2, dtype=torch.float64).expand(-1, 3, -1, -1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(18, k), nn.Tanh()).double()
    found = local_geometry(model, x, method=method)
    expected = local_geometry(model, x.contiguous(), method=method)
    torch.testing.assert_close(found.measures(), expected.measures())
    affine = local_affine(model, x)
    torch.testing.assert_close(affine.jacobian, jacobian_by_loop(model, x))
