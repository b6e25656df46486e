"""On an accelerator: the same numbers, and no waiting for it."""

import copy

import pytest
import torch

from tests.optim.rules import FILTERS, network

pytestmark = pytest.mark.cuda
each_filter = pytest.mark.parametrize("make", FILTERS.values(), ids=FILTERS)


def gradients_at(step, model):
    for i, weight in enumerate(model.parameters()):
        generator = torch.Generator().manual_seed(100 * step + i)
        weight.grad = torch.randn(
            weight.shape, generator=generator, dtype=weight.dtype
        ).to(weight.device)


@each_filter
def test_the_filtered_gradients_are_those_of_the_cpu(make):
    host = network()
    device = copy.deepcopy(host).cuda()
    for model in (host, device):
        sgd = torch.optim.SGD(model.parameters(), lr=0.01)
        make(sgd)
        for step in range(9):
            gradients_at(step, model)
            sgd.step()
    for one, other in zip(host.parameters(), device.parameters(), strict=True):
        # Nine steps of float64 arithmetic in another order.
        torch.testing.assert_close(one.grad, other.grad.cpu(), atol=1e-12, rtol=1e-12)


@each_filter
def test_no_step_waits_for_the_device(make):
    model = network(torch.float32).cuda()
    adamw = torch.optim.AdamW(model.parameters(), lr=0.01)
    make(adamw)
    gradients_at(0, model)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(9):
            adamw.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(bool(w.isfinite().all()) for w in model.parameters())


@each_filter
@pytest.mark.parametrize("fused", [False, True])
def test_a_scaled_run_skips_the_infinite_step_and_equals_one_without_it(make, fused):
    models = [network(torch.float32).cuda() for _ in range(2)]
    runs = ([1.0, float("inf"), *[1.0] * 6], [1.0] * 7)
    for model, steps in zip(models, runs, strict=True):
        adamw = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
        make(adamw)
        # Powers of two, so that scaling and unscaling round nothing.
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
        for factor in steps:
            adamw.zero_grad()
            loss = model(torch.ones(4, 5, device="cuda")).square().mean() * factor
            scaler.scale(loss).backward()
            scaler.step(adamw)
            scaler.update()
    for one, other in zip(*(m.parameters() for m in models), strict=True):
        torch.testing.assert_close(one, other, atol=0, rtol=0)
