"""Which form of GrokAlign, and which weight, groks the tasks of Table 1 soonest.

    python benchmarks/powers.py --device cuda --save results/powers-h200.json

Every task of Table 1 (released settings) is trained with four forms of the penalty and
a grid of weights, some seeds each, all in lockstep. Prints a table per task (epochs to
grok, as defined for Table 1; how many seeds grokked if not all) and one line of JSON.
`--variants` asks when the ratio helps: MNIST with both losses, with and without biases,
from the released start (weights times 8) and from the ordinary one.

The test set decides when a run has grokked, as it does in Table 1: this shows what a
weight can do, not how to choose one. `normalign.training.tune_weight` does that.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch

from normalign.regularizers import PenaltyForm
from normalign.training import Ensemble, train_together
from normalign_reproduction.items.table1.experiment import member
from normalign_reproduction.items.table1.tasks import Images, Task, task
from normalign_reproduction.provenance import commit

FORMS = {
    "released": PenaltyForm(power=1, released=True),
    "power 1": PenaltyForm(power=1),
    "power 2": PenaltyForm(power=2),
    "ratio": PenaltyForm(power="ratio"),
}
WEIGHTS = {
    "released": (0.001, 0.01, 0.1, 1.0, 10.0),
    "power 1": (0.001, 0.01, 0.1, 1.0, 10.0),
    "power 2": (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0),
    "ratio": (0.001, 0.01, 0.1, 1.0, 10.0),
}
# Enough for every released run with GrokAlign to grok, with room.
EPOCHS = {
    "xor": 250,
    "parity": 1500,
    "mnist_ce": 1000,
    "mnist_se": 2500,
    "modular": 400,
}

VARIANTS = {
    f"{loss}, {'biases' if bias else 'no biases'}, start x{scale:g}": (
        loss, bias, scale,
    )
    for loss in ("mnist_ce", "mnist_se")
    for bias in (True, False)
    for scale in (8.0, 1.0)
}  # fmt: skip


def setting_of(name: str) -> Task:
    """Return a task of Table 1, or a variant of its MNIST tasks."""
    if name not in VARIANTS:
        return task(name)
    loss, bias, scale = VARIANTS[name]
    return replace(task(loss), build=Images(bias=bias, init_scale=scale))


def pilot(name: str, seeds: range, device: str) -> tuple[Ensemble, list[dict]]:
    """Return all candidates of a task as one ensemble, and what each is."""
    setting = setting_of(name)
    place = torch.device(device)
    instances = {seed: setting.build(seed, place) for seed in seeds}
    told, members, starts = [], [], []
    candidates = [("none", None, 0.0)] + [
        (form, FORMS[form], weight) for form in FORMS for weight in WEIGHTS[form]
    ]
    for form, penalty, weight in candidates:
        for seed in seeds:
            way = replace(member(setting, "baseline", seed), weight=weight)
            if penalty is not None:
                way = replace(way, penalty=penalty)
            members.append(way)
            starts.append(instances[seed])
            told.append({"task": name, "form": form, "weight": weight, "seed": seed})
    also = {key: [one.also[key] for one in starts] for key in starts[0].also}
    ensemble = Ensemble(
        [one.network for one in starts],
        [one.data for one in starts],
        members,
        loss=setting.loss,
        epochs=EPOCHS.get(name, 1000),
        batch_size=setting.batch_size,
        also=also,
        until=setting.has_grokked,
        device=place,
    )
    return ensemble, told


def summary(runs: list[dict]) -> list[dict]:
    """Return one line per task, form and weight."""
    lines = []
    keys = dict.fromkeys((r["task"], r["form"], r["weight"]) for r in runs)
    for name, form, weight in keys:
        same = [
            r
            for r in runs
            if (r["task"], r["form"], r["weight"]) == (name, form, weight)
        ]
        epochs = [r["epoch"] for r in same if r["stopped"] == "criterion"]
        lines.append(
            {
                "task": name,
                "form": form,
                "weight": weight,
                "seeds": len(same),
                "grokked": len(epochs),
                "mean_epoch": statistics.fmean(epochs) if epochs else None,
                "train_accuracy": statistics.fmean(r["train_accuracy"] for r in same),
                "test_accuracy": statistics.fmean(r["test_accuracy"] for r in same),
                "diverged": sum(r["stopped"] == "diverged" for r in same),
            }
        )
    return lines


def show(lines: list[dict]) -> None:
    for line in lines:
        mean = "-" if line["mean_epoch"] is None else f"{line['mean_epoch']:.0f}"
        print(
            f"{line['task']:9s} {line['form']:9s} {line['weight']:<7g} "
            f"grokked {line['grokked']}/{line['seeds']}  epochs {mean:>6s}  "
            f"test {100 * line['test_accuracy']:5.1f} %  diverged {line['diverged']}"
        )


def main() -> None:
    """Run the grid and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=list(EPOCHS))
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--commit", default="")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    names = list(VARIANTS) if options.variants else options.tasks
    start = time.perf_counter()
    pilots = [pilot(name, range(options.seeds), options.device) for name in names]
    results = train_together([ensemble for ensemble, _ in pilots])
    runs = []
    for (_, told), trained in zip(pilots, results, strict=True):
        for facts, one in zip(told, trained, strict=True):
            last = one.history.last()
            ended = {
                key: last[key] for key in ("epoch", "train_accuracy", "test_accuracy")
            }
            runs.append({**facts, **ended, "stopped": one.stopped})
    lines = summary(runs)
    show(lines)
    cuda = options.device.startswith("cuda")
    outcome = {
        "benchmark": "powers",
        "commit": options.commit or commit(),
        "device": torch.cuda.get_device_name() if cuda else platform.machine(),
        "torch": torch.__version__,
        "seconds": round(time.perf_counter() - start, 1),
        "epochs": {name: EPOCHS.get(name, 1000) for name in names},
        "lines": lines,
    }
    if options.save:
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps(outcome, indent=1) + "\n")
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
