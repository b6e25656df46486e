"""The published update rules, written naively: one loop, no state object."""

from __future__ import annotations

import torch
from torch import nn

from normalign.optim import Grokfast, GrokfastWindow, OrthoGrad

# Every filter in the settings that the shared tests run it in.
FILTERS = {
    "ema": lambda optimizer: Grokfast(optimizer, decay=0.8, strength=0.1),
    "window": lambda optimizer: GrokfastWindow(optimizer, window=4, strength=2.0),
    "eager window": lambda optimizer: GrokfastWindow(
        optimizer, window=4, strength=2.0, warmup=False
    ),
    "projection": OrthoGrad,
    "rescaled projection": lambda optimizer: OrthoGrad(optimizer, rescale=True),
}

OPTIMIZERS = {
    "AdamW": lambda weights: torch.optim.AdamW(weights, lr=1e-2, weight_decay=0.1),
    "SGD": lambda weights: torch.optim.SGD(
        weights, lr=1e-2, momentum=0.9, weight_decay=0.1
    ),
}


def naive_ema(decay=0.8, strength=0.1):
    averages = {}

    def rule(position, weight, gradient):
        average = averages.get(position, gradient)
        averages[position] = decay * average + (1 - decay) * gradient
        return gradient + strength * averages[position]

    return rule


def naive_window(window=4, strength=2.0, warmup=True):
    seen = {}

    def rule(position, weight, gradient):
        last = seen[position] = [*seen.get(position, []), gradient][-window:]
        if warmup and len(last) < window:
            return gradient
        return gradient + strength * sum(last) / len(last)

    return rule


def naive_projection(rescale=False):
    def rule(position, weight, gradient):
        share = (weight * gradient).sum() / ((weight * weight).sum() + 1e-30)
        left = gradient - share * weight
        return left * (gradient.norm() / (left.norm() + 1e-30)) if rescale else left

    return rule


RULES = {
    "ema": naive_ema,
    "window": naive_window,
    "eager window": lambda: naive_window(warmup=False),
    "projection": naive_projection,
    "rescaled projection": lambda: naive_projection(rescale=True),
}


def network(dtype=torch.float64, seed=0):
    """A small network; no tensor of one element, whose projection is rounding."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / 2)
    return model


def batch(step, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(8, 5, generator=generator).to(dtype)
    return x, torch.randint(0, 3, (8,), generator=generator)


def backward(model, step):
    x, y = batch(step, next(model.parameters()).dtype)
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss


def train(model, optimizer, steps):
    for step in steps:
        backward(model, step)
        optimizer.step()


def train_naively(model, optimizer, steps, rule):
    """Training in which the rule replaces every gradient by hand."""
    for step in steps:
        backward(model, step)
        for position, weight in enumerate(model.parameters()):
            weight.grad = rule(position, weight.detach(), weight.grad)
        optimizer.step()


def same_weights(first, second, **tolerance):
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one, other, **tolerance)
