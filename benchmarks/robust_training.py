"""Epochs of ten-step adversarial training, against a plain eager loop.

    python benchmarks/robust_training.py                  a small network, on the CPU
    python benchmarks/robust_training.py --device cuda    WRN-28-10 and WRN-28-2
    python benchmarks/robust_training.py --quick          little of it: does it run?

Both do the same work: batches of 128 random images of 32 x 32, ten steps of PGD on the
cross-entropy through the network in evaluation mode, a step of SGD on what came out,
convolutions in bfloat16 on CUDA and channels last. The plain loop is what one writes
first: autocast, `autograd.grad`, `optimizer.step`. Ours is `RobustTrainer`: the copy
that is attacked is compiled and recorded, the rest is recorded. Seconds of an epoch are
the median over the epochs after the first two, in turns. The objective "dkl", which
runs the network twice, is timed besides. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normalign.nn import WideResNet
from normalign_reproduction.provenance import commit
from normalign_reproduction.robust import Recipe, RobustTrainer


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(n: int) -> tuple[Tensor, Tensor]:
    return torch.rand(n, 3, 32, 32, generator=seeded(0)), torch.arange(n) % 10


def plain_epoch(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    recipe: Recipe,
) -> None:
    """The loop one writes first."""
    low = torch.autocast(x.device.type, torch.bfloat16, recipe.precision == "bf16")
    order = torch.randperm(len(x), device=x.device)
    for index in order.split(recipe.batch_size):
        clean, target = x[index], y[index]
        network.eval()
        point = clean + recipe.radius * (2 * torch.rand_like(clean) - 1)
        for _ in range(recipe.n_steps):
            point = point.detach().requires_grad_()
            with low:
                logits = network(point)
            loss = F.cross_entropy(logits.float(), target)
            slope = torch.autograd.grad(loss, point)[0]
            point = point.detach() + recipe.step_size * slope.sign()
            near = torch.clamp(point, clean - recipe.radius, clean + recipe.radius)
            point = near.clamp(0, 1)
        network.train()
        optimizer.zero_grad()
        with low:
            logits = network(point)
        F.cross_entropy(logits.float(), target).backward()
        optimizer.step()


class Plain:
    """The eager loop, an epoch at a time."""

    def __init__(
        self, widen: int, depth: int, n: int, recipe: Recipe, device: str
    ) -> None:
        x, y = pictures(n)
        layout = torch.channels_last if device == "cuda" else torch.preserve_format
        self.x = x.to(device).to(memory_format=layout)
        self.y, self.recipe = y.to(device), recipe
        network = WideResNet(depth, widen, generator=seeded(1)).to(device)
        self.network = network.to(memory_format=layout)  # pyright: ignore
        self.optimizer = torch.optim.SGD(network.parameters(), 0.01, 0.9)

    def epoch(self) -> None:
        plain_epoch(self.network, self.optimizer, self.x, self.y, self.recipe)
        if self.x.is_cuda:
            torch.cuda.synchronize()


class Ours:
    """A trainer, an epoch at a time."""

    def __init__(
        self, widen: int, depth: int, n: int, recipe: Recipe, device: str
    ) -> None:
        network = WideResNet(depth, widen, generator=seeded(1))
        self.trainer = RobustTrainer(
            network, *pictures(n), recipe, seed=0, device=device
        )

    def epoch(self) -> None:
        for _ in range(self.trainer._batches):
            self.trainer._take_step()
        self.trainer._finish_epoch()  # waits for the device


def timed(contestants: dict[str, Any], turns: int) -> dict[str, dict[str, float]]:
    """Median seconds of an epoch of each, in turns, and those of the first."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(turns + 2):
        names = list(contestants)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            begun = time.perf_counter()
            contestants[name].epoch()
            seconds[name].append(time.perf_counter() - begun)
    return {
        name: {"first": values[0], "median": statistics.median(values[2:])}
        for name, values in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--commit", default=None)
    parser.add_argument("--save", type=Path)
    arguments = parser.parse_args()
    cuda = arguments.device == "cuda"
    torch.backends.cudnn.benchmark = True
    n = 64 if arguments.quick else arguments.images
    cases = [("wrn28-10", 28, 10), ("wrn28-2", 28, 2)] if cuda else [("wrn10-1", 10, 1)]
    records = []
    for name, depth, widen in cases:
        common = {
            "epochs": 10_000, "precision": "bf16" if cuda else "float32",
            "n_steps": 2 if arguments.quick else 10, "learning_rate": 0.01,
            "batch_size": 32 if arguments.quick else 128,
        }  # fmt: skip
        pgd = Recipe("pgd", averaging=0.0, augment="none", **common)
        made = (widen, depth, n)
        contestants = {
            "plain, pgd": Plain(*made, pgd, arguments.device),
            "ours, pgd": Ours(*made, pgd, arguments.device),
            "ours, dkl": Ours(*made, Recipe(**common), arguments.device),
        }
        found = timed(contestants, 1 if arguments.quick else arguments.turns)
        ratio = found["plain, pgd"]["median"] / found["ours, pgd"]["median"]
        for who, one in found.items():
            print(
                f"{name:10s} {who:12s} first epoch {one['first']:7.2f} s, "
                f"later {one['median']:.3f} s"
            )
        print(f"{name:10s} ours is {ratio:.2f} times as fast as the plain loop")
        records.append({"network": name, "images": n, "seconds": found, "ratio": ratio})
    device = torch.cuda.get_device_name() if cuda else platform.processor()
    result = {
        "benchmark": "robust_training", "commit": arguments.commit or commit(),
        "torch": torch.__version__, "device": device, "quick": arguments.quick,
        "records": records,
    }  # fmt: skip
    if arguments.save:
        arguments.save.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
