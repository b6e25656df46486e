import gc
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.utils.checkpoint import checkpoint

from normalign._hooks import location_in, middle_of
from normalign.geometry import At
from normalign.nn.transformer import Transformer
from normalign.regularizers import PenaltyForm, penalised
from normalign.regularizers._call import Call
from normalign.regularizers._formulas import given_noise
from normalign.regularizers._pass import EagerPass, FunctionalPass
from tests.cases import TokenModel
from tests.regularizers.penalties import (
    CASES,
    FORMS,
    generator,
    jacobian_of,
    network,
    normal,
)

TOKENS = torch.tensor([[1, 2, 0], [3, 3, 6], [5, 0, 4], [2, 6, 1]])


def label(form: PenaltyForm) -> str:
    shown = [form.estimator, form.power, form.n_probes, form.probe]
    return "-".join(map(str, [*shown, *["released"] * form.released]))


def hidden_shape(model: nn.Module, x: Tensor, at) -> torch.Size:
    seen = []
    with location_in(model, at, "test").replacing(lambda h: seen.append(h) or h):
        model(x)
    return seen[0].shape


def noise_for(form: PenaltyForm, model: nn.Module, x: Tensor, seed: int = 3):
    at = form.at
    if form.estimator == "nuclear":
        at = middle_of(model, "test")
    hidden = None if at is None else hidden_shape(model, x, at)
    shape = form.noise_shape(x, model(x).shape, hidden_shape=hidden)
    return normal(*shape, seed=seed) if shape else None


def gradients(model: nn.Module, results) -> list[Tensor]:
    output, value = results
    total = output.square().sum() + value.mean()
    wanted = list(model.parameters())
    found = torch.autograd.grad(total, wanted, allow_unused=True)
    pairs = zip(found, wanted, strict=True)
    return [torch.zeros_like(w) if g is None else g for g, w in pairs]


def both(model: nn.Module, x: Tensor, form: PenaltyForm):
    """Results and gradients by plain autograd and by torch.func, with equal noise."""
    noise, state = noise_for(form, model, x), dict(model.named_parameters())
    eager = Call(model, form, "test")(model, x, given_noise(noise))

    def function(z: Tensor) -> Tensor:
        return functional_call(model, state, (z,))

    pure = penalised(function, x, noise, form, inside=model)
    return (*eager, *gradients(model, eager)), (*pure, *gradients(model, pure))


@pytest.mark.parametrize("form", FORMS, ids=label)
@pytest.mark.parametrize("case", CASES)
def test_autograd_and_torch_func_agree(case, form):
    model, shape, _ = CASES[case]
    for right, found in zip(*both(model, normal(4, *shape), form), strict=True):
        # float64: the same products in another order
        torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "at", ["embed", "attention", At("attention", token=-1), At("twice", call=1)]
)
@pytest.mark.parametrize("estimator", ["output", "input", "orthogonal", "exact"])
def test_they_agree_from_a_place_inside_a_model_of_tokens(estimator, at):
    torch.manual_seed(0)
    model = TokenModel().double()
    form = PenaltyForm(estimator=estimator, at=at)
    for right, found in zip(*both(model, TOKENS, form), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)


def test_the_map_from_the_blocks_of_a_transformer_is_that_of_its_tail():
    model = Transformer(7, 5, width=4, n_heads=2, hidden=6, generator=generator())
    model.double()
    form = PenaltyForm(estimator="exact", offset=False, at="blocks")
    _, value = Call(model, form, "test")(model, TOKENS, given_noise(None))
    hidden = (model.embed(TOKENS) + model.pos).detach()
    jacobian = jacobian_of(lambda h: model.unembed(model.blocks(h)[:, -1]), hidden)
    torch.testing.assert_close(value.detach(), jacobian.square().sum((1, 2)))


@pytest.mark.parametrize("form", FORMS, ids=label)
def test_two_stacked_networks_are_a_loop_over_both(form):
    networks = [network("tanh", 5, 7, 6, 3) for _ in range(2)]
    with torch.no_grad():
        for parameter in networks[1].parameters():
            parameter.mul_(-1.3)
    base, x = networks[0], normal(4, 5, seed=2)
    stacked = {k: v.detach() for k, v in stack_module_state(networks)[0].items()}
    noise = [noise_for(form, model, x, seed) for seed, model in enumerate(networks)]
    together = None if noise[0] is None else torch.stack(noise)

    def total(parameters, noise):
        def function(z: Tensor) -> Tensor:
            return functional_call(base, parameters, (z,))

        output, value = penalised(function, x, noise, form, inside=base)
        return output.square().sum() + value.mean()

    dims = (0, None if together is None else 0)
    found = vmap(grad(total), in_dims=dims)(stacked, together)
    for i in range(2):
        alone = grad(total)({k: v[i] for k, v in stacked.items()}, noise[i])
        for name, right in alone.items():
            torch.testing.assert_close(found[name][i], right, rtol=1e-10, atol=1e-10)


def test_noise_has_a_probe_for_each_sample():
    x, output = torch.ones(4, 2, 3), (4, 5)
    shape = {
        name: PenaltyForm(estimator=name, n_probes=2).noise_shape(
            x, output, hidden_shape=(4, 7)
        )
        for name in ("output", "input", "orthogonal", "noise", "nuclear", "exact")
    }
    assert shape["output"] == (2, 4, 5)
    assert shape["input"] == shape["orthogonal"] == shape["noise"] == (2, 4, 2, 3)
    assert shape["nuclear"] == (2, 4, 12)
    assert shape["exact"] == ()
    inside = PenaltyForm(estimator="input", at="1")
    assert inside.noise_shape(x, output, hidden_shape=(4, 7)) == (1, 4, 7)
    with pytest.raises(ValueError, match=r"^noise_shape: hidden_shape must be"):
        PenaltyForm(estimator="nuclear").noise_shape(x, output)


def test_push_and_pull_are_products_with_the_jacobian():
    model, x = CASES["tanh"][0], normal(4, 5)
    jacobian, u, v = jacobian_of(model, x), normal(4, 5, seed=1), normal(4, 3, seed=2)
    for local in (EagerPass(model, x, callee="test"), FunctionalPass(model, x)):
        pushed = torch.einsum("nkd,nd->nk", jacobian, u)
        torch.testing.assert_close(local.push(u).detach(), pushed)
        pulled = torch.einsum("nkd,nk->nd", jacobian, v)
        torch.testing.assert_close(local.pull(v).detach(), pulled)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 40), nn.Linear(40, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(torch.tanh(self.first(x))))


@pytest.mark.parametrize("functional", [False, True])
def test_every_pass_keeps_the_units_that_the_first_one_kept(functional):
    model, x = Dropping().double(), normal(4, 5)
    local = (
        FunctionalPass(model, x) if functional else EagerPass(model, x, callee="test")
    )
    u, v = normal(4, 5, seed=1), normal(4, 3, seed=2)
    # <J u, v> = <u, J^T v> holds for one map, not for two.
    left = (local.push(u) * v).sum()
    torch.testing.assert_close(left, (u * local.pull(v)).sum())
    still = local.output_after(torch.zeros_like(x))
    torch.testing.assert_close(still, local.output)


def test_later_passes_leave_the_random_state_of_the_first():
    model, x = Dropping(), torch.ones(4, 5)
    torch.manual_seed(0)
    model(x)
    expected = torch.get_rng_state()
    torch.manual_seed(0)
    local = EagerPass(model, x, callee="test")
    local.push(x), local.push(x), local.pull(torch.ones(4, 3))
    assert torch.equal(torch.get_rng_state(), expected)


class OldStyle(torch.autograd.Function):
    """A cube whose rules torch.func does not take, nor forward mode."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient


class Checkpointed(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class Cubic(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return OldStyle.apply(x)


@pytest.mark.parametrize("kind", ["older function", "checkpoint"])
def test_what_forward_mode_cannot_do_is_pushed_through(kind):
    torch.manual_seed(0)
    layers = nn.Linear(5, 6), Cubic() if kind == "older function" else nn.Tanh()
    plain = nn.Sequential(*layers, nn.Linear(6, 3)).double()
    model = plain if kind == "older function" else Checkpointed(*plain)
    x, u = normal(4, 5), normal(4, 5, seed=1)
    reference = CubicReference() if kind == "older function" else nn.Tanh()
    right = nn.Sequential(plain[0], reference, plain[2])
    pushed = EagerPass(model, x, callee="test").push(u)
    torch.testing.assert_close(pushed, EagerPass(right, x, callee="test").push(u))
    form = PenaltyForm(estimator="input")
    found, expected = (
        Call(m, form, "test")(m, x, given_noise(u[None])) for m in (model, right)
    )
    for a, b in zip(gradients(plain, found), gradients(plain, expected), strict=True):
        torch.testing.assert_close(a, b)


def test_a_frozen_model_is_noticed_also_when_pulling_twice():
    model, x = network("tanh", 5, 7, 3), normal(4, 5)
    model.requires_grad_(False)
    call = Call(model, PenaltyForm(estimator="input", offset=False), "test")
    with pytest.raises(ValueError, match="depends on none"):
        call(model, x, torch.randn_like)


class CubicReference(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x**3


def test_a_softmax_can_be_pushed_through_and_trained():
    model, x = nn.Sequential(nn.Linear(5, 4), nn.Softmax(1)).double(), normal(4, 5)
    form = PenaltyForm(estimator="input")
    _, value = Call(model, form, "test")(model, x, torch.randn_like)
    value.sum().backward()
    assert model[0].weight.grad.any()


@pytest.mark.parametrize("functional", [False, True])
def test_a_step_function_is_pushed_to_zero(functional):
    x = normal(4, 5)
    local = (
        FunctionalPass(torch.sign, x)
        if functional
        else EagerPass(torch.sign, x, callee="test")
    )
    assert not local.push(x).any()


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.unused = nn.Bilinear(4, 4, 2), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x, 2 * x)


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ("nowhere", "Some of its names: mix, unused"),
        ("unused", "did not run"),
        ("mix", r"At\('mix', argument=0\)"),
        (At("mix", argument=2), "at.argument must be one of"),
        (At("mix", call=1, argument=0), "ran 1 times"),
        (At("mix", call=-1), "at.call must be at least 0"),
        (At("mix", argument=0, token=0), "at.token must be a position"),
    ],
)
def test_a_place_that_is_none_is_explained(at, words):
    model, x = TwoInputs(), torch.ones(3, 4)
    with pytest.raises(ValueError, match=words):
        Call(model, PenaltyForm(at=at), "test")(model, x, torch.randn_like)


def test_a_layer_that_runs_twice_needs_the_call():
    model = TokenModel()
    with pytest.raises(ValueError, match=r"ran 2 times.*call=0"):
        Call(model, PenaltyForm(at="twice"), "test")(model, TOKENS, torch.randn_like)


def test_hooks_are_gone_after_a_call_and_after_an_error():
    model = TokenModel()
    call = Call(model, PenaltyForm(at="embed"), "test")
    call(model, TOKENS, torch.randn_like)
    with pytest.raises((IndexError, RuntimeError)):
        call(model, TOKENS + 100, torch.randn_like)
    assert not model.embed._forward_hooks
    assert not model.embed._forward_pre_hooks


def test_the_model_is_not_kept_alive():
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    call, gone = Call(model, PenaltyForm(), "test"), weakref.ref(model)
    call(model, torch.ones(2, 5), torch.randn_like)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"estimator": "both"}, ValueError),
        ({"power": 3}, ValueError),
        ({"power": True}, ValueError),
        ({"n_probes": 0}, ValueError),
        ({"n_probes": "1"}, TypeError),
        ({"offset": 1}, TypeError),
        ({"released": None}, TypeError),
        ({"std": 0.0}, ValueError),
        ({"std": "0.1"}, TypeError),
        ({"estimator": "nuclear", "power": "ratio"}, ValueError),
    ],
)
def test_a_form_names_what_is_wrong(settings, error):
    wrong = list(settings)[-1]
    with pytest.raises(error, match=f"^PenaltyForm: {wrong} must be"):
        PenaltyForm(**settings)
