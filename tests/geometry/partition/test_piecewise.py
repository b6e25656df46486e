"""The steps of a network, run one after the other, against the network itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from normalign.geometry._partition import partition
from normalign.geometry._partition.piecewise import Residual, piecewise_affine
from normalign.geometry._partition.steps import Affine, Kinked, PiecewiseAffine

F64 = torch.float64


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def run(network: PiecewiseAffine, x: Tensor) -> Tensor:
    """The naive reading of the steps, at points instead of on regions."""
    registers = {0: x}
    for step in network.steps:
        inputs = [registers[source] for source in step.sources]
        if isinstance(step, Affine):
            value = step.linear(*inputs)
            value = value if step.shift is None else value + step.shift
        elif isinstance(step, Kinked):
            flat = inputs[0].flatten(1)
            piece = torch.bucketize(flat, step.kinks)
            slopes = step.slopes.expand(-1, flat.shape[1])
            intercepts = step.intercepts.expand(-1, flat.shape[1])
            value = slopes.gather(0, piece) * flat + intercepts.gather(0, piece)
            value = value.view(inputs[0].shape)
        else:
            flat = inputs[0].flatten(1)[:, step.windows.clamp_min(0)]
            flat = torch.where(step.windows >= 0, flat, -torch.inf)
            value = flat.amax(-1).unflatten(1, step.shape)
        registers[step.target] = value
    return registers[network.output]


def filled(model: nn.Module) -> nn.Module:
    model = model.to(F64).eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_floating_point():
                tensor.normal_(generator=seeded(0))
            if name.endswith("running_var"):
                tensor.abs_().add_(0.5)
    return model


PICTURE, SIGNAL, VECTOR = (2, 7, 6), (2, 9), (5,)
SUPPORTED = [
    (nn.Identity(), VECTOR),
    (nn.Linear(5, 3), VECTOR),
    (nn.Linear(5, 3, bias=False), VECTOR),
    (nn.Linear(6, 4), PICTURE),
    (nn.Conv1d(2, 4, 3, stride=2, padding=1, dilation=2, groups=2), SIGNAL),
    (nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0), groups=2), PICTURE),
    (nn.Conv2d(2, 3, 3, padding="same"), PICTURE),
    (nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), PICTURE),
    (nn.ConvTranspose2d(2, 3, 3, stride=2), PICTURE),
    (nn.BatchNorm1d(5), VECTOR),
    (nn.BatchNorm2d(2, affine=False), PICTURE),
    (nn.Dropout(0.3), VECTOR),
    (nn.Flatten(), PICTURE),
    (nn.Flatten(2), PICTURE),
    (nn.Unflatten(1, (5, 1)), VECTOR),
    (nn.AvgPool1d(3, padding=1), SIGNAL),
    (nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False), PICTURE),
    (nn.AdaptiveAvgPool1d(4), SIGNAL),
    (nn.AdaptiveAvgPool2d((3, 1)), PICTURE),
    (nn.ConstantPad1d(2, 0.7), SIGNAL),
    (nn.ConstantPad2d((1, 0, 2, 1), -0.7), PICTURE),
    (nn.ZeroPad2d(1), PICTURE),
    (nn.ReplicationPad2d(1), PICTURE),
    (nn.MaxPool1d(3, stride=2, padding=1, dilation=2), SIGNAL),
    (nn.MaxPool2d(2), PICTURE),
    (nn.MaxPool2d((3, 2), stride=(2, 1), padding=(1, 0), ceil_mode=True), PICTURE),
    (nn.ReLU(), PICTURE),
    (nn.ReLU(inplace=True), VECTOR),
    (nn.LeakyReLU(-0.3), VECTOR),
    (nn.PReLU(), PICTURE),
    (nn.PReLU(2), PICTURE),
    (nn.RReLU(), VECTOR),
    (nn.Hardtanh(-0.3, 0.2), VECTOR),
    (nn.ReLU6(), VECTOR),
    (nn.Hardsigmoid(), VECTOR),
    (nn.Softshrink(0.4), VECTOR),
    (Residual(nn.Linear(5, 5)), VECTOR),
    (Residual(nn.Sequential(nn.Linear(5, 3), nn.ReLU()), nn.Linear(5, 3)), VECTOR),
    (nn.utils.parametrizations.weight_norm(nn.Linear(5, 3)), VECTOR),
    (nn.Sequential(nn.Sequential(nn.Linear(5, 5)), nn.Sequential()), VECTOR),
]


@pytest.mark.parametrize(("model", "shape"), SUPPORTED, ids=lambda v: str(v)[:40])
def test_the_steps_compute_what_the_module_computes(model, shape):
    model = filled(model)
    x = 2 * torch.randn(50, *shape, dtype=F64, generator=seeded(1))
    with torch.no_grad():
        found = run(piecewise_affine(model, shape), x)
        expected = model(x.clone())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


class Forward(nn.Module):
    """A module whose forward is the given function."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.layer = nn.Linear(5, 5)
        self.register_buffer("weight", torch.linspace(1, 2, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def in_place(module: Forward, x: Tensor) -> Tensor:
    y = module.layer(x)
    y += x
    y.add_(1.0)
    return y


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: m.layer(x) + x - 2 * x + 1.0,
        lambda m, x: torch.cat([x, m.layer(x)], 1).reshape(-1, 10),
        lambda m, x: m.layer(x).view(x.shape[0], -1)[:, 1:4],
        lambda m, x: m.layer(x).view(x.size()).neg() / 3,
        lambda m, x: m.weight * nn.functional.leaky_relu(x, 0.2) / m.weight,
        lambda m, x: nn.functional.linear(x, m.layer.weight, m.layer.bias),
        lambda m, x: x.flatten(1).relu().unsqueeze(1).mean(dim=1),
        lambda m, x: nn.functional.dropout(x, 0.5, training=False) @ m.layer.weight,
        lambda m, x: nn.functional.hardtanh(x, -0.5, max_val=0.5).sum(1, keepdim=True),
        in_place,
    ],
)
def test_a_forward_of_ones_own_is_followed(function):
    model = filled(Forward(function))
    x = torch.randn(40, 5, dtype=F64, generator=seeded(1))
    with torch.no_grad():
        found = run(piecewise_affine(model, (5,)), x)
        expected = model(x)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("function", "called"),
    [
        (lambda m, x: x * x, "mul"),
        (lambda m, x: x * m.layer(x), "mul"),
        (lambda m, x: 1 / x, "truediv"),
        (lambda m, x: m.weight / x, "div"),
        (lambda m, x: x.square(), "square"),
        (lambda m, x: torch.softmax(x, 1), "softmax"),
        (lambda m, x: x.unsqueeze(1) @ x.unsqueeze(2), "matmul"),
        (lambda m, x: nn.functional.dropout(x), "dropout"),
    ],
)
def test_a_forward_that_is_not_affine_is_refused_by_name(function, called):
    with pytest.raises(TypeError, match=f"Forward, which calls {called}"):
        piecewise_affine(Forward(function), (5,))


def test_a_forward_that_branches_on_values_is_refused():
    def branching(_: Forward, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x

    with pytest.raises(TypeError, match="forward can be traced"):
        piecewise_affine(Forward(branching), (5,))


@pytest.mark.parametrize(
    "module",
    [
        nn.Tanh(), nn.GELU(), nn.Sigmoid(), nn.Softmax(1), nn.LayerNorm(5), nn.ELU(),
        nn.GroupNorm(1, 5), nn.Softplus(), nn.Threshold(0.1, 20), nn.Hardshrink(),
        nn.LSTM(5, 5), nn.Hardswish(),
    ],
    ids=lambda module: type(module).__name__,
)  # fmt: skip
def test_other_modules_are_refused_by_path_and_class(module):
    model = nn.Sequential(nn.Linear(5, 5), nn.Sequential(module)).eval()
    kind = type(module).__name__
    pattern = rf"partition: model\.1\.0 must be .*piecewise affine, got {kind}\. Supp"
    with pytest.raises(TypeError, match=pattern):
        piecewise_affine(model, (5,))


@pytest.mark.parametrize("module", [nn.Dropout(), nn.BatchNorm1d(5), nn.RReLU()])
def test_training_mode_is_refused_with_the_remedy(module):
    with pytest.raises(ValueError, match=r"model\.0 .*Call model\.eval\(\) first"):
        piecewise_affine(nn.Sequential(module).train(), (5,))


def test_batch_statistics_are_refused():
    model = nn.BatchNorm1d(5, track_running_stats=False).eval()
    with pytest.raises(ValueError, match="running statistics"):
        piecewise_affine(model, (5,))


def test_indices_of_pools_are_refused():
    with pytest.raises(ValueError, match="return_indices"):
        piecewise_affine(nn.MaxPool1d(2, return_indices=True), (2, 4))


def test_a_function_is_refused_with_the_remedy():
    with pytest.raises(TypeError, match=r"wrap a function in an nn\.Module"):
        partition(torch.relu)  # pyright: ignore[reportArgumentType]


def test_an_input_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"the input of 0 must be .* got \(4,\)"):
        piecewise_affine(nn.Sequential(nn.Linear(5, 2)), (4,))


def test_a_layer_that_mixes_the_samples_of_a_batch_is_refused():
    with pytest.raises(ValueError, match="each sample on its own"):
        piecewise_affine(nn.Flatten(0), (4,))


def test_a_subclass_with_a_forward_of_its_own_is_not_mistaken_for_its_base():
    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * nn.functional.linear(input, self.weight, self.bias)

    model = filled(Doubled(5, 3))
    x = torch.randn(4, 5, dtype=F64, generator=seeded(1))
    with torch.no_grad():
        torch.testing.assert_close(run(piecewise_affine(model, (5,)), x), model(x))


def test_a_compiled_model_is_unwrapped():
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU())
    compiled = torch.compile(model)
    steps = piecewise_affine(compiled, (2,)).steps  # pyright: ignore
    assert [step.path for step in steps] == ["0", "1"]


def test_hooks_do_not_run_and_parameters_stay():
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU())
    calls: list[int] = []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    piecewise_affine(model, (2,))
    assert not calls
    assert model[0].weight.dtype == torch.float32
    assert len(model[0]._forward_hooks) == 1


def test_registers_are_dropped_after_their_last_use():
    network = piecewise_affine(Residual(nn.Linear(2, 2)), (2,))
    assert network.needed_after(0) == {0, 1, 2}
    assert network.needed_after(1) == {2}
