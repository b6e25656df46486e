from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from normalign.geometry import local_affine, local_robustness
from normalign.robustness import cosine_steps, minimal_radius, pgd
from normalign.robustness.balls import distance
from normalign.robustness.losses import LOSSES
from tests.cases import CASES, Recurrent


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def affine(k: int = 2, d: int = 5, n: int = 40, seed: int = 0):
    generator = seeded(seed)
    model = nn.Linear(d, k).double().requires_grad_(False)
    model.weight.copy_(torch.randn(k, d, generator=generator))
    model.bias.copy_(torch.randn(k, generator=generator))
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return model, x, model(x).argmax(1)


def network(seed: int = 0, k: int = 3):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, k)).double()
    x = torch.randn(12, 4, generator=seeded(seed), dtype=torch.float64)
    return model, x, torch.randint(k, (12,), generator=seeded(seed + 1))


def reach(weight, norm):
    """How much a unit ball moves the lead of one row over the other."""
    gap = weight[0] - weight[1]
    return gap.abs().sum() if norm == "linf" else gap.norm()


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("start", ["uniform", "center"])
def test_two_affine_outputs_break_just_where_the_margin_is_within_reach(
    norm, loss, start
):
    model, x, y = affine()
    outputs = model(x)
    margin = (outputs[:, 0] - outputs[:, 1]).abs()
    critical = margin / reach(model.weight, norm)
    # Squared error's slope need not lead to the boundary: its share along the normal
    # of the boundary alone does, for two rows that are opposite.
    if loss == "squared_error":
        model.weight[1], model.bias[1] = -model.weight[0], -model.bias[0]
        outputs = model(x)
        y = outputs.argmax(1)
        critical = 2 * outputs[:, 0].abs() / reach(model.weight, norm)
        model.weight.div_(10 * outputs.abs().max())  # labels are far: always uphill
        model.bias.div_(10 * outputs.abs().max())
    radii = critical.quantile(torch.tensor([0.2, 0.5, 0.8]).double()).tolist()
    # On the rim of a Euclidean ball an offset from the pole shrinks by 1 / (1 + share)
    # with each step: to 1e-3 in twenty, and to 1e-6 in the height reached.
    rest = {"norm": norm, "loss": loss, "start": start, "step_size": 0.5}
    attack = pgd(model, x, y, radii=radii, **rest)
    assert attack.accuracy == 1
    for radius, broken in zip(radii, attack.broken, strict=True):
        assert torch.equal(broken, critical < radius)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_nothing_within_its_affine_robustness_breaks(norm):
    model, x, y = affine(k=4)
    affine_map = local_affine(model, x)
    robust = local_robustness(affine_map.jacobian, affine_map.offset, x, y)
    if norm == "linf":  # a cube lies in the ball around its corners
        robust = robust / x.shape[1] ** 0.5
    attack = pgd(model, x, y, radii=[0.1, 0.5], norm=norm, n_restarts=3)
    certain = robust[None] > attack.radii[:, None]
    assert certain.any()
    assert not (attack.broken & certain).any()


@given(
    st.sampled_from(["linf", "l2"]),
    st.sampled_from(LOSSES),
    st.lists(st.floats(0, 2), min_size=1, max_size=3),
    st.sampled_from(["last", "best"]),
    st.integers(0, 10**6),
)
@settings(max_examples=25)
def test_points_stay_in_the_ball_and_in_the_range(norm, loss, radii, keep, seed):
    model, x, y = network()
    low, high = x.amin(0) - 0.1, float(x.max()) + 0.1
    attack = pgd(
        model, x, y, radii=radii, norm=norm, loss=loss, keep=keep, n_steps=4,
        n_restarts=2, generator=seeded(seed), low=low, high=high,
    )  # fmt: skip
    # the last place of |x| + radius, below 8
    slack = 4e-15
    assert (attack.distances() <= attack.radii[:, None] + slack).all()
    assert (attack.points >= low).all()
    assert (attack.points <= high).all()
    wrong = torch.stack([model(p).argmax(1) != y for p in attack.points])
    assert torch.equal(wrong, attack.broken)
    assert torch.equal(attack.broken, attack.reached | ~attack.clean)


@settings(max_examples=8)
@given(st.permutations([0.0, 0.1, 2.0]), st.sampled_from(["linf", "l2"]))
def test_neither_order_nor_company_of_the_radii_matters(radii, norm):
    model, x, y = network()
    rest = {"norm": norm, "n_steps": 5, "n_restarts": 2}
    together = pgd(model, x, y, radii=radii, generator=seeded(3), **rest)
    for i, radius in enumerate(radii):
        alone = pgd(model, x, y, radii=radius, generator=seeded(3), **rest)
        # a product with more rows may be summed in another order
        torch.testing.assert_close(alone.points[0], together.points[i])
        assert torch.equal(alone.broken[0], together.broken[i])


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_radius_zero_gives_the_inputs_back_bit_for_bit(norm):
    model, x, y = network()
    x[0] = -0.0
    y[:6] = model(x[:6]).argmax(1)
    attack = pgd(model, x, y, radii=[0.0], norm=norm)
    assert torch.equal(attack.points[0].view(torch.int64), x.view(torch.int64))
    assert torch.equal(attack.broken[0], ~attack.clean)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_the_attack_is_that_of_a_plain_loop(case, norm):
    model, x = case.model(), case.x()
    y = model(x).argmax(1)
    radius, n_steps = 0.3, 6
    z = x.clone()
    for _ in range(n_steps):
        z = z.detach().requires_grad_()
        nn.functional.cross_entropy(model(z), y, reduction="sum").backward()
        slope = z.grad.sign()
        if norm == "l2":
            slope = z.grad / z.grad.flatten(1).norm(dim=1).view(-1, *[1] * (x.ndim - 1))
        step = (z + 0.1 * radius * slope - x).detach()
        if norm == "linf":
            step = step.clamp(-radius, radius)
        else:
            step = step * (radius / distance(step, 0 * x, norm)).clamp_max(1).view(
                -1, *[1] * (x.ndim - 1)
            )
        z = x + step
    found = pgd(
        model, x, y, radii=radius, norm=norm, n_steps=n_steps, step_size=0.1,
        start="center", chunk_size=4,
    )  # fmt: skip
    # gradients in float64 from sums in another order
    torch.testing.assert_close(found.points[0], z.detach(), rtol=1e-9, atol=1e-9)


def test_more_restarts_never_break_less():
    model, x, y = network()
    rest = {"radii": [0.3, 1.0], "n_steps": 3}
    once = pgd(model, x, y, **rest)
    often = pgd(model, x, y, n_restarts=5, **rest)
    assert (often.broken >= once.broken).all()
    same = often.broken == once.broken
    assert (often.losses[same] >= once.losses[same]).all()
    assert (often.losses[same] > once.losses[same]).any()


def test_the_best_point_on_the_way_is_at_least_as_bad_as_the_last():
    def waves(z):  # steps as long as a wave overshoot its crest
        return torch.cat([torch.cos(4 * z), -torch.cos(4 * z)], 1)

    x, y = torch.linspace(-0.3, 0.3, 20).double()[:, None], torch.zeros(20).long()
    rest = {"radii": [3.0], "n_steps": 8, "step_size": 0.3}
    last, best = (pgd(waves, x, y, keep=keep, **rest) for keep in ("last", "best"))
    assert (best.broken >= last.broken).all()
    same = best.broken == last.broken
    assert (best.losses[same] >= last.losses[same]).all()
    assert (best.losses > last.losses).any()


def test_a_sample_wrong_from_the_start_stays_wrong():
    # This loss leads back over the boundary, to where the label is right.
    def model(z):
        return torch.cat([z, -z], 1)

    x, y = torch.tensor([[0.1]]), torch.tensor([1])
    attack = pgd(
        model, x, y, radii=[1.0], n_steps=1, step_size=1.0, start="center",
        loss=lambda outputs, y: -outputs[:, 0],
    )  # fmt: skip
    assert attack.broken.all()
    assert not attack.reached.any()
    assert torch.equal(attack.points[0], x)


def test_a_schedule_gives_the_length_of_every_step():
    model, x, y = affine()
    way = pgd(model, x, y, radii=1.0, n_steps=2, step_size=lambda t: [0.5, 0.25][t],
              start="center").distances()  # fmt: skip
    torch.testing.assert_close(way, torch.full_like(way, 0.75))
    full = pgd(model, x, y, radii=1.0, step_size=cosine_steps(20)).distances()
    torch.testing.assert_close(full, torch.ones_like(full))


def test_images_and_one_output_are_taken():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 1), nn.Flatten(0)).double()
    x = torch.randn(5, 3, 2, 2, dtype=torch.float64)
    y = torch.where(model(x) > 0, 1, -1)
    weight = model[1].weight.detach()[0]
    critical = model(x).detach().abs() / weight.abs().sum()
    radii = [0.99 * float(critical.median()), 1.01 * float(critical.median())]
    attack = pgd(model, x, y, radii=radii)
    assert attack.points.shape == (2, 5, 3, 2, 2)
    expected = torch.stack([critical < radius for radius in radii])
    assert torch.equal(attack.broken, expected)


@pytest.mark.parametrize("chunk_size", [1, 7, None])
def test_chunks_change_nothing(chunk_size):
    model, x, y = network()
    whole = pgd(model, x, y, radii=[0.2, 0.6])
    pieces = pgd(model, x, y, radii=[0.2, 0.6], chunk_size=chunk_size)
    torch.testing.assert_close(pieces.points, whole.points)


def test_nothing_of_the_caller_is_touched():
    model, x, y = network()
    before = x.clone(), y.clone(), torch.get_rng_state()
    x.requires_grad_()
    pgd(model, x, y, radii=[0.5], n_restarts=2)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])
    assert torch.equal(torch.get_rng_state(), before[2])
    assert x.grad is None
    assert all(p.grad is None for p in model.parameters())
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_works_where_gradients_are_off(mode):
    model, x, y = network()
    expected = pgd(model, x, y, radii=[0.5])
    with mode():
        inside = pgd(model, x.clone(), y.clone(), radii=[0.5])
    torch.testing.assert_close(inside.points, expected.points)
    assert not inside.points.is_inference()


def test_weights_made_in_inference_mode_are_taken():
    model, x, y = network()
    expected = pgd(model, x, y, radii=[0.5])
    with torch.inference_mode():
        copy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)).double()
        copy.load_state_dict(model.state_dict())
    torch.testing.assert_close(pgd(copy, x, y, radii=[0.5]).points, expected.points)


def test_recurrent_networks_are_taken():
    model = Recurrent(nn.LSTM).double().eval()
    x = torch.randn(4, 5, 6, dtype=torch.float64)
    y = model(x).argmax(1)
    attack = pgd(model, x, y, radii=[5.0], loss="margin")
    start = pgd(model, x, y, radii=[5.0], loss="margin", n_steps=0)
    assert (attack.losses > start.losses).all()


def test_single_precision_stays_single():
    model, x, y = network()
    attack = pgd(model.float(), x.float(), y, radii=[0.5])
    assert attack.points.dtype == torch.float32


def test_batch_statistics_are_refused():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    with pytest.raises(ValueError, match="pgd: model must be in evaluation mode"):
        pgd(model, torch.randn(5, 4), torch.zeros(5, dtype=torch.long), radii=1.0)


def test_dropout_is_warned_of_and_leaves_the_random_state_alone():
    model, x, y = network()
    model.insert(1, nn.Dropout(0.5))
    before = torch.get_rng_state()
    told = r"pgd: Dropout '1' is in training mode"
    with pytest.warns(UserWarning, match=told) as warned:
        pgd(model, x, y, radii=torch.tensor([0.5]))
    assert warned[0].filename == __file__
    assert torch.equal(torch.get_rng_state(), before)


def test_models_without_a_gradient_are_refused():
    _, x, y = network()
    with pytest.raises(ValueError, match="differentiable in its input"):
        pgd(lambda z: z.detach() @ torch.ones(4, 3).double(), x, y, radii=1.0)
    with pytest.raises(TypeError, match="callable, or with a method pull_back"):
        pgd(object(), x, y, radii=1.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"radii": []}, "radii must be at least one"),
        ({"radii": [-1.0]}, "radii must be finite and at least 0, got -1.0"),
        ({"radii": float("nan")}, "radii must be finite"),
        ({"norm": "l1"}, "norm must be 'linf' or 'l2', got 'l1'"),
        ({"loss": "hinge"}, "loss must be one of 'cross_entropy'"),
        ({"start": "x"}, "start must be 'uniform' or 'center'"),
        ({"keep": "first"}, "keep must be 'last' or 'best'"),
        ({"n_restarts": 0}, "n_restarts must be at least 1"),
        ({"low": 0.0}, "low must be such that x lies in the range"),
        ({"high": torch.zeros(3)}, "high must be a number, or of shape"),
        ({"chunk_size": 0}, "chunk_size must be a positive integer"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, message):
    model, x, y = network()
    with pytest.raises(ValueError, match=message):
        pgd(model, x, y, **{"radii": [0.5], **wrong})


@pytest.mark.cuda
def test_a_generator_of_the_processor_gives_every_device_the_same_starts():
    model, x, y = network()
    here = pgd(model, x, y, radii=[0.5, 1.0], n_restarts=2)
    there = pgd(model.cuda(), x.cuda(), y, radii=[0.5, 1.0], n_restarts=2)
    assert there.points.device.type == "cuda"
    # float64 sums in another order
    torch.testing.assert_close(there.points.cpu(), here.points, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"radii": None}, "radii must be a number, or several, got None"),
        ({"radii": "0.1"}, "radii must be a number, or several, got '0.1'"),
        ({"low": "none"}, "low must be a number or a tensor, got 'none'"),
        ({"generator": 3}, r"generator must be .* got 3\. Say torch.Generator"),
        ({"n_restarts": 1.5}, "n_restarts must be an integer, got 1.5"),
    ],
)
def test_settings_of_another_kind_are_refused(wrong, message):
    model, x, y = network()
    with pytest.raises(TypeError, match=message):
        pgd(model, x, y, **{"radii": [0.5], **wrong})


def test_arrays_are_taken_as_radii_and_ranges():
    model, x, y = network()
    low = x.amin(0) - 0.1
    expected = pgd(model, x, y, radii=[0.5], low=low)
    found = pgd(model, x, y, radii=np.array(0.5), low=low.numpy())
    assert torch.equal(found.points, expected.points)


def test_labels_need_not_be_a_tensor_but_what_is_attacked_must_be_a_model():
    model, x, y = network()
    expected = pgd(model, x, y, radii=0.5)
    for labels in (y.numpy(), y.tolist(), pd.Series(y.numpy())):
        assert torch.equal(pgd(model, x, labels, radii=0.5).points, expected.points)
    with pytest.raises(TypeError, match=r"^pgd: y must be a tensor, or an array, of"):
        pgd(model, x, ["cat"] * len(x), radii=0.5)
    with pytest.raises(TypeError, match="method pull_back, got ndarray"):
        pgd(np.eye(3), x, y, radii=0.5)


def test_radii_beyond_a_float_are_refused():
    model, x, y = network()
    with pytest.raises(
        ValueError, match=r"^pgd: radii must be finite.*got an integer of"
    ):
        pgd(model, x, y, radii=[0.5, 10**400])
    with pytest.raises(ValueError, match=r"^pgd: step_size must be finite"):
        pgd(model, x, y, radii=0.5, step_size=10**400)
    with pytest.raises(
        ValueError, match=r"^cosine_steps: total must be positive and fin"
    ):
        cosine_steps(3, total=10**400)
    words = "^minimal_radius: max_radius must be positive and finite, got an integer of"
    with pytest.raises(ValueError, match=words):
        minimal_radius(model, x, y, max_radius=10**400)


def test_what_is_missing_is_refused_and_not_counted_as_broken():
    model, x, y = network()
    x = x.clone()
    x[0, 0] = torch.nan
    with pytest.raises(ValueError, match="x must be finite, got NaN or infinity"):
        pgd(model, x, y, radii=0.5)
