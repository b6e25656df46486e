"""Seeds in lockstep, XOR in its span, and the whole of Table 1.

    python benchmarks/ensemble.py                   (a) and (b), about 10 minutes
    python benchmarks/ensemble.py --device cuda     with (c): all of Table 1
    python benchmarks/ensemble.py --only b --full   the direct XOR run to its end, too
    python benchmarks/ensemble.py --quick           little of each: does it run?

(a) Modular addition, ten seeds, against training them one after the other: in a bare
    eager loop, by `normalign.training.train`, and in the engine with one member at a
    time. A turn is two epochs of all seeds and one evaluation of each, after warm-up;
    all take turns, in an order that moves on by one, and medians are compared.
(b) XOR, 40000 inputs, in the span of first weights and data against directly. The
    reduced run really goes to its grokked epoch. The direct one takes a few steps and
    evaluations, and what it would need to the same epoch is worked out from their
    medians; with --full it is run. At 8000 inputs both are run, for the same epochs.
    Reducing weights and data counts; drawing them does not, being the same for both.
(c) Five tasks, four methods, ten seeds, the released settings. MNIST is looked for in
    $NORMALIGN_DATA. Seconds count from the first line of set-up, with CUDA's own start.
    Those of a method are when the last of its seeds had finished, all tasks running.

Each part runs in a process of its own. The last line is JSON.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normalign.data import xor_clusters, xor_noise
from normalign.nn import mlp
from normalign.regularizers import GrokAlign
from normalign.training import (
    Ensemble,
    Trained,
    accuracy,
    is_evaluated,
    rules,
    span_reduction,
    train,
    train_together,
)
from normalign.training._scheduler import Record
from normalign.training.history import History
from normalign_reproduction.items.table1.experiment import (
    METHODS,
    acceleration_ensemble,
)
from normalign_reproduction.items.table1.rows import acceleration_rows
from normalign_reproduction.items.table1.tasks import (
    TASKS,
    Instance,
    Task,
    task,
)
from normalign_reproduction.provenance import commit

COMPARED = ("baseline", "grokalign")
EPOCHS_PER_TURN = 2


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ensemble(
    task: Task, method: str, instances: dict[int, Instance], device: str
) -> Ensemble:
    given = replace(task, build=lambda seed, place: instances[seed])
    return acceleration_ensemble(
        given, methods=(method,), seeds=list(instances), device=device
    )


def grokked_at(task: Task, run: Trained) -> int | None:
    row = run.history.first(task.has_grokked)
    return None if row is None else int(row["epoch"])


# --- the contestants --------------------------------------------------------------


class Engine:
    """Some seeds of a task under one method, in one stack."""

    def __init__(
        self, task: Task, method: str, instances: dict[int, Instance], device: str
    ) -> None:
        records = [Record(History()) for _ in instances]
        (group,) = ensemble(task, method, instances, device).groups(records)
        self.stack = group.stack

    def advance(self, epochs: int) -> None:
        self.stack.advance(epochs)
        self.stack.wait()

    def evaluate(self) -> list[list[float]]:
        values = self.stack.scores()
        self.stack.wait()
        return values.tolist()

    def turn(self, epochs: int) -> None:
        self.stack.advance(epochs)
        self.evaluate()


class Eager:
    """One network in a plain loop: autograd, torch's optimizer, nothing checked."""

    def __init__(
        self, task: Task, method: str, instance: Instance, device: str
    ) -> None:
        self.task = task
        self.model = copy.deepcopy(instance.network).to(device)
        dtype = next(self.model.parameters()).dtype
        self.data = instance.data.to(device, dtype)
        self.sets = [
            (self.data.x_train, self.data.y_train),
            (self.data.x_test, self.data.y_test),
            *((x.to(device), y.to(device)) for x, y in instance.also.values()),
        ]
        self.weight = task.weight if method == "grokalign" else 0.0
        self.penalty = GrokAlign.released(self.weight) if self.weight else None
        self.optimizer = torch_optimizer(task.optimizer, self.model)
        self.loss = CRITERIA[task.loss]

    def advance(self, epochs: int) -> None:
        x, y = self.data.x_train, self.data.y_train
        size = self.task.batch_size
        for _ in range(epochs):
            if size is None:
                self._step(x, y)
                continue
            order = torch.randperm(len(x), device=x.device)
            for index in order.split(size):
                self._step(x[index], y[index])
        settle(x)

    def _step(self, x: Tensor, y: Tensor) -> None:
        if self.weight:
            logits, penalty = released(self.model, x)
            loss = self.loss(logits, y) + self.weight * penalty
        else:
            loss = self.loss(self.model(x), y)
        self.optimizer.zero_grad()
        # In the parameters alone: the penalty's inputs want no gradient of the loss.
        loss.backward(inputs=list(self.model.parameters()))
        self.optimizer.step()

    @torch.no_grad()
    def evaluate(self) -> list[float]:
        found = []
        for x, y in self.sets:
            output = self.model(x)
            found += [float(self.loss(output, y)), float(accuracy(output, y))]
        return found

    def turn(self, epochs: int) -> None:
        self.advance(epochs)
        self.evaluate()


class Loop(Eager):
    """The same by `normalign.training.train` and `GrokAlign.released`."""

    def turn(self, epochs: int) -> None:
        train(
            self.model, self.data, loss=self.loss, optimizer=self.optimizer,
            epochs=epochs, batch_size=self.task.batch_size or len(self.data.x_train),
            seed=0, penalty=self.penalty, evaluate=lambda epoch: False,
        )  # fmt: skip


def released(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs, and mean |J|_F + mean |b|^2 as the released scripts compute it."""
    point = x.detach().clone().requires_grad_()
    logits = model(point)
    v = F.normalize(torch.randn_like(logits), dim=1)
    (row,) = torch.autograd.grad(logits, point, v, create_graph=True)
    square = logits.shape[1] * row.square().sum(1)
    output, pushed = torch.func.jvp(model, (x,), (x,))
    offset = (output - pushed).square().sum(1)
    return logits, square.clamp(min=1e-8).sqrt().mean() + offset.mean()


def torch_optimizer(
    rule: rules.SGD | rules.AdamW, model: nn.Module
) -> torch.optim.Optimizer:
    common = {"lr": rule.learning_rate, "weight_decay": rule.weight_decay}
    if isinstance(rule, rules.SGD):
        momentum = rule.momentum
        return torch.optim.SGD(
            model.parameters(), momentum=momentum, foreach=True, **common
        )
    betas = rule.beta1, rule.beta2
    return torch.optim.AdamW(
        model.parameters(), betas=betas, eps=rule.eps, foreach=True, **common
    )


CRITERIA: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": F.cross_entropy,
    "squared_error": lambda output, y: F.mse_loss(output.flatten(), y),
}


def warm_up(device: str) -> int:
    """How many rounds do not count: on CUDA graphs are captured in the first ones."""
    return 1 if device == "cpu" else 3


def settle(like: Tensor) -> None:
    if like.device.type == "cuda":
        torch.cuda.synchronize()


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - start


# --- (a) lockstep -----------------------------------------------------------------


def part_a(options: argparse.Namespace) -> dict[str, Any]:
    quick, device = options.quick, options.device
    n_seeds = 3 if quick else 10
    n_rounds = options.rounds or (1 if quick else 7 if device == "cpu" else 20)
    modular, place = task("modular"), torch.device(device)
    instances = {seed: modular.build(seed, place) for seed in range(n_seeds)}
    print(f"(a) modular addition, {n_seeds} seeds: ms an epoch of all, with evaluation")
    cases = {}
    for method in COMPARED:
        alone = [Engine(modular, method, {s: i}, device) for s, i in instances.items()]
        together = Engine(modular, method, instances, device)
        each = instances.values()
        field: dict[str, Sequence[Engine | Eager]] = {
            "lockstep": [together],
            "eager loop, one by one": [Eager(modular, method, i, device) for i in each],
            "training.train, one by one": [
                Loop(modular, method, i, device) for i in each
            ],
            "engine, one by one": alone,
        }
        times = taken_in_turns(field, n_rounds, n_first=warm_up(device))
        rows = torch.cat([engine.stack.rows for engine in alone])
        error = (rows - together.stack.rows).abs().max() / rows.abs().max()
        base = statistics.median(times["lockstep"])
        cases[method] = {
            "contestants": {
                name: {
                    "ms": 1e3 * statistics.median(taken),
                    "ms_all": [1e3 * t for t in taken],
                    "lockstep_is_faster": statistics.median(taken) / base,
                }
                for name, taken in times.items()
            },
            "epochs_trained": together.stack.epoch,
            "largest_difference_from_alone": float(error),
        }
        for name, row in cases[method]["contestants"].items():
            ratio = f"{row['lockstep_is_faster']:8.2f}x"
            print(f"  {method:10}{name:28}{row['ms']:10.2f} ms{ratio}", flush=True)
        print(f"  {method:10}lockstep and alone differ by {float(error):.0e}")
    return {"seeds": n_seeds, "rounds": n_rounds, "methods": cases}


def taken_in_turns(
    field: dict[str, Sequence[Engine | Eager]], n_rounds: int, n_first: int
) -> dict[str, list[float]]:
    """Seconds an epoch in each round, after some that do not count."""

    def turn(runners: Sequence[Engine | Eager]) -> None:
        for runner in runners:
            runner.turn(EPOCHS_PER_TURN)

    names = list(field)
    for name in names:
        for _ in range(n_first):
            turn(field[name])
    times: dict[str, list[float]] = {name: [] for name in names}
    for i in range(n_rounds):
        shift = i % len(names)
        for name in names[shift:] + names[:shift]:
            spent = seconds(lambda name=name: turn(field[name]))
            times[name].append(spent / EPOCHS_PER_TURN)
    return times


# --- (b) the span -----------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    d: int
    h: int
    n: int = 400

    def __str__(self) -> str:
        return f"XOR, {self.d} inputs, {self.h} units, {self.n} samples"

    def direct(self, seed: int, device: str) -> Instance:
        n = self.n
        data = xor_clusters(n_train=n, n_test=n, n_inputs=self.d, seed=seed)
        network = mlp([self.d, self.h, 1], bias=False, generator=seeded(seed))
        noise = xor_noise(data.x_test, seed=seed).to(device), data.y_test.to(device)
        return Instance(network.to(device), data.to(device), {"noise": noise})


FULL, SMALLER = Size(40_000, 2048), Size(8000, 512)


def in_span(whole: Instance) -> Instance:
    reduced = span_reduction(whole.network, whole.data.x_train)
    x_test = reduced.project(whole.data.x_test)
    data = replace(whole.data, x_train=reduced.x_train, x_test=x_test)
    x, y = whole.also["noise"]
    return Instance(reduced.network, data, {"noise": (reduced.project(x), y)})


def part_b(options: argparse.Namespace) -> dict[str, Any]:
    quick, device = options.quick, options.device
    xor = replace(task("xor"), **({"epochs": 40} if quick else {}))
    size = Size(300, 16, 40) if quick else FULL
    smaller = Size(200, 16, 40) if quick else SMALLER
    # There the weight of the large network, 1, would press all outputs to zero.
    light = replace(xor, weight=0.3, epochs=min(xor.epochs, 100))
    return {
        "full": part_b_full(xor, size, options),
        "smaller": [run_both_ways(light, smaller, m, device) for m in COMPARED],
    }


def part_b_full(
    xor: Task, size: Size, options: argparse.Namespace
) -> list[dict[str, Any]]:
    device, n_rounds = options.device, options.rounds or 4
    n_first = warm_up(device)
    whole = size.direct(0, device)
    small: list[Instance] = []
    setup = seconds(lambda: small.append(in_span(whole)))
    print(f"(b) {size}: seconds; setting up the span takes {setup:.2f}")
    found = []
    for method in COMPARED:
        ways = {
            "direct, eager loop": Eager(xor, method, whole, device),
            "direct, engine": Engine(xor, method, {0: whole}, device),
            "in the span, engine": Engine(xor, method, {0: small[0]}, device),
        }
        costs = {name: {"step": [], "evaluation": []} for name in ways}
        for i in range(n_first + n_rounds):
            for name, way in ways.items():
                step = seconds(lambda way=way: way.advance(1))
                evaluation = seconds(way.evaluate)
                if i >= n_first:
                    costs[name]["step"].append(step)
                    costs[name]["evaluation"].append(evaluation)
        del ways, way
        medians = {
            name: {kind: statistics.median(taken) for kind, taken in cost.items()}
            for name, cost in costs.items()
        }
        record = {"method": method, "setup": setup, "medians": medians}
        record["in_span"] = run_to_the_end(xor, method, {0: small[0]}, device)
        record["in_span"]["seconds"] += setup
        epochs = record["in_span"]["last"][0]
        n_rows = sum(map(is_evaluated, range(epochs + 1)))
        for cost in medians.values():
            cost["extrapolated"] = epochs * cost["step"] + n_rows * cost["evaluation"]
        direct = min(cost["extrapolated"] for cost in list(medians.values())[:2])
        record["faster_than_best_direct"] = direct / record["in_span"]["seconds"]
        if options.full:
            record["direct"] = run_to_the_end(xor, method, {0: whole}, device)
            real = record["direct"]["seconds"] / record["in_span"]["seconds"]
            record["faster_than_direct_run"] = real
        show_full(record)
        found.append(record)
    return found


def show_full(record: dict[str, Any]) -> None:
    method, ours = record["method"], record["in_span"]
    for name, cost in record["medians"].items():
        in_all = f"{cost['extrapolated']:9.1f} in all, extrapolated"
        if name.startswith("in"):
            in_all = f"{ours['seconds']:9.1f} in all, measured"
        print(f"  {method:10}{name:21}{cost['step']:9.4f} a step"
              f"{cost['evaluation']:9.4f} an evaluation{in_all}")  # fmt: skip
    ratio = record["faster_than_best_direct"]
    print(f"  {method:10}grokked at {ours['epochs']}, {ratio:.1f}x as fast as the best "
          "direct way", flush=True)  # fmt: skip
    if "direct" in record:
        real, ratio = record["direct"], record["faster_than_direct_run"]
        print(f"  {method:10}direct, really run: grokked at {real['epochs']}, "
              f"{real['seconds']:.1f} in all, {ratio:.1f}x", flush=True)  # fmt: skip


def run_to_the_end(
    xor: Task, method: str, instances: dict[int, Instance], device: str
) -> dict[str, Any]:
    """Train by the engine until all have grokked; seconds, and the epochs it was."""
    runs = []
    spent = seconds(
        lambda: runs.extend(ensemble(xor, method, instances, device).train())
    )
    epochs = {run.member.seed: grokked_at(xor, run) for run in runs}
    last = [int(run.history["epoch"][-1]) for run in runs]
    return {"epochs": list(epochs.values()), "last": last, "seconds": spent}


def run_both_ways(xor: Task, size: Size, method: str, device: str) -> dict[str, Any]:
    whole = {seed: size.direct(seed, device) for seed in range(3)}
    direct = run_to_the_end(xor, method, whole, device)
    small: dict[int, Instance] = {}
    setup = seconds(lambda: small.update({s: in_span(i) for s, i in whole.items()}))
    reduced = run_to_the_end(xor, method, small, device)
    reduced["seconds"] += setup
    same = direct["epochs"] == reduced["epochs"]
    ratio = direct["seconds"] / reduced["seconds"]
    print(f"(b) {size}, three seeds, {method}: grokked at {direct['epochs']} directly, "
          f"{reduced['epochs']} in the span; {direct['seconds']:.1f} s and "
          f"{reduced['seconds']:.1f} s, {ratio:.1f}x", flush=True)  # fmt: skip
    return {
        "size": vars(size), "weight": xor.weight, "method": method, "direct": direct,
        "in_span": reduced, "same_epochs": same, "faster": ratio,
    }  # fmt: skip


# --- (c) the table ----------------------------------------------------------------


def part_c(options: argparse.Namespace) -> dict[str, Any]:
    device, seeds = options.device, range(2 if options.quick else 10)
    tasks = TASKS["released"]
    if options.quick:
        tasks = {name: replace(task(name), epochs=3) for name in ("parity", "modular")}
    start = time.perf_counter()
    setup, ensembles = {}, []
    for name, one in tasks.items():
        before = time.perf_counter()
        ensembles.append(acceleration_ensemble(one, seeds=seeds, device=device))
        if device == "cuda":
            torch.cuda.synchronize()
        setup[name] = time.perf_counter() - before
        report(f"{name} is set up after {setup[name]:.1f} s")
    ended: list[dict[int, float]] = [{} for _ in ensembles]
    told = [start]

    def follow(e: int, i: int, row: dict[str, float]) -> None:
        now = ended[e][i] = time.perf_counter()
        if now - told[0] > 10:
            told[0] = now
            report(f"{now - start:.0f} s: {list(tasks)[e]}, epoch {row['epoch']}")

    trained = train_together(ensembles, callback=follow)
    if device == "cuda":
        torch.cuda.synchronize()
    total = time.perf_counter() - start
    results, finished, diverged = {}, {}, []
    for (name, one), runs, last in zip(tasks.items(), trained, ended, strict=True):
        epochs = iter([grokked_at(one, run) for run in runs])
        results[name] = {m: {seed: next(epochs) for seed in seeds} for m in METHODS}
        finished[name] = {
            method: max(last[k * len(seeds) + j] for j in range(len(seeds))) - start
            for k, method in enumerate(METHODS)
        }
        diverged += [
            f"{name}: {run.member}" for run in runs if run.stopped == "diverged"
        ]
    rows = acceleration_rows(results)
    for row in rows:
        row["finished"] = finished[row["task"]][row["method"]]
    show_table(rows, total)
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None
    return {
        "seconds": total, "setup": setup, "megabytes": peak, "diverged": diverged,
        "rows": rows, "epochs": results,
    }  # fmt: skip


def report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def show_table(rows: list[dict[str, Any]], total: float) -> None:
    print("(c) Table 1, released; the paper's numbers in brackets")
    print(f"  {'':20}{'grokked':>15}{'mean epoch':>18}{'sd':>8}{'speed-up':>16}"
          f"{'p, paired':>11}{'p, Welch':>11}{'at s':>8}")  # fmt: skip

    def shown(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    def beside(row: dict[str, Any], name: str, form: str) -> str:
        printed = shown(row[f"published_{name}"], form)
        return f"{shown(row[name], form)} ({printed})"

    for row in rows:
        print(f"  {row['task']:10}{row['method']:10}{beside(row, 'share', '.0%'):>15}"
              f"{beside(row, 'epochs', '.0f'):>18}{shown(row['epochs_std'], '.0f'):>8}"
              f"{beside(row, 'speedup', '.2f'):>16}"
              f"{shown(row['p_paired'], '.1e'):>11}{shown(row['p_welch'], '.1e'):>11}"
              f"{row['finished']:8.1f}")  # fmt: skip
    print(f"  all of it: {total:.1f} s, set-up included", flush=True)


PARTS = {"a": part_a, "b": part_b, "c": part_c}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="parts, such as a,b; c is left out on a CPU")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--quick", action="store_true", help="little of each part")
    parser.add_argument("--full", action="store_true", help="run XOR directly, too")
    parser.add_argument("--rounds", type=int, help="instead of each part's own number")
    parser.add_argument("--save", type=Path, help="write the JSON to this file too")
    parser.add_argument("--commit", help="what is measured, where git cannot tell")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps({"part": options.part} | PARTS[options.part](options)))
        return
    usual = "a,b,c" if options.device == "cuda" or options.quick else "a,b"
    parts = (options.only or usual).split(",")
    if not set(parts) <= set(PARTS):
        parser.error(f"--only must be some of {','.join(PARTS)}, got {options.only}")
    records = [in_process(part) for part in parts]
    cuda = options.device == "cuda"
    result = {
        "benchmark": "ensemble", "quick": options.quick,
        "device": torch.cuda.get_device_name() if cuda else machine(),
        "threads": torch.get_num_threads(), "cores": os.cpu_count(),
        "torch": torch.__version__, "python": platform.python_version(),
        "commit": options.commit or commit(), "records": records,
    }  # fmt: skip
    if options.save:
        options.save.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    if any("failed" in record for record in records):
        sys.exit(1)


def in_process(part: str) -> dict[str, Any]:
    """Run one part by itself; pass on what it prints, and keep its last line."""
    command = [sys.executable, "-u", __file__, *sys.argv[1:], "--part", part]
    start, last = time.perf_counter(), ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith('{"part"'):
                last = line
            else:
                print(line, end="", flush=True)
    if child.returncode or not last:
        return {"part": part, "failed": child.returncode}
    return json.loads(last) | {"process_seconds": time.perf_counter() - start}


def machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
