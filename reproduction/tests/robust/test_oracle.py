"""Whole runs against loops that are written down as the recipes are told."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from normalign.nn import WideResNet
from normalign_reproduction.robust import Recipe, RobustTrainer
from normalign_reproduction.robust.draws import Draws

CPU = torch.device("cpu")
N, K, BATCH = 20, 4, 8  # two batches of eight, and one of four


def images():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(N, 1, 8, 8, generator=generator), torch.arange(N) % K


def wide():
    generator = torch.Generator().manual_seed(3)
    return WideResNet(10, 1, n_classes=K, n_channels=1, generator=generator)


def attacked(network, x, start, radius, step, n_steps):
    """Signed steps up the divergence from the clean answers, at rest."""
    resting = copy.deepcopy(network).eval()
    clean = resting(x).softmax(1).detach()
    z = (x + start).clamp(x - radius, x + radius).clamp(0, 1)
    for _ in range(n_steps):
        z = z.detach().requires_grad_()
        kl = F.kl_div(resting(z).log_softmax(1), clean, reduction="sum")
        (slope,) = torch.autograd.grad(kl, z)
        z = z.detach() + step * slope.sign()
        z = torch.min(torch.max(z, x - radius), x + radius).clamp(0, 1)
    return z.detach()


def dkl(adv, nat, weights, soft, square):
    """Pair by pair, as the paper of Cui et al. writes it."""
    gaps = (nat[:, :, None] - nat[:, None]) - (adv[:, :, None] - adv[:, None])
    pairs = weights[:, :, None] * weights[:, None]
    squares = 0.25 * (pairs * gaps**2).sum() / pairs.sum()
    answers = nat.softmax(1).detach()
    return square * squares - soft * (answers * adv.log_softmax(1)).sum(1).mean()


def perturbed(network, loss, strength):
    """A copy whose weights are moved; the statistics are those of the network."""
    proxy = copy.deepcopy(network)
    climbed = loss(proxy)
    moved = copy.deepcopy(network)
    pairs = zip(proxy.parameters(), moved.parameters(), strict=True)
    slopes = torch.autograd.grad(climbed, list(proxy.parameters()))
    with torch.no_grad():
        for (_, weight), slope in zip(pairs, slopes, strict=True):
            if weight.ndim > 1:
                weight += strength * weight.norm() * slope / slope.norm()
    return moved


RECIPES = {
    "text": Recipe(epochs=4, batch_size=BATCH, n_steps=2, averaging=0.9,
                   averaged_from=0.5, augment="none", learning_rate=0.02,
                   square_weight=2.0, temperature=3.0),
    "released": Recipe(epochs=3, batch_size=BATCH, n_steps=2, step_size=8 / 255,
                       ramp=True, perturbation=0.05, perturbed_from=2, averaging=0.9,
                       averaged_from=0.4, learning_rate=0.02),
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_training_by_dkl_is_the_loop_that_the_recipe_tells(name):
    recipe, (x, y) = RECIPES[name], images()
    trainer = RobustTrainer(wide(), x, y, recipe, seed=7)
    history = trainer.train(evaluate=lambda epoch: True)
    network, draws = wide().train(), Draws(recipe, seed=7, device=CPU)
    velocity = [torch.zeros_like(p) for p in network.parameters()]
    weights, average, step, losses = torch.full((K, K), 1 / K), None, 0, []
    for epoch in range(1, recipe.epochs + 1):
        rate = recipe.learning_rate / 2
        rate *= 1 + math.cos(math.pi * epoch / (recipe.epochs + 1))
        share = epoch / recipe.epochs if recipe.ramp else 1
        radius, length = share * recipe.radius, share * recipe.step_size
        sums, total = torch.zeros(K, K), 0.0
        for index in draws.order(epoch, N).split(BATCH):
            a, labels = draws.images(x[index], step), y[index]
            start = draws.starts(a, step, radius)
            z = attacked(network, a, start, radius, length, recipe.n_steps)
            seen = []

            def loss(model, a=a, z=z, labels=labels, weights=weights, seen=seen):
                adv, nat = model(z), model(a)
                seen[:] = [nat]
                robust = dkl(
                    adv, nat, weights[labels], recipe.soft_weight, recipe.square_weight
                )
                return F.cross_entropy(nat, labels) + robust

            used = network
            if recipe.perturbation and epoch >= recipe.perturbed_from:
                used = perturbed(network, loss, recipe.perturbation)
            value = loss(used)
            slopes = torch.autograd.grad(value, list(used.parameters()))
            with torch.no_grad():
                for own, moved in zip(network.buffers(), used.buffers(), strict=True):
                    own.copy_(moved)
                for p, v, g in zip(network.parameters(), velocity, slopes, strict=True):
                    v.mul_(0.9).add_(g + 5e-4 * p)
                    p -= rate * v
                tempered = (seen[0] / recipe.temperature).softmax(1)
                for c, row in zip(labels.tolist(), tempered, strict=True):
                    sums[c] += row
                now = {k: v.clone() for k, v in network.state_dict().items()}
                began = int(recipe.averaged_from * recipe.epochs)
                if epoch == began:
                    average = now
                elif epoch > began:
                    for key, new in now.items():
                        if new.is_floating_point():
                            average[key] = 0.9 * average[key] + 0.1 * new
            total += float(value.detach()) * len(index)
            step += 1
        weights = sums / sums.sum(1, keepdim=True)
        losses.append(total / N)
    # A slope that is zero but for rounding has either sign and moves its pixel the
    # other way, which a dozen steps make larger: not the last digits are compared.
    assert history["loss"] == pytest.approx(losses, rel=2e-3)
    assert history["loss"][0] == pytest.approx(losses[0], rel=1e-5)
    torch.testing.assert_close(
        trainer._tables["class_weights"], weights, rtol=0, atol=2e-3
    )
    start = wide().state_dict()
    for found, expected in (
        (trainer.network.state_dict(), network.state_dict()),
        (trainer.averaged.state_dict(), average),
    ):
        assert apart(found, expected) < 0.05 * apart(start, expected)


def apart(one, other):
    """The distance of all weights and statistics of two networks."""
    real = [key for key, value in other.items() if value.is_floating_point()]
    squares = [float((one[key] - other[key]).square().sum()) for key in real]
    return math.sqrt(sum(squares))


def test_the_penalty_is_that_of_the_paper_on_the_images_of_the_step():
    x, y = images()
    recipe = Recipe("plain", epochs=1, batch_size=BATCH, penalty_weight=0.05,
                    penalty_every=2, averaging=0.0)  # fmt: skip

    def flat():
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, K))

    trainer = RobustTrainer(flat(), x, y, recipe, seed=7)
    trainer.train()
    network, draws = flat(), Draws(recipe, seed=7, device=CPU)
    optimizer = torch.optim.SGD(
        network.parameters(), recipe.rate(1), momentum=0.9, weight_decay=5e-4
    )
    for step, index in enumerate(draws.order(1, N).split(BATCH)):
        a = draws.images(x[index], step).requires_grad_()
        answers = network(a)
        loss = F.cross_entropy(answers, y[index])
        if step % 2 == 0:
            noise = draws.probes(a, K, step)[0]
            v = noise / noise.norm(dim=1, keepdim=True) * math.sqrt(K)
            (row,) = torch.autograd.grad((answers * v).sum(), a, create_graph=True)
            offset = (answers * v).sum(1) - (row * a).sum((1, 2, 3))
            penalty = row.square().sum((1, 2, 3)) + offset.square()
            loss = loss + 0.05 * 2 * penalty.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for own, other in zip(
        trainer.network.parameters(), network.parameters(), strict=True
    ):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)
