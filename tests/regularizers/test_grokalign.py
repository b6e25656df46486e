import copy
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import jvp, vjp
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from normalign.nn import mlp
from normalign.nn.transformer import Transformer
from normalign.regularizers import GrokAlign, penalised
from normalign.training import train
from tests.cases import Attention, TokenModel
from tests.regularizers.penalties import (
    CASES,
    generator,
    local_map,
    network,
    normal,
)

TOKENS = torch.tensor([[1, 2, 0], [3, 3, 6], [5, 0, 4], [2, 6, 1]])
ESTIMATORS = ["output", "input", "orthogonal", "nuclear", "exact", "noise"]


def gradient(model: nn.Module, value: Tensor) -> list[Tensor]:
    wanted = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(value, wanted, allow_unused=True, retain_graph=True)
    pairs = zip(found, wanted, strict=True)
    return [torch.zeros_like(w) if g is None else g for g, w in pairs]


def exact_parts(model, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """|J|_F^2, |b|^2 and the logarithm of the ratio, from the whole Jacobian."""
    jacobian, offset = local_map(model, x)
    squared, point = jacobian.square().sum((1, 2)), x.flatten(1)
    along = torch.einsum("nkd,nd->nk", jacobian, point)
    ratio = squared.log() + point.square().sum(1).log() - along.square().sum(1).log()
    return squared, offset.square().sum(1), ratio


@pytest.mark.parametrize("case", CASES)
def test_the_exact_penalty_is_its_formula(case):
    model, shape, _ = CASES[case]
    x = normal(4, *shape)
    squared, offset, ratio = exact_parts(model, x)
    for settings, expected in [
        ({"power": 2}, squared + offset),
        ({"power": 2, "offset": False}, squared),
        ({"power": 1}, squared.sqrt() + offset),
        ({"power": 1, "offset": False}, squared.sqrt()),
        ({"power": "ratio"}, ratio),
    ]:
        penalty = GrokAlign(0.3, estimator="exact", **settings)
        output, value = penalty(model, x)
        torch.testing.assert_close(output, model(x))
        torch.testing.assert_close(value.detach(), 0.3 * expected.mean())


@pytest.mark.parametrize("estimator", ["input", "output", "orthogonal"])
def test_the_other_parts_are_exact_whatever_the_probes(estimator):
    model, x = CASES["tanh"][0], normal(4, 5)
    _, offset, ratio = exact_parts(model, x)
    settings = {"estimator": estimator, "generator": generator()}
    if estimator != "output":  # there the offset is probed too
        with_it = GrokAlign(1.0, **settings)(model, x)[1]
        settings["generator"] = generator()
        without = GrokAlign(1.0, offset=False, **settings)(model, x)[1]
        torch.testing.assert_close((with_it - without).detach(), offset.mean())
    many = GrokAlign(1.0, power="ratio", n_probes=300, **settings)(model, x)[1]
    # 1200 probes with a relative standard deviation below sqrt(2): 4 percent
    assert float(many.detach()) == pytest.approx(float(ratio.mean()), abs=0.2)


def released(model, x: Tensor, probe: Tensor, weight: float) -> Tensor:
    """The released loss term, written down from its description."""
    unit = probe / probe.norm(dim=1, keepdim=True)
    output, pullback = vjp(model, x)
    (row,) = pullback(unit)
    squares = output.shape[1] * (row.flatten(1) ** 2).sum(1)
    jacobian_norm = torch.sqrt(torch.maximum(squares, torch.tensor(1e-8)))
    _, along = jvp(model, (x,), (x,))
    offset = output - along
    return weight * (jacobian_norm.mean() + (offset**2).sum(1).mean())


@pytest.mark.parametrize("case", ["relu", "tanh", "wide", "images", "tokens"])
def test_the_released_preset_is_the_released_loss_term_by_term(case):
    model, shape, _ = CASES[case]
    x = normal(6, *shape, seed=1)
    penalty = GrokAlign.released(0.1, generator=generator(5))
    output, value = penalty(model, x)
    probe = torch.randn(output.shape, generator=generator(5), dtype=torch.float64)
    expected = released(model, x, probe, 0.1)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    right, found = gradient(model, expected), gradient(model, value)
    for a, b in zip(right, found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_the_released_norm_has_a_floor():
    model = nn.Linear(3, 2, bias=False)
    nn.init.zeros_(model.weight)
    _, value = GrokAlign.released(1.0)(model, torch.ones(4, 3))
    torch.testing.assert_close(value.detach(), torch.tensor(1e-4))  # sqrt(1e-8)
    assert torch.isfinite(gradient(model, value)[0]).all()


def test_a_quadratic_network_without_biases_has_minus_its_output_as_offset():
    model = mlp([4, 6, 3], activation="quadratic", bias=False, dtype=torch.float64)
    x = normal(5, 4)
    parts = [
        GrokAlign(1.0, estimator="exact", offset=offset)(model, x)[1]
        for offset in (True, False)
    ]
    expected = model(x).square().sum(1).mean()  # J x = 2 f(x)
    torch.testing.assert_close(parts[0] - parts[1], expected)


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 5))
def test_the_ratio_is_never_negative(seed, k, d):
    model = nn.Linear(d, k, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(normal(k, d, seed=seed))
    x = normal(3, d, seed=seed + 1)
    for estimator in ("exact", "orthogonal"):
        _, value = GrokAlign(1.0, estimator=estimator, power="ratio")(model, x)
        assert float(value.detach()) >= -1e-12  # rounding of two logarithms


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 5))
def test_the_ratio_vanishes_for_jacobians_along_their_points(seed, k, d):
    x = normal(1, d, seed=seed)
    model = nn.Linear(d, k, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(normal(k, 1, seed=seed + 1) @ x)
    for estimator in ("exact", "orthogonal"):
        _, value = GrokAlign(1.0, estimator=estimator, power="ratio")(model, x)
        assert float(value.detach()) == pytest.approx(0, abs=1e-12)


@given(st.floats(0.1, 1e3), st.sampled_from(["output", "input", "exact", "noise"]))
def test_each_power_scales_as_it_says(scale, estimator):
    model, x = network("tanh", 3, 5, 2), normal(4, 3)

    def value(factor: float, power, **settings) -> float:
        penalty = GrokAlign(
            1.0, estimator=estimator, power=power, generator=generator(), **settings
        )
        return float(penalty(lambda z: factor * model(z), x)[1].detach())

    # The norms of this model lie far above the floor of 1e-4, also times 0.1.
    square, root = value(scale, 2), value(scale, 1, offset=False)
    assert square == pytest.approx(scale**2 * value(1.0, 2), rel=1e-6)
    assert root == pytest.approx(scale * value(1.0, 1, offset=False), rel=1e-6)
    assert value(scale, "ratio") == pytest.approx(value(1.0, "ratio"), abs=1e-6)


@pytest.mark.parametrize("power", [1, 2, "ratio"])
@pytest.mark.parametrize("estimator", ESTIMATORS[:3])
def test_points_with_nothing_to_align_give_finite_gradients(estimator, power):
    model = mlp([3, 4, 2], generator=generator())
    with torch.no_grad():
        model[0].bias.fill_(-10.0)  # every unit is off: J = 0
    x = torch.stack([torch.zeros(3), torch.ones(3)])
    _, value = GrokAlign(1.0, estimator=estimator, power=power)(model, x)
    assert torch.isfinite(value)
    assert all(torch.isfinite(g).all() for g in gradient(model, value))


def test_the_mean_over_probes_of_the_square_is_unbiased():
    model, x = CASES["tanh"][0], normal(4, 5)
    squared, offset, _ = exact_parts(model, x)
    _, value = GrokAlign(1.0, n_probes=400, generator=generator())(model, x)
    # 1600 probes whose relative standard deviation is below sqrt(2): 3.6 percent;
    # five of those, a probability below 1e-6 if they were normal
    expected = float((squared + offset).mean())
    assert float(value.detach()) == pytest.approx(expected, rel=0.18)


def test_lazy_penalties_have_the_same_mean_as_constant_ones():
    model, x = CASES["tanh"][0], normal(4, 5)
    often = GrokAlign(0.1, estimator="exact")
    seldom = GrokAlign(0.1, estimator="exact", every=3)
    values = [float(seldom(model, x)[1].detach()) for _ in range(6)]
    assert values[1] == values[2] == values[4] == values[5] == 0
    assert sum(values) == pytest.approx(6 * float(often(model, x)[1].detach()))


def test_between_penalised_calls_the_model_runs_once_and_plainly():
    runs = []

    class Counting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            runs.append(x.requires_grad)
            return super().forward(x)

    penalty, model = GrokAlign(every=2), Counting(3, 2)
    for _ in range(4):
        output, value = penalty(model, torch.ones(4, 3))
        (output.sum() + value).backward()
    assert runs == [True, False, True, False]


def test_a_schedule_is_a_factor_by_step():
    model, x = CASES["tanh"][0], normal(4, 5)
    steps = []

    def warm_up(step: int) -> float:
        steps.append(step)
        return min(step / 2, 1.0)

    penalty = GrokAlign(0.1, estimator="exact", schedule=warm_up)
    values = [float(penalty(model, x)[1].detach()) for _ in range(4)]
    assert steps == [0, 1, 2, 3]
    assert values[0] == 0
    assert values[1] == pytest.approx(values[2] / 2)
    assert values[2] == values[3]


@pytest.mark.parametrize("factor", [-1.0, math.nan, math.inf])
def test_a_schedule_must_give_a_factor(factor):
    penalty = GrokAlign(schedule=lambda step: factor)
    with pytest.raises(ValueError, match=r"^GrokAlign: schedule\(0\) must be"):
        penalty(mlp([3, 2]), torch.ones(4, 3))
    assert penalty.step == 0


def test_a_run_goes_on_from_its_state():
    model, x = CASES["tanh"][0], normal(4, 5)

    def build() -> GrokAlign:
        return GrokAlign(every=2, generator=generator(3))

    whole, first, second = build(), build(), build()
    values = [whole(model, x)[1].detach() for _ in range(6)]
    for _ in range(3):
        first(model, x)
    second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
    assert second.step == 3
    for expected in values[3:]:
        assert torch.equal(second(model, x)[1].detach(), expected)


@pytest.mark.parametrize("state", [{}, {"step": 1}, GrokAlign().state_dict()])
def test_a_foreign_state_is_refused(state):
    with pytest.raises(ValueError, match=r"^GrokAlign.load_state_dict: state must be"):
        GrokAlign(generator=generator()).load_state_dict(state)


def test_a_copy_is_a_penalty_of_its_own():
    penalty, model = GrokAlign(0.2, power=1), mlp([3, 2])
    penalty(model, torch.ones(4, 3))
    twin = copy.deepcopy(penalty)
    penalty(model, torch.ones(4, 3))
    assert (penalty.step, twin.step) == (2, 1)
    assert twin(model, torch.ones(4, 3))[1].requires_grad


def test_its_repr_builds_it():
    shown = repr(GrokAlign(0.2, power=1, n_probes=3, every=2, at="blocks"))
    assert repr(eval(shown)) == shown
    assert shown == (
        "GrokAlign(weight=0.2, estimator='output', power=1, n_probes=3, at='blocks', "
        "every=2)"
    )


def test_no_weight_is_a_plain_pass():
    model, x = mlp([3, 2]), torch.ones(4, 3)
    with torch.no_grad():  # which a penalised call refuses
        output, value = GrokAlign(0)(model, x)
    torch.testing.assert_close(output, model(x))
    assert float(value) == 0


def test_an_empty_batch_has_no_penalty():
    output, value = GrokAlign()(mlp([3, 2]), torch.empty(0, 3))
    assert output.shape == (0, 2)
    assert float(value.detach()) == 0


def test_the_global_generator_is_left_alone_when_there_is_one():
    state, model = torch.get_rng_state(), CASES["tanh"][0]
    for estimator in ESTIMATORS:
        for power in (2, 1):
            penalty = GrokAlign(estimator=estimator, power=power, generator=generator())
            penalty(model, normal(4, 5))
    assert torch.equal(torch.get_rng_state(), state)


def normalised() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)
    ).double()


def test_batch_normalisation_counts_as_the_map_at_fixed_statistics():
    model, x = normalised(), normal(16, 4)
    frozen, seen = copy.deepcopy(model), model[0](x)
    penalty = GrokAlign(1.0, n_probes=300, generator=generator())
    output, value = penalty(model, x)
    with torch.no_grad():  # the batch's own statistics, as if they were known before
        frozen[1].running_mean.copy_(seen.mean(0))
        frozen[1].running_var.copy_(seen.var(0, correction=0))
    frozen.eval()
    torch.testing.assert_close(output, frozen(x))
    exact = GrokAlign(1.0, estimator="exact")(frozen, x)[1]
    # 4800 probes with a relative standard deviation below sqrt(2): 2 percent
    assert float(value.detach()) == pytest.approx(float(exact.detach()), rel=0.1)
    assert int(model[1].num_batches_tracked) == 1
    assert all(torch.isfinite(g).all() for g in gradient(model, value))


def test_finite_steps_refuse_batch_statistics_and_say_what_to_do():
    with pytest.raises(ValueError, match=r"^GrokAlign: model must be") as caught:
        GrokAlign(estimator="noise")(normalised(), normal(4, 4))
    assert "output probes" in str(caught.value)
    GrokAlign(estimator="noise")(normalised().eval(), normal(4, 4))


def test_statistics_over_several_processes_are_refused():
    model = nn.Sequential(nn.Linear(4, 3), nn.SyncBatchNorm(3))
    with pytest.raises(ValueError, match=r"^GrokAlign: model must be .*SyncBatchNorm"):
        GrokAlign()(model, torch.ones(3, 4))


def test_dropout_penalises_the_map_that_was_drawn():
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(4, 30), nn.Dropout(0.5), nn.Tanh(), nn.Linear(30, 1)
    )
    x = normal(5, 4)
    model.double()
    # One output: the sphere probe is exact, so both forms see the same number if,
    # and only if, they see the same units.
    torch.manual_seed(2)
    _, released_value = GrokAlign.released(1.0, generator=generator())(model, x)
    torch.manual_seed(2)
    output, value = GrokAlign(1.0, power=1, generator=generator())(model, x)
    torch.testing.assert_close(value, released_value)
    torch.manual_seed(2)
    torch.testing.assert_close(output, model(x))


@pytest.mark.parametrize("estimator", ["output", "input", "exact"])
@pytest.mark.parametrize("kind", ["fused", "module", "encoder"])
def test_attention_can_be_penalised(kind, estimator):
    torch.manual_seed(0)
    if kind == "fused":
        model = Attention()
    elif kind == "module":
        model = SelfAttention()
    else:
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        model = nn.Sequential(layer, nn.Flatten(), nn.Linear(32, 3))
    x = torch.randn(3, 4, 8, generator=generator())
    _, value = GrokAlign(1.0, estimator=estimator)(model, x)
    value.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.isfinite(g).all() for g in grads)
    assert sum(bool(g.any()) for g in grads) >= 4


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(x, x, x)[0].mean(1))


# Not "noise": a difference of close numbers with 8 bits is mostly rounding.
@pytest.mark.parametrize("estimator", ESTIMATORS[:-1])
def test_autocast_keeps_norms_in_single_precision(estimator):
    model, x = mlp([8, 16, 4], activation="tanh", generator=generator()), normal(6, 8)
    x, settings = x.float(), {"estimator": estimator}
    _, right = GrokAlign(1.0, generator=generator(), **settings)(model, x)
    expected = gradient(model, right)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, value = GrokAlign(1.0, generator=generator(), **settings)(model, x)
    assert output.dtype == torch.bfloat16
    assert value.dtype == torch.float32
    # bfloat16 has 8 bits: 0.4 percent a rounding, a few of them in a row
    torch.testing.assert_close(value, right, rtol=0.05, atol=0.0)
    for a, b in zip(gradient(model, value), expected, strict=True):
        assert a.dtype == torch.float32
        assert float((a - b).norm()) <= 0.06 * float(b.norm()) + 1e-3


def test_a_model_in_half_precision_gets_a_norm_in_single():
    model, x = mlp([8, 16, 4], generator=generator()), normal(6, 8).float()
    right = GrokAlign(1.0, generator=generator())(model, x)[1].detach()
    half = copy.deepcopy(model).bfloat16()
    _, value = GrokAlign(1.0, generator=generator())(half, x.bfloat16())
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.detach(), right, rtol=0.05, atol=0.0)


def test_gradients_accumulate_over_parts_of_a_batch():
    model, x = network("tanh", 5, 7, 3), normal(8, 5)
    whole = GrokAlign(1.0, estimator="exact")(model, x)[1]
    expected = gradient(model, whole)
    penalty = GrokAlign(1.0, estimator="exact")
    for part in x.chunk(4):
        (penalty(model, part)[1] / 4).backward()
    for parameter, right in zip(model.parameters(), expected, strict=True):
        found = torch.zeros_like(right) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(found, right)


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Sequential) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        first, rest = self.inner[:2], self.inner[2:]
        return rest(checkpoint(first, x, use_reentrant=False))


@pytest.mark.parametrize("estimator", ["output", "input", "exact", "noise"])
def test_activation_checkpointing_changes_nothing(estimator):
    model, x = network("tanh", 5, 7, 3), normal(4, 5)
    settings = {"estimator": estimator}
    _, right = GrokAlign(1.0, generator=generator(), **settings)(model, x)
    expected = gradient(model, right)
    again = Checkpointed(model)
    _, value = GrokAlign(1.0, generator=generator(), **settings)(again, x)
    torch.testing.assert_close(value, right)
    value.backward()
    for parameter, gradient_ in zip(model.parameters(), expected, strict=True):
        found = parameter.grad
        found = torch.zeros_like(gradient_) if found is None else found
        torch.testing.assert_close(found, gradient_)


@pytest.mark.parametrize("estimator", ["output", "input", "exact"])
def test_some_parameters_may_be_frozen(estimator):
    model, x = network("tanh", 5, 7, 3), normal(4, 5)
    model[0].requires_grad_(False)
    _, value = GrokAlign(1.0, estimator=estimator)(model, x)
    value.backward()
    assert model[0].weight.grad is None
    assert model[2].weight.grad.any()


@pytest.mark.parametrize(
    "wrap", [lambda m: m, torch.compile], ids=["eager", "compiled"]
)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_gradient_that_reaches_no_parameter_is_an_error(estimator, wrap):
    model, x = network("tanh", 5, 7, 3), normal(4, 5)
    penalty = GrokAlign(estimator=estimator)
    penalty(wrap(model), x)
    model.requires_grad_(False)  # also when it comes later
    with pytest.raises(ValueError, match=r"^GrokAlign: model must be"):
        penalty(wrap(model), x)


def test_compiled_pieces_inside_a_model_run_eagerly():
    plain, x = network("tanh", 5, 7, 3), normal(4, 5)
    model = nn.Sequential(torch.compile(plain[0]), plain[1], torch.compile(plain[2]))
    right = GrokAlign(1.0, generator=generator())(plain, x)[1]
    found = GrokAlign(1.0, generator=generator())(model, x)[1]
    torch.testing.assert_close(found, right)
    assert any(g.any() for g in gradient(plain, found))


def test_hooks_of_the_model_run_once():
    model, seen = network("tanh", 5, 7, 3), []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    GrokAlign()(model, normal(4, 5))
    assert len(seen) == 1


@pytest.mark.parametrize("estimator", ["output", "input", "orthogonal", "exact"])
@pytest.mark.parametrize("at", ["embed", "blocks", "blocks.0"])
def test_tokens_are_penalised_from_their_embeddings(at, estimator):
    model = Transformer(7, 5, width=4, n_heads=2, hidden=6, generator=generator())
    _, value = GrokAlign(1.0, estimator=estimator, at=at)(model, TOKENS)
    value.backward()
    assert model.unembed.weight.grad.any()
    assert torch.isfinite(model.unembed.weight.grad).all()


def test_frozen_embeddings_may_be_where_the_map_begins():
    model = TokenModel()
    model.embed.requires_grad_(False)
    _, value = GrokAlign(1.0, at="embed")(model, TOKENS)
    value.backward()
    assert model.attention.unembed.weight.grad.any()
    assert model.embed.weight.grad is None


def test_tokens_without_a_place_are_told_the_embedding():
    with pytest.raises(TypeError, match=r"^GrokAlign: x must be .*at='embed'"):
        GrokAlign()(TokenModel(), TOKENS)
    with pytest.raises(TypeError, match=r"at='name'"):
        GrokAlign()(nn.Flatten(), TOKENS)


def test_it_fits_the_training_loop_and_aligns():
    class Data:
        x_train = x_test = normal(40, 6).float()
        y_train = y_test = (x_train[:, 0] > 0).long()

    def trained(penalty) -> float:
        model = mlp([6, 32, 2], generator=generator())
        train(
            model, Data(), loss=cross_entropy, epochs=40, batch_size=20, seed=0,
            optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2), penalty=penalty,
        )  # fmt: skip
        return float(GrokAlign(1.0, estimator="exact")(model, Data.x_test)[1].detach())

    assert trained(GrokAlign(0.05, generator=generator())) < trained(None) / 3


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"weight": -1.0}, ValueError),
        ({"weight": math.nan}, ValueError),
        ({"weight": math.inf}, ValueError),
        ({"weight": "0.1"}, TypeError),
        ({"estimator": "both"}, ValueError),
        ({"power": 3}, ValueError),
        ({"offset": None}, TypeError),
        ({"n_probes": 0}, ValueError),
        ({"every": 0}, ValueError),
        ({"every": 1.5}, TypeError),
        ({"schedule": 3}, TypeError),
        ({"generator": 0}, TypeError),
        ({"compile": 1}, TypeError),
        ({"probe": "cube"}, ValueError),
        ({"std": 0}, ValueError),
    ],
)
def test_wrong_arguments_are_named(settings, error):
    with pytest.raises(error, match=f"^GrokAlign: {next(iter(settings))} must be"):
        GrokAlign(**settings)


@pytest.mark.cuda
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("source", ["cpu", "cuda"])
def test_on_a_gpu_the_generator_may_live_on_either_side(source, estimator):
    model = Dropping().cuda()
    x = normal(6, 5).float().cuda()
    penalty = GrokAlign(
        1.0, estimator=estimator, generator=torch.Generator(source).manual_seed(0),
        at="1" if estimator == "nuclear" else None,
    )  # fmt: skip
    state = torch.cuda.get_rng_state()
    torch.manual_seed(1)
    expected = model(x)
    after = torch.cuda.get_rng_state()
    torch.manual_seed(1)
    output, value = penalty(model, x)
    torch.testing.assert_close(output, expected)
    assert torch.equal(torch.cuda.get_rng_state(), after)  # one pass's worth of draws
    assert not torch.equal(state, after)
    value.backward()
    assert value.is_cuda
    assert all(
        torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None
    )


class Dropping(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 40), nn.Dropout(0.5), nn.Tanh(), nn.Linear(40, 3))


@pytest.mark.cuda
@pytest.mark.parametrize("power", [2, 1, "ratio"])
def test_on_a_gpu_the_numbers_are_those_of_the_cpu(power):
    model, x = network("tanh", 5, 7, 3), normal(4, 5)
    right = GrokAlign(1.0, power=power, generator=generator())(model, x)[1].detach()
    found = GrokAlign(1.0, power=power, generator=generator())(
        copy.deepcopy(model).cuda(), x.cuda()
    )[1]
    torch.testing.assert_close(found.detach().cpu(), right)


@pytest.mark.parametrize("estimator", ["output", "input", "noise"])
def test_given_noise_takes_the_place_of_new_numbers(estimator):
    model, x = mlp([5, 4, 3], generator=generator(0)), torch.rand(6, 5)
    penalty = GrokAlign(0.5, estimator=estimator, n_probes=2)
    shape = penalty.form.noise_shape(x, (6, 3))
    noise = torch.randn(shape, generator=generator(1))
    values = [penalty(model, x, noise=noise)[1] for _ in range(2)]
    assert values[0] == values[1] != penalty(model, x)[1]
    _, each = penalised(model, x, noise, penalty.form)
    torch.testing.assert_close(values[0], 0.5 * each.mean())
    compiled = GrokAlign(0.5, compile=True)
    with pytest.raises(ValueError, match="noise must be None with compile"):
        compiled(model, x, noise=noise)
