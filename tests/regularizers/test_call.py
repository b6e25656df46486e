"""Gradients of penalties against finite differences, and first calls that complain."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from normalign._hooks import location_in, middle_of
from normalign.regularizers import GrokAlign, PenaltyForm, penalised
from normalign.regularizers._call import Call
from normalign.regularizers._formulas import given_noise
from tests.regularizers.penalties import generator, jacobian_of, network, normal

PUSHING = {
    "released": PenaltyForm(power=1, released=True),
    "input": PenaltyForm(estimator="input"),
    "orthogonal": PenaltyForm(estimator="orthogonal", n_probes=2),
    "ratio": PenaltyForm(power="ratio"),
    "orthogonal ratio": PenaltyForm(estimator="orthogonal", power="ratio"),
    "nuclear": PenaltyForm(estimator="nuclear"),
    "exact": PenaltyForm(estimator="exact"),
}


class Solved(nn.Module):
    """What solves a system that depends on the input, and its determinant."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 9), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        system = self.first(x).reshape(-1, 3, 3).tanh() + 3 * torch.eye(3).to(x)
        solved = torch.linalg.solve(system, x[:, :3])
        return self.last(solved) * torch.linalg.det(system)[:, None]


def smooth(name: str) -> tuple[nn.Module, Tensor]:
    """A smooth model and points for it."""
    torch.manual_seed(0)
    flat, images = normal(3, 4), normal(3, 2, 4, 4)
    ends = nn.Tanh(), nn.Flatten(), nn.Linear(12, 2)
    models = {
        "layer norm": lambda: (
            nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 2)),
            flat,
        ),
        "instance norm 1d": lambda: (
            nn.Sequential(
                nn.Conv1d(2, 3, 3, padding=1),
                nn.InstanceNorm1d(3, affine=True),
                *ends,
            ),
            normal(3, 2, 4),
        ),
        "instance norm 2d": lambda: (
            nn.Sequential(nn.Conv2d(2, 3, 3), nn.InstanceNorm2d(3, affine=True), *ends),
            images,
        ),
        "group norm": lambda: (
            nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(3, 3), *ends),
            images,
        ),
        "transformer": lambda: (
            nn.Sequential(
                nn.TransformerEncoderLayer(
                    4, 2, 5, dropout=0.0, activation="gelu", batch_first=True
                ),
                nn.Flatten(),
                nn.Linear(12, 2),
            ),
            normal(3, 3, 4),
        ),
        "solve": lambda: (nn.Sequential(Solved(), nn.Tanh(), nn.Linear(3, 2)), flat),
        "dropout": lambda: (
            nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Dropout(0.4), *ends[1:]),
            images,
        ),
    }
    model, x = models[name]()
    if name == "dropout":
        model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    return model.double(), x


SMOOTH = ["layer norm", "instance norm 1d", "instance norm 2d", "group norm",
          "transformer", "solve", "dropout"]  # fmt: skip


def noise_for(form: PenaltyForm, model: nn.Module, x: Tensor) -> Tensor | None:
    seen: list[Tensor] = []
    with location_in(model, middle_of(model, "test"), "test").replacing(
        lambda h: seen.append(h) or h
    ):
        output = model(x)
    shape = form.noise_shape(x, output.shape, hidden_shape=seen[0].shape)
    return normal(*shape, seed=3) if shape else None


def penalty_of(model: nn.Module, x: Tensor, form: PenaltyForm, route: str):
    """The summed penalty as a function of the parameters: the same draws each time."""
    noise = noise_for(form, model, x)

    def value() -> Tensor:
        torch.manual_seed(5)
        if route == "eager":
            found = Call(model, form, "test")(model, x, given_noise(noise))
        else:
            state = dict(model.named_parameters())
            function = lambda z: functional_call(model, state, (z,))  # noqa: E731
            found = penalised(function, x, noise, form, inside=model)
        return found[1].sum()

    return value


@pytest.mark.parametrize("form", PUSHING)
@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("route", ["eager", "functional"])
def test_gradients_are_those_of_finite_differences(route, name, form):
    model, x = smooth(name)
    value = penalty_of(model, x, PUSHING[form], route)
    parameters = list(model.parameters())
    found = torch.autograd.grad(value(), parameters, allow_unused=True)
    step = 1e-5
    for seed in range(2):
        ways = [normal(*p.shape, seed=seed + 7) for p in parameters]
        slope = sum(
            float((g * w).sum())
            for g, w in zip(found, ways, strict=True)
            if g is not None
        )
        ends = []
        for sign in (1, -2, 1):  # there, back beyond, and home
            with torch.no_grad():
                for parameter, way in zip(parameters, ways, strict=True):
                    parameter.add_(sign * step * way)
            ends.append(float(value().detach()))
        expected = (ends[0] - ends[1]) / (2 * step)
        # A third derivative times step^2, and the rounding of values over the step,
        # which is largest where J x nearly cancels. Wrong rules are off by percents.
        assert slope == pytest.approx(expected, rel=2e-4, abs=2e-4 * abs(ends[0]))


@pytest.mark.parametrize("estimator", ["input", "exact"])
def test_a_compiled_layer_norm_has_the_gradients_of_the_eager_one(estimator, recwarn):
    model, x = smooth("layer norm")
    found = []
    for how in (None, "aot_eager"):
        penalty = GrokAlign(
            1.0, estimator=estimator, generator=generator(), compile=how
        )
        for _ in range(2):  # of which the second is compiled
            _, value = penalty(model, x)
        found.append(torch.autograd.grad(value, list(model.parameters())[:4]))
    assert not [w for w in recwarn if "run eagerly" in str(w.message)]
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("form", PUSHING)
@pytest.mark.parametrize("layout", ["channels last", "transposed"])
def test_dropout_in_any_layout_is_the_map_that_was_drawn(layout, form):
    model, x = smooth("dropout")
    if layout == "transposed":
        model = nn.Sequential(
            nn.Linear(4, 6), nn.Dropout(0.4), nn.Tanh(), nn.Flatten(), nn.Linear(18, 2)
        ).double()
        x = normal(3, 5, 4).transpose(0, 1)
    torch.manual_seed(5)
    mask: list[Tensor] = []
    drop = next(m for m in model if isinstance(m, nn.Dropout))
    with drop.register_forward_hook(
        lambda _, args, out: mask.append((out / args[0]).detach())
    ):
        expected = model(x)
    fixed = copy.deepcopy(model)
    index = list(model).index(drop)
    fixed[index] = Masked(mask[0])
    noise = noise_for(PUSHING[form], model, x)
    right = Call(fixed, PUSHING[form], "test")(fixed, x, given_noise(noise))
    torch.manual_seed(5)
    found = Call(model, PUSHING[form], "test")(model, x, given_noise(noise))
    torch.testing.assert_close(found[0], expected)
    torch.testing.assert_close(found[1], right[1])


class Masked(nn.Module):
    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask


@pytest.mark.parametrize("layout", ["channels last", "transposed"])
def test_a_step_of_next_to_nothing_keeps_the_units(layout):
    model, x = smooth("dropout")
    if layout == "transposed":
        layers = nn.Linear(4, 6), nn.Dropout(0.4), nn.Flatten(), nn.Linear(18, 2)
        model, x = nn.Sequential(*layers).double(), normal(3, 5, 4).transpose(0, 1)
    form = PenaltyForm(estimator="noise", offset=False, std=1e-6)
    _, value = Call(model, form, "test")(model, x, torch.randn_like)
    # with other units the outputs would differ by their own size, over std
    assert float(value.detach().max()) < 1e3


@pytest.mark.parametrize("estimator", ["output", "input", "exact", "noise"])
def test_a_spectral_norm_iterates_once_for_each_call(estimator):
    torch.manual_seed(0)
    layer = parametrizations.spectral_norm(nn.Linear(4, 6))
    model = nn.Sequential(layer, nn.Tanh(), nn.Linear(6, 2)).double()
    plain, x = copy.deepcopy(model), normal(5, 4)
    penalty = GrokAlign(1.0, estimator=estimator)
    for _ in range(3):
        expected = plain(x)
        output, value = penalty(model, x)
        value.backward()
        torch.testing.assert_close(output, expected)
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(model.get_buffer(name), buffer)


def test_a_finite_step_of_nothing_meets_the_same_spectral_norm():
    torch.manual_seed(0)
    layer = parametrizations.spectral_norm(nn.Linear(4, 6))
    model, x = nn.Sequential(layer, nn.Linear(6, 2)).double(), normal(5, 4)
    form = PenaltyForm(estimator="noise", offset=False, std=1e-9)
    _, value = Call(model, form, "test")(model, x, lambda like: 0 * like)
    assert not value.any()


def normalised(**settings) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, **settings), nn.Tanh(), nn.Flatten(),
        nn.Linear(12, 2),
    ).double()  # fmt: skip


@pytest.mark.parametrize("form", PUSHING)
def test_batch_statistics_are_held_fixed_by_pushes_too(form):
    model, x = normalised(), normal(6, 2, 4, 4)
    frozen, seen = copy.deepcopy(model), model[0](x)
    noise = noise_for(PUSHING[form], model, x)
    model[1].reset_running_stats()
    with torch.no_grad():  # the batch's own statistics, as if they were known before
        frozen[1].running_mean.copy_(seen.mean((0, 2, 3)))
        frozen[1].running_var.copy_(seen.var((0, 2, 3), correction=0))
    frozen.eval()
    right = Call(frozen, PUSHING[form], "test")(frozen, x, given_noise(noise))
    found = Call(model, PUSHING[form], "test")(model, x, given_noise(noise))
    torch.testing.assert_close(found, right)
    assert int(model[1].num_batches_tracked) == 1
    value = lambda: Call(model, PUSHING[form], "test")(  # noqa: E731
        model, x, given_noise(noise)
    )[1].sum()
    # The last layer sees nothing of how the statistics depend on the weights.
    weight = model[4].weight
    (slope,) = torch.autograd.grad(value(), weight)
    way, step, ends = normal(*weight.shape, seed=9), 1e-5, []
    for sign in (1, -2):
        with torch.no_grad():
            weight.add_(sign * step * way)
        ends.append(float(value().detach()))
    expected = (ends[0] - ends[1]) / (2 * step)
    assert float((slope * way).sum()) == pytest.approx(expected, rel=1e-5)


class Checkpointed(nn.Sequential):
    reentrant = False

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("momentum", [None, 0.1])
@pytest.mark.parametrize("estimator", ["output", "input"])
def test_a_checkpoint_counts_a_batch_once(estimator, momentum):
    plain, x = normalised(momentum=momentum), normal(6, 2, 4, 4)
    inner = copy.deepcopy(plain)
    model = nn.Sequential(Checkpointed(*inner[:3]), *inner[3:])
    penalty = GrokAlign(1.0, estimator=estimator)
    for step in range(3):
        expected = plain(x + step)
        output, value = penalty(model, x + step)
        torch.testing.assert_close(output, expected)
        (output.square().mean() + value).backward()
    assert int(inner[1].num_batches_tracked) == 3
    torch.testing.assert_close(inner[1].running_mean, plain[1].running_mean)
    torch.testing.assert_close(inner[1].running_var, plain[1].running_var)


@pytest.mark.parametrize("estimator", ["output", "input", "exact", "noise"])
@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_complex_outputs_are_refused(weight, estimator):
    model = nn.Sequential(nn.Linear(4, 3), Spectrum())
    with pytest.raises(TypeError, match=r"^GrokAlign: model must be.*view_as_real"):
        GrokAlign(weight, estimator=estimator)(model, torch.ones(2, 4))


class Spectrum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(x)


@pytest.mark.parametrize("estimator", ["output", "input", "orthogonal", "exact"])
@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e19, 1e30])
def test_the_ratio_has_no_scale_in_single_precision(scale, estimator):
    torch.manual_seed(0)
    model, x = nn.Linear(5, 3, bias=False), normal(4, 5).float()

    def found(model: nn.Module, x: Tensor) -> Tensor:
        penalty = GrokAlign(
            1.0, estimator=estimator, power="ratio", generator=generator()
        )
        value = penalty(model, x)[1]
        (gradient,) = torch.autograd.grad(value, list(model.parameters()))
        return torch.cat([value.detach().reshape(1), gradient.flatten()])

    expected = found(model, x)
    # float32, and a rounding of each product
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(found(model, x * scale), expected, **close)
    scaled = copy.deepcopy(model)
    with torch.no_grad():
        scaled.weight.mul_(scale)
    value, *gradient = found(scaled, x)
    torch.testing.assert_close(value, expected[0], **close)
    torch.testing.assert_close(torch.stack(gradient) * scale, expected[1:], **close)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e30])
def test_orthogonal_probes_find_tiny_and_huge_points(scale):
    torch.manual_seed(0)
    model, x = nn.Linear(5, 3, bias=False), normal(4, 5).float()
    form = PenaltyForm(estimator="orthogonal", offset=False)
    noise = given_noise, normal(1, 4, 5).float()
    right = Call(model, form, "test")(model, x, noise[0](noise[1]))[1]
    found = Call(model, form, "test")(model, x * scale, noise[0](noise[1]))[1]
    torch.testing.assert_close(found, right)


def test_only_the_last_bias_may_be_trained_with_the_offset():
    model, x = network("relu", 5, 7, 3), normal(4, 5)
    model.requires_grad_(False)
    model[-1].bias.requires_grad_(True)
    for settings in ({}, {"estimator": "input"}, {"estimator": "exact"}):
        GrokAlign(1.0, **settings)(model, x)[1].backward()
        assert model[-1].bias.grad.any()
        model[-1].bias.grad = None
        with pytest.raises(ValueError, match=r"^GrokAlign: model must be"):
            GrokAlign(1.0, offset=False, **settings)(model, x)


@pytest.mark.parametrize("estimator", ["output", "input", "exact"])
@pytest.mark.parametrize("power", [1, 2, "ratio"])
def test_a_gradient_that_is_zero_is_an_error(power, estimator):
    model, x = network("relu", 5, 7, 3), normal(4, 5)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("bias" in name)
    penalty = GrokAlign(1.0, estimator=estimator, power=power, offset=False)
    with pytest.raises(ValueError, match=r"^GrokAlign: model must be"):
        penalty(model, x)


def test_a_jacobian_of_zero_is_none():
    model = nn.Linear(4, 3)
    nn.init.zeros_(model.weight)
    for power in (1, 2, "ratio"):
        GrokAlign(1.0, power=power, offset=False)(model, torch.ones(2, 4))


def test_the_trial_leaves_no_trace():
    model, x = network("tanh", 5, 7, 3), normal(4, 5)
    seen: list[int] = []
    model[0].weight.register_hook(lambda _: seen.append(1))
    model[2].weight.register_post_accumulate_grad_hook(lambda _: seen.append(2))
    _, value = GrokAlign(1.0)(model, x)
    assert not seen
    assert all(p.grad is None for p in model.parameters())
    value.backward()
    assert seen.count(1) == seen.count(2) == 1


@pytest.mark.parametrize("estimator", ["output", "input", "exact", "noise"])
def test_a_lazy_model_finds_its_shapes(estimator):
    torch.manual_seed(0)
    model = nn.Sequential(nn.LazyLinear(6), nn.Tanh(), nn.LazyLinear(2))
    x = normal(4, 5).float()
    _, value = GrokAlign(1.0, estimator=estimator)(model, x)
    value.backward()
    assert model[0].weight.shape == (6, 5)
    assert model[0].weight.grad.any()


@pytest.mark.parametrize("output", ["tuple", "dict"])
@pytest.mark.parametrize("settings", [{"weight": 0.0}, {"schedule": lambda _: 0.0}])
def test_other_outputs_are_explained_without_a_weight_too(settings, output):
    class Strange(nn.Linear):
        def forward(self, x):
            found = super().forward(x)
            return (found, found) if output == "tuple" else {"logits": found}

    with pytest.raises(TypeError, match=r"^GrokAlign: model must be"):
        GrokAlign(**settings)(Strange(3, 2), torch.ones(4, 3))


def test_a_step_between_penalised_ones_can_go_back():
    model, x = nn.Linear(3, 2), torch.full((4, 3), math.inf)
    penalty = GrokAlign(1.0, every=2)
    penalty(model, torch.ones(4, 3))
    output, value = penalty(model, x)
    assert not output.isfinite().any()
    assert value == 0
    value.backward()  # which has a graph
    assert model.bias.grad is not None
    assert not model.bias.grad.any()


@pytest.mark.parametrize("estimator", ["output", "input", "exact"])
def test_an_operation_without_a_second_derivative_is_named(estimator):
    model = nn.Sequential(nn.Linear(4, 5), nn.Hardsigmoid(), nn.Linear(5, 2))
    with pytest.raises(ValueError, match=r"^GrokAlign: model must be.*hardsigmoid"):
        GrokAlign(1.0, estimator=estimator)(model, torch.ones(2, 4))
    GrokAlign(1.0, estimator="noise", offset=False)(model, torch.ones(2, 4))


@pytest.mark.parametrize("estimator", ["output", "input", "exact"])
def test_the_older_checkpoint_is_named(estimator):
    older = Checkpointed(nn.Linear(5, 5), nn.Tanh())
    older.reentrant = True
    model = nn.Sequential(nn.Linear(4, 5), older, nn.Linear(5, 2))
    with pytest.raises(ValueError, match=r"^GrokAlign: model.*use_reentrant=False"):
        GrokAlign(1.0, estimator=estimator)(model, torch.ones(2, 4))


def test_a_submodule_that_was_replaced_is_found_again():
    model, x = network("tanh", 5, 7, 6, 3), normal(4, 5)
    penalty = GrokAlign(1.0, estimator="exact", offset=False, at="2")
    penalty(model, x)
    model[2] = nn.Linear(7, 6).double()
    value = penalty(model, x)[1]
    hidden = model[:2](x).detach()
    expected = jacobian_of(model[2:], hidden).square().sum((1, 2)).mean()
    torch.testing.assert_close(value.detach(), expected)
