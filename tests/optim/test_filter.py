"""A filter beside everything else that touches an optimizer."""

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from torch import nn

from normalign.optim import GradientFilter, Grokfast, GrokfastWindow, OrthoGrad
from tests.optim.rules import (
    FILTERS,
    OPTIMIZERS,
    backward,
    network,
    same_weights,
    train,
)

EXACT = {"atol": 0.0, "rtol": 0.0}
each_filter = pytest.mark.parametrize("make", FILTERS.values(), ids=FILTERS)


def single(value=1.0, lr=0.0, **options):
    weight = nn.Parameter(torch.full((3,), value))
    return weight, torch.optim.SGD([weight], lr=lr, **options)


def ones_step(optimizer, *weights):
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()


class Scaled(GradientFilter):
    """Multiplies by ten; with another filter its place in the order shows."""

    def transform(self, weights, gradients):
        torch._foreach_mul_(gradients, 10.0)


# --- checkpoints ---------------------------------------------------------------


@each_filter
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("saved_after", [2, 6, 7])
def test_a_run_resumed_from_disk_is_bit_identical(make, optimizer, saved_after):
    whole = network()
    own = OPTIMIZERS[optimizer](whole.parameters())
    make(own)
    train(whole, own, range(15))

    first = network()
    own = OPTIMIZERS[optimizer](first.parameters())
    gradient_filter = make(own)
    train(first, own, range(saved_after))
    disk = io.BytesIO()
    parts = (first, own, gradient_filter)
    torch.save([part.state_dict() for part in parts], disk)
    disk.seek(0)

    second = network(seed=1)
    own = OPTIMIZERS[optimizer](second.parameters())
    parts = (second, own, make(own))
    for part, state in zip(parts, torch.load(disk, weights_only=True), strict=True):
        part.load_state_dict(state)
    train(second, own, range(saved_after, 15))
    same_weights(whole, second, **EXACT)


def test_loading_brings_the_saved_settings_and_copies_the_state():
    weight, sgd = single()
    saved = Grokfast(sgd, decay=0.5, strength=3.0)
    ones_step(sgd, weight)
    state = saved.state_dict()
    loaded = Grokfast(sgd)
    loaded.load_state_dict(state)
    assert (loaded.decay, loaded.strength) == (0.5, 3.0)
    loaded.state[weight]["average"].zero_()
    assert torch.equal(saved.state[weight]["average"], torch.ones(3))


def test_state_is_named_by_position_over_all_groups():
    first, second, third = (nn.Parameter(torch.ones(i + 1)) for i in range(3))
    groups = [{"params": [first]}, {"params": [second, third]}]
    sgd = torch.optim.SGD(groups, lr=0.1)
    ema = Grokfast(sgd)
    ones_step(sgd, first, third)
    state = ema.state_dict()
    assert {i: e["average"].shape for i, e in state["state"].items()} == {
        0: (1,),
        2: (3,),
    }
    assert state["settings"] == {"decay": 0.98, "strength": 2.0}


def test_nothing_is_kept_in_the_optimizer():
    filtered, plain = network(), network()
    states = []
    for model in (filtered, plain):
        own = OPTIMIZERS["AdamW"](model.parameters())
        if model is filtered:
            for make in FILTERS.values():
                make(own)
        train(model, own, range(3))
        states.append(own.state_dict())
    assert states[0]["param_groups"] == states[1]["param_groups"]
    for position, entry in states[1]["state"].items():
        assert states[0]["state"][position].keys() == entry.keys()


# --- the loop around it ---------------------------------------------------------


def test_schedulers_keep_working():
    weight, sgd = single(lr=1.0)
    before = Grokfast(sgd, strength=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(sgd, step_size=1, gamma=0.5)
    after = Scaled(sgd)
    for _ in range(3):
        ones_step(sgd, weight)
        scheduler.step()
    assert before.attached
    assert after.attached
    # 20 (1 + 1/2 + 1/4): a doubled gradient, ten times, at a halving rate.
    assert torch.equal(weight.data, torch.full((3,), 1.0 - 35.0))
    assert scheduler.get_last_lr() == [0.125]


def test_filters_run_in_the_order_in_which_they_were_attached():
    averages = []
    for scaled_first in (True, False):
        weight, sgd = single()
        if scaled_first:
            Scaled(sgd)
        ema = Grokfast(sgd)
        if not scaled_first:
            Scaled(sgd)
        ones_step(sgd, weight)
        averages.append(float(ema.state[weight]["average"][0]))
    assert averages == [10.0, 1.0]


def test_accumulated_gradients_are_filtered_once():
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    ema = Grokfast(sgd, strength=1.0)
    backward(model, 0)
    once = [w.grad.clone() for w in model.parameters()]
    x = torch.ones(2, 5, dtype=torch.float64)
    model(x).sum().backward()
    total = [w.grad.clone() for w in model.parameters()]
    sgd.step()
    for weight, first, both in zip(model.parameters(), once, total, strict=True):
        assert not torch.equal(first, both)
        assert torch.equal(ema.state[weight]["average"], both)
        torch.testing.assert_close(weight.grad, 2 * both)


def test_the_filtered_gradient_is_in_the_tensor_that_held_the_raw_one():
    for make in FILTERS.values():
        weight, sgd = single()
        make(sgd)
        held = weight.grad = torch.tensor([1.0, 2.0, 3.0])
        for _ in range(4):
            sgd.step()
        assert weight.grad is held
        assert not torch.equal(held, torch.tensor([1.0, 2.0, 3.0]))


def test_parameters_without_a_gradient_keep_their_state():
    first, second = (nn.Parameter(torch.ones(2)) for _ in range(2))
    sgd = torch.optim.SGD([first, second], lr=0.0)
    window = GrokfastWindow(sgd, window=2, strength=1.0)
    ones_step(sgd, first, second)
    second.grad = None
    ones_step(sgd, first)
    assert second.grad is None
    assert [window.state[w]["count"] for w in (first, second)] == [2, 1]
    ones_step(sgd, first, second)  # full for both now, at different slots
    assert torch.equal(first.grad, torch.full((2,), 2.0))
    assert torch.equal(second.grad, torch.full((2,), 2.0))


def test_frozen_parameters_are_passed_over():
    model = network()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    own = OPTIMIZERS["SGD"](model.parameters())
    ema = Grokfast(own)
    train(model, own, range(3))
    assert torch.equal(model[0].weight, before)
    assert set(ema.state_dict()["state"]) == {2, 3}


def test_a_step_without_any_gradient_does_nothing():
    for make in FILTERS.values():
        _, sgd = single()
        gradient_filter = make(sgd)
        sgd.step()
        assert gradient_filter.state_dict()["state"] == {}


def test_groups_added_later_are_filtered_too():
    weight, sgd = single()
    ema = Grokfast(sgd, strength=1.0)
    ones_step(sgd, weight)
    late = nn.Parameter(torch.zeros(2))
    sgd.add_param_group({"params": [late], "lr": 0.5})
    ones_step(sgd, weight, late)
    assert torch.equal(late.grad, torch.full((2,), 2.0))
    assert torch.equal(late.data, torch.full((2,), -1.0))
    state = ema.state_dict()
    other, fresh = single()
    loaded = Grokfast(fresh)
    with pytest.raises(ValueError, match=r"got state for parameter 1\. Add the"):
        loaded.load_state_dict(state)
    fresh.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    loaded.load_state_dict(state)
    assert torch.equal(loaded.state[other]["average"], torch.ones(3))


@each_filter
def test_mixed_dtypes_are_filtered_as_each_by_itself(make):
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float32]
    start = [torch.linspace(1, 2, 3 + i).to(d) for i, d in enumerate(dtypes)]

    def run(chosen):
        weights = [nn.Parameter(start[i].clone()) for i in chosen]
        sgd = torch.optim.SGD(weights, lr=0.0)
        gradient_filter = make(sgd)
        for step in range(5):
            for weight in weights:
                weight.grad = torch.ones_like(weight)
                weight.grad[0] = step
            sgd.step()
        return weights, gradient_filter

    together, gradient_filter = run(range(4))
    for i, weight in enumerate(together):
        (alone,), _ = run([i])
        assert torch.equal(weight.grad, alone.grad)
        for value in gradient_filter.state.get(weight, {}).values():
            if isinstance(value, torch.Tensor):
                assert value.dtype == dtypes[i]


def test_a_model_cast_during_training_takes_its_averages_along():
    model = network()
    own = OPTIMIZERS["SGD"](model.parameters())
    ema = Grokfast(own)
    train(model, own, range(2))
    model.to(torch.float32)
    own.state.clear()  # torch's own momentum does not follow
    train(model, own, range(2, 4))
    kinds = {entry["average"].dtype for entry in ema.state.values()}
    assert kinds == {torch.float32}


@pytest.mark.filterwarnings("ignore:Using backward.*create_graph:UserWarning")
def test_gradients_with_a_graph_leave_none_in_the_state():
    weight, sgd = single()
    ema = Grokfast(sgd, strength=1.0)
    weight.square().sum().backward(create_graph=True)
    sgd.step()
    assert torch.equal(weight.grad, torch.full((3,), 4.0))
    assert not ema.state[weight]["average"].requires_grad


# --- mixed precision ------------------------------------------------------------


@each_filter
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale_first", [False, True])
def test_a_scaler_changes_nothing(make, fused, unscale_first):
    scaled, plain = network(torch.float32), network(torch.float32)
    # A power of two, so that scaling and unscaling round nothing.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for model in (scaled, plain):
        own = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
        make(own)
        for step in range(8):
            own.zero_grad()
            x = torch.ones(4, 5) * (step + 1) / 8
            loss = model(x).square().mean()
            if model is plain:
                loss.backward()
                own.step()
                continue
            scaler.scale(loss).backward()
            if unscale_first:
                scaler.unscale_(own)
            scaler.step(own)
            scaler.update()
    same_weights(scaled, plain, **EXACT)


@each_filter
@pytest.mark.parametrize("fused", [False, True])
def test_a_step_skipped_for_infinite_gradients_is_not_absorbed(make, fused):
    model = network(torch.float32)
    own = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    gradient_filter = make(own)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def step(factor):
        own.zero_grad()
        scaler.scale(model(torch.ones(4, 5)).sum() * factor).backward()
        scaler.step(own)
        scaler.update()

    step(1.0)
    weights = copy.deepcopy(model)
    state = copy.deepcopy(gradient_filter.state_dict()["state"])
    step(float("inf"))
    assert scaler.get_scale() == 2.0  # the scaler saw it and backed off
    same_weights(model, weights, **EXACT)
    torch.testing.assert_close(gradient_filter.state_dict()["state"], state, **EXACT)
    for _ in range(5):
        step(1.0)
    assert all(bool(w.isfinite().all()) for w in model.parameters())


def test_an_optimizer_that_takes_the_scaler_itself_is_refused():
    weight, sgd = single()
    Grokfast(sgd)
    weight.grad = torch.ones(3)
    with pytest.raises(ValueError, match="grad_scaler of step\\(\\) must be None"):
        sgd.step(grad_scaler=torch.amp.GradScaler("cpu"))
    assert torch.equal(weight.grad, torch.ones(3))


# --- coming, going and copies ----------------------------------------------------


def test_a_removed_filter_is_gone_and_removing_twice_is_fine():
    weight, sgd = single()
    ema = Grokfast(sgd)
    ema.remove()
    ema.remove()
    assert not ema.attached
    ones_step(sgd, weight)
    assert torch.equal(weight.grad, torch.ones(3))
    assert ema.state == {}


def test_leaving_the_block_removes_the_filter_even_on_an_error():
    weight, sgd = single()
    with pytest.raises(ValueError, match="closure"), Grokfast(sgd):
        sgd.step(lambda: 0.0)
    ones_step(sgd, weight)
    assert torch.equal(weight.grad, torch.ones(3))


def test_the_optimizer_alone_keeps_the_filter_alive_and_both_can_die():
    weight, sgd = single()
    alive = weakref.ref(Grokfast(sgd, strength=1.0))
    gc.collect()
    ones_step(sgd, weight)
    assert torch.equal(weight.grad, torch.full((3,), 2.0))
    del sgd
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda parts: pickle.loads(pickle.dumps(parts))],
    ids=["deepcopy", "pickle"],
)
@each_filter
def test_a_copy_of_all_three_trains_on_by_itself(make, copied):
    model = network()
    own = OPTIMIZERS["AdamW"](model.parameters())
    gradient_filter = make(own)
    train(model, own, range(5))
    twin, twin_own, twin_filter = copied((model, own, gradient_filter))
    assert twin_filter.optimizer is twin_own
    train(model, own, range(5, 12))
    train(twin, twin_own, range(5, 12))
    same_weights(model, twin, **EXACT)
    twin_filter.remove()
    assert gradient_filter.attached


def test_a_copy_of_the_optimizer_alone_has_no_filter():
    _, sgd = single()
    Grokfast(sgd)
    twin = copy.deepcopy(sgd)
    (own,) = twin.param_groups[0]["params"]
    ones_step(twin, own)
    assert torch.equal(own.grad, torch.ones(3))


def test_a_removed_filter_stays_removed_in_its_copy():
    _, sgd = single()
    ema = Grokfast(sgd)
    ema.remove()
    assert not copy.deepcopy(ema).attached


def test_the_text_of_a_filter_names_its_settings():
    _, sgd = single()
    assert repr(OrthoGrad(sgd)) == "OrthoGrad(SGD, rescale=False)"
    assert (
        repr(GrokfastWindow(sgd))
        == "GrokfastWindow(SGD, window=100, strength=5.0, warmup=True)"
    )
