"""The attack beside those of foolbox and of the Adversarial Robustness Toolbox."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from normalign.robustness import pgd

pytestmark = pytest.mark.full

# Three radii in all: from every start the far side can be reached.
RADIUS, N_STEPS, SHARE = 0.2, 20, 0.15
BOUNDS = (-6.0, 6.0)


@pytest.fixture(scope="module")
def trained():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 6, generator=generator).clamp(*BOUNDS)
    y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 0.5).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval(), x, y


def ours(trained, norm, start):
    model, x, y = trained
    return pgd(
        model, x, y, radii=RADIUS, norm=norm, n_steps=N_STEPS, step_size=SHARE,
        start=start, low=BOUNDS[0], high=BOUNDS[1],
    )  # fmt: skip


def by_foolbox(trained, norm, random_start):
    foolbox = pytest.importorskip("foolbox")
    model, x, y = trained
    kind = {"linf": foolbox.attacks.LinfPGD, "l2": foolbox.attacks.L2PGD}[norm]
    attack = kind(rel_stepsize=SHARE, steps=N_STEPS, random_start=random_start)
    wrapped = foolbox.PyTorchModel(model, bounds=BOUNDS, device="cpu")
    return attack(wrapped, x, y, epsilons=[RADIUS])[0][0]


def by_art(trained, norm, random_start):
    pytest.importorskip("art")
    from art.attacks.evasion import ProjectedGradientDescent
    from art.estimators.classification import PyTorchClassifier

    model, x, y = trained
    wrapped = PyTorchClassifier(
        model, loss=nn.CrossEntropyLoss(), input_shape=(6,), nb_classes=3,
        clip_values=BOUNDS, device_type="cpu",
    )  # fmt: skip
    attack = ProjectedGradientDescent(
        wrapped, norm={"linf": np.inf, "l2": 2}[norm], eps=RADIUS,
        eps_step=SHARE * RADIUS, max_iter=N_STEPS, num_random_init=int(random_start),
        batch_size=400, verbose=False,
    )  # fmt: skip
    return torch.as_tensor(attack.generate(x.numpy(), y.numpy()))


PEERS = pytest.mark.parametrize("peer", [by_foolbox, by_art])
IN_NORMS = pytest.mark.parametrize("norm", ["linf", "l2"])


@PEERS
@IN_NORMS
def test_from_the_center_all_end_at_the_same_points(trained, norm, peer):
    attack = ours(trained, norm, "center")
    theirs = peer(trained, norm, False)
    assert attack.broken[0][attack.clean].any()
    # float32, twenty steps; foolbox gives samples wrong from the start back unmoved
    right = attack.clean
    torch.testing.assert_close(
        attack.points[0][right], theirs[right], rtol=0, atol=1e-5
    )


@PEERS
@IN_NORMS
def test_from_random_starts_all_succeed_as_often(trained, norm, peer):
    model, _, y = trained
    np.random.seed(0)  # noqa: NPY002  (what the toolbox draws from)
    attack = ours(trained, norm, "uniform")
    broken = model(peer(trained, norm, True)).argmax(1) != y
    disagree = int((broken != attack.broken[0]).sum())
    gained = int(broken.sum()) - int(attack.broken[0].sum())
    # Only samples that depend on the start may differ, and in both directions alike:
    # three standard deviations of a sign test.
    assert abs(gained) <= 3 * math.sqrt(max(disagree, 1))
    assert disagree <= 0.05 * len(y)
