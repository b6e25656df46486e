"""On an accelerator: the same numbers."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.regularizers.second_order.cases import (
    CLOSE,
    MODELS,
    Checkpointed,
    Step,
    normal,
    normalised,
    with_statistics,
)

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_step_with_batch_norm_in_training_agrees_with_the_cpu(layout, checkpointed):
    model, x = with_statistics(normalised()).train(), normal(5, 4, 8, 8)
    twin = copy.deepcopy(model).cuda().to(memory_format=layout)
    expected = Step(model, x)
    runner = Checkpointed(twin, 0, 3, 11) if checkpointed else twin
    x = x.cuda().to(memory_format=layout)
    found = Step(runner, x, point_gradient=False)
    torch.testing.assert_close(found.output.cpu(), expected.output, **CLOSE)
    torch.testing.assert_close(found.pulled.cpu(), expected.pulled, **CLOSE)
    for name, parameter in twin.named_parameters():
        gradient = expected.gradients[name]
        torch.testing.assert_close(parameter.grad.cpu(), gradient, **CLOSE)
    for buffer, other in zip(twin.buffers(), model.buffers(), strict=True):
        if buffer.is_floating_point():
            torch.testing.assert_close(buffer.cpu(), other, **CLOSE)


@pytest.mark.parametrize("name", MODELS)
def test_a_step_agrees_with_the_plain_one(name):
    build, shape = MODELS[name]
    model, x = build().cuda(), normal(5, *shape).cuda()
    Step(model, x, point_gradient=False).agrees_with(Step(model, x, lean=False))


def test_weights_of_zero_learn_through_the_statistics_too():
    # The last normalisation of a residual block often starts at zero.
    model, x = with_statistics(normalised()).train(), normal(5, 4, 8, 8)
    with torch.no_grad():
        model[1].weight[:2] = 0
    expected = Step(copy.deepcopy(model), x).gradients
    found = Step(model.cuda(), x.cuda()).gradients
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name].cpu(), gradient, **CLOSE)


def test_autocast_errs_no_more_than_it_does_without_the_mode():
    model, x = with_statistics(normalised(tracked=True)).eval(), normal(64, 4, 8, 8)
    truth = Step(copy.deepcopy(model), x).gradients
    model, x = model.float().cuda(), x.float().cuda()
    half = lambda: torch.autocast("cuda", torch.bfloat16)  # noqa: E731
    errors = []
    for lean in (False, True):
        step = Step(model, x, lean=lean, context=half)
        assert step.output.dtype == torch.bfloat16
        gaps = [(g.cpu() - truth[name]).norm() for name, g in step.gradients.items()]
        errors.append(sum(gaps))
    assert errors[1] <= 1.5 * errors[0]


def test_autocast_in_training_errs_no_more_than_on_the_cpu():
    model, x = with_statistics(normalised()).train(), normal(64, 4, 8, 8)
    truth = Step(copy.deepcopy(model), x).gradients
    errors = {}
    for device in ("cpu", "cuda"):
        half = lambda device=device: torch.autocast(device, torch.bfloat16)  # noqa: E731
        twin = copy.deepcopy(model).float().to(device)
        step = Step(twin, x.float().to(device), context=half)
        gaps = [(g.cpu() - truth[name]).norm() for name, g in step.gradients.items()]
        errors[device] = sum(gaps)
    assert errors["cuda"] <= 2 * errors["cpu"]


def test_a_model_in_half_precision_trains():
    model, x = with_statistics(normalised()).train(), normal(64, 4, 8, 8)
    exact = Step(copy.deepcopy(model), x)
    step = Step(model.bfloat16().cuda(), x.bfloat16().cuda())
    # Eight bits in every weight, activation and statistic.
    gap = (step.pulled.double().cpu() - exact.pulled).norm()
    assert gap <= 0.1 * exact.pulled.norm()
    assert all(g.isfinite().all() for g in step.gradients.values())
