"""A training step with the GrokAlign penalty against a plain one.

    python benchmarks/grokalign_step.py                 the MLP, about half a minute
    python benchmarks/grokalign_step.py --device cuda   with ResNet-18, float32 and bf16
    python benchmarks/grokalign_step.py small --rounds 200

A step is: forward, cross-entropy, backward, AdamW. Every contestant has a network and
an optimizer of its own, from the same start, and they take turns of four steps each,
round after round, in an order that moves on by one: what disturbs the machine disturbs
all of them. Printed: the median over the rounds of milliseconds a step, its ratio to
the plain step's, and on CUDA the peak memory above what was held between turns. The
last line is JSON.

`released` is the form of the paper's experiments, written down here once more: one
pull-back by autograd and a push-forward along x for the offset. It knows no Jacobian
of one sample where batch normalisation takes its statistics from the batch, so its
ResNet is in evaluation mode, which is less work than the others do.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normalign.nn import mlp, resnet18
from normalign.regularizers import GrokAlign
from normalign_reproduction.provenance import commit

STEPS_PER_TURN = 4  # a multiple of every=4
WEIGHT = 0.01

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    title: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    n_rounds: int
    half: bool = False  # bfloat16 by autocast
    compiled: bool = False  # with the compiled contestants
    only_held: tuple[str, ...] = ()  # who needs batch normalisation in eval mode


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(*widths: int) -> Callable[[], nn.Module]:
    return lambda: mlp(list(widths), generator=seeded(0))


CASES = {
    "a": Case(
        "MLP 784-512-512-10, batch 512", network(784, 512, 512, 10), (512, 784), 40
    ),
    "small": Case(
        "small MLP 784-200-200-200-10, batch 196",
        network(784, 200, 200, 200, 10),
        (196, 784),
        100,
    ),
}
ON_CUDA = {
    "a": Case(**{**vars(CASES["a"]), "n_rounds": 100, "compiled": True}),
    "small": Case(**{**vars(CASES["small"]), "compiled": True}),
    "b": Case(
        "ResNet-18, 3x32x32, batch 256, float32",
        lambda: resnet18(generator=seeded(0)),
        (256, 3, 32, 32),
        15,
        only_held=("released",),
    ),
}
ON_CUDA["b16"] = Case(
    **{
        **vars(ON_CUDA["b"]),
        "title": "ResNet-18, 3x32x32, batch 256, bf16 autocast",
        "half": True,
    }
)
DEFAULT = {"cpu": ["a"], "cuda": list(ON_CUDA)}


def plain(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def released(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Task + weight (mean |J|_F + mean |b|^2), as the released scripts compute it."""
    point = x.detach().clone().requires_grad_()
    logits = model(point)
    k = logits.shape[1]
    v = F.normalize(torch.randn_like(logits), dim=1)
    (row,) = torch.autograd.grad(logits, point, v, create_graph=True)
    jacobian = (k * row.flatten(1).square().sum(1)).clamp(min=1e-8).sqrt()
    output, pushed = torch.func.jvp(model, (x,), (x,))
    offset = (output - pushed).square().sum(1)
    return F.cross_entropy(logits, y) + WEIGHT * (jacobian.mean() + offset.mean())


def penalised(**options: Any) -> Loss:
    penalty = GrokAlign(WEIGHT, **options)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        logits, value = penalty(model, x)
        return F.cross_entropy(logits, y) + value

    return loss


def contestants(case: Case) -> dict[str, Loss]:
    losses: dict[str, Loss] = {
        "plain": plain,
        "released": released,
        "ours, power 2": penalised(power=2),
        "ours, power 1": penalised(power=1),
        "ours, every 4": penalised(power=2, every=4),
    }
    if case.compiled:
        losses["plain, compiled"] = torch.compile(plain)
        losses["ours, compiled"] = penalised(power=2, compile=True)
        graphs = "reduce-overhead"  # torch's own CUDA graphs
        losses["plain, graphs"] = torch.compile(plain, mode=graphs)
        losses["ours, graphs"] = penalised(power=2, compile=graphs)
    return losses


@dataclass
class Contestant:
    """A network, its optimizer, a loss, and what its turns have cost."""

    loss: Loss
    model: nn.Module
    half: bool
    milliseconds: list[float] = field(default_factory=list)
    megabytes: float = 0.0
    failed: str | None = None

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-3, foreach=True
        )

    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        half = torch.autocast(x.device.type, torch.bfloat16, enabled=self.half)
        with half if self.half else contextlib.nullcontext():
            loss = self.loss(self.model, x, y)
        loss.backward()
        self.optimizer.step()

    def turn(self, x: Tensor, y: Tensor, *, counts: bool) -> None:
        """Take a few steps; those that only warm up measure the memory instead."""
        if self.failed is not None:
            return
        cuda = x.device.type == "cuda"
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        start = time.perf_counter()
        try:
            for _ in range(STEPS_PER_TURN):
                self.step(x, y)
        except (RuntimeError, ValueError, TypeError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self.failed = lines[0][:120]
            return
        if cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        self.optimizer.zero_grad()
        if counts:
            self.milliseconds.append(1e3 * seconds / STEPS_PER_TURN)
        elif cuda:
            self.megabytes = (torch.cuda.max_memory_allocated() - held) / 2**20


def measured(name: str, case: Case, device: str, n_rounds: int | None) -> dict:
    x = torch.randn(case.shape, generator=seeded(1)).to(device)
    y = torch.randint(0, 10, (len(x),), generator=seeded(2)).to(device)
    start = case.build().to(device).train()
    entered: dict[str, Contestant] = {}
    for label, loss in contestants(case).items():
        model = copy.deepcopy(start).train(label not in case.only_held)
        entered[label] = Contestant(loss, model, case.half)
    order = list(entered.values())
    for contestant in order:
        for _ in range(3):
            contestant.turn(x, y, counts=False)
    n_rounds = n_rounds or case.n_rounds
    for i in range(n_rounds):
        shift = i % len(order)
        for contestant in order[shift:] + order[:shift]:
            contestant.turn(x, y, counts=True)
    base = statistics.median(entered["plain"].milliseconds)
    return {
        "case": name,
        "title": case.title,
        "rounds": n_rounds,
        "contestants": {
            label: record(contestant, base, label in case.only_held)
            for label, contestant in entered.items()
        },
    }


def record(contestant: Contestant, base: float, held: bool) -> dict[str, Any]:
    if contestant.failed is not None:
        return {"failed": contestant.failed}
    median = statistics.median(contestant.milliseconds)
    low, _, high = statistics.quantiles(contestant.milliseconds, n=4)
    result = {"ms": median, "ms_quartiles": [low, high], "ratio": median / base}
    if contestant.megabytes:
        result["megabytes"] = contestant.megabytes
    if held:
        result["note"] = "batch normalisation in evaluation mode"
    return result


def show(found: dict[str, Any]) -> None:
    print(f"({found['case']}) {found['title']}")
    for label, row in found["contestants"].items():
        if "failed" in row:
            print(f"  {label:18}failed: {row['failed']}", flush=True)
            continue
        memory = f"{row['megabytes']:9.0f} MB" if "megabytes" in row else ""
        note = f"   {row['note']}" if "note" in row else ""
        line = f"  {label:18}{row['ms']:10.3f} ms{row['ratio']:8.2f}x{memory}{note}"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, help="instead of each case's own number")
    parser.add_argument("--save", type=Path, help="write the JSON to this file too")
    parser.add_argument("--commit", help="what is measured, where git cannot tell")
    options = parser.parse_args()
    cuda = options.device == "cuda"
    cases = ON_CUDA if cuda else CASES
    records = []
    for name in options.cases or DEFAULT[options.device]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = measured(name, cases[name], options.device, options.rounds)
        ours = [str(w.message) for w in caught if "GrokAlign" in str(w.message)]
        if ours:
            found["warnings"] = ours
        records.append(found)
        show(found)
        for text in ours:
            print(f"  warned: {text}", flush=True)
    result = {
        "benchmark": "grokalign_step",
        "device": torch.cuda.get_device_name() if cuda else platform.machine(),
        "threads": torch.get_num_threads(), "cores": os.cpu_count(),
        "torch": torch.__version__, "python": platform.python_version(),
        "tf32": {
            "matmul": torch.backends.cuda.matmul.allow_tf32,
            "convolution": torch.backends.cudnn.allow_tf32,
        },
        "commit": options.commit or commit(), "records": records,
    }  # fmt: skip
    if options.save:
        options.save.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
