"""Table 1's runs: every task, trained by every method until it has grokked.

Two methods are not in the paper. ``"grokfast_matched"`` is Grokfast at a learning rate
that takes back the most its gain can lengthen steps. ``"grokalign_tuned"`` is GrokAlign
with the squared norm and a weight that a pilot on the training data of seed 0 has
found.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch

from normalign.regularizers import PenaltyForm
from normalign.training import Ensemble, Member, Trained, rules, tune_weight
from normalign_reproduction._errors import require
from normalign_reproduction.context import Context
from normalign_reproduction.files import load_cache, write_checked
from normalign_reproduction.items.table1.tasks import Instance, Task, task
from normalign_reproduction.spec import Run
from normalign_reproduction.training import train_ensembles

__all__ = [
    "EXTRA", "METHODS", "acceleration_ensemble", "batches", "compute", "constants",
    "member",
]  # fmt: skip

# Table 1's columns. Grokfast's numbers were chosen by its authors on one seed.
METHODS = ("baseline", "grokfast", "orthograd", "grokalign")
EXTRA = ("grokfast_matched", "grokalign_tuned")
GROKFAST = rules.Grokfast(decay=0.8, strength=0.1)

# The pilot that finds a weight: seven weights, squared norm, two splits.
PILOT = {"epochs": 300, "n_repeats": 2, "powers": (2,)}
_UNTUNED = 0.0  # stands in for the weight that the pilot finds
_TIMED_SECONDS, _TIMED_EPOCHS = 0.5, 50


def constants(preset: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return every number that a run depends on beside its seed and data."""
    one = _task(preset, settings)
    way = member(one, settings["method"], seed=0)
    how = {"weight": way.weight, "optimizer": vars(way.optimizer)}
    if way.gradient_filter is not None:
        how["filter"] = [type(way.gradient_filter).__name__, vars(way.gradient_filter)]
    if settings["method"] == "grokalign_tuned":
        how["pilot"] = PILOT
    return json.loads(json.dumps({"task": one.described(), "method": how}))


def member(task: Task, method: str, seed: int) -> Member:
    """Return how one seed of a task is trained by a method.

    Grokfast adds ``strength`` times a running mean to the gradient. Under SGD a steady
    gradient then steps ``1 + strength`` times as far; AdamW divides the scale out, and
    steps get longer by less, where gradients are noisy. The matched form divides the
    learning rate by ``1 + strength``, and multiplies the decay so that weights shrink
    as before: a match for SGD, a bound for AdamW. The tuned GrokAlign has no weight
    yet.
    """
    rule = f"one of {', '.join(METHODS + EXTRA)}"
    require(method in METHODS + EXTRA, "member", "method", rule, repr(method))
    optimizer = task.optimizer
    plain = Member(seed, optimizer, penalty=task.penalty)
    if method == "grokfast":
        return replace(plain, gradient_filter=GROKFAST)
    if method == "grokfast_matched":
        longer = 1 + GROKFAST.strength
        matched = replace(
            optimizer, learning_rate=optimizer.learning_rate / longer,
            weight_decay=optimizer.weight_decay * longer,
        )  # fmt: skip
        return replace(plain, optimizer=matched, gradient_filter=GROKFAST)
    if method == "grokalign":
        return replace(plain, weight=task.weight)
    if method == "grokalign_tuned":
        return replace(plain, weight=_UNTUNED, penalty=PenaltyForm(power=2))
    if method == "orthograd":
        momentum = task.orthograd_momentum
        if isinstance(optimizer, rules.SGD) and momentum is not None:
            optimizer = replace(optimizer, momentum=momentum)
        return replace(plain, optimizer=optimizer, gradient_filter=rules.OrthoGrad())
    return plain


def acceleration_ensemble(
    task: Task,
    *,
    methods: Sequence[str] = METHODS,
    seeds: Sequence[int] = range(10),
    device: torch.device | str = "cpu",
) -> Ensemble:
    """Return the runs of a task: every method from the same starts, seed by seed.

    The members are in the order of ``methods``, and within a method of ``seeds``.
    """
    members = [member(task, method, seed) for method in methods for seed in seeds]
    return _ensemble(task, members, _instances(task, seeds, device), device)


def batches(runs: Sequence[Run], device: torch.device) -> list[list[Run]]:
    """Return what is trained together.

    On CUDA the whole table, and then the methods beyond the paper. On a CPU a method
    of a task at a time, but all methods of XOR, whose set-up is most of its time.
    """
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        beyond = run["method"] in EXTRA
        alone = run["task"] if run["task"] == "xor" else (run["task"], run["method"])
        key = beyond if device.type == "cuda" else alone
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def compute(batch: Sequence[Run], context: Context) -> list[dict[str, Any]]:
    """Train a batch until each run has grokked, or its epochs are over.

    Returns
    -------
    list of dict
        ``epoch`` at which the run grokked or None, ``stopped``, the ``last`` row,
        ``seconds_per_epoch`` of all seeds of the method in lockstep with nothing
        beside them in this process, ``seeds_together``; ``weight`` of the penalty.
    """
    places: dict[str, list[int]] = {}
    for i, run in enumerate(batch):
        places.setdefault(run["task"], []).append(i)
    ensembles: list[Ensemble] = []
    for name, positions in places.items():
        context.progress(0.0, f"{name}, set-up")
        runs = [batch[i] for i in positions]
        one = _task(runs[0].preset, runs[0].settings, source=runs[0].data)
        seeds = list(dict.fromkeys(run.seed for run in runs))
        instances = _instances(one, seeds, context.device)
        ways = [member(one, run["method"], run.seed) for run in runs]
        tuned = [i for i, run in enumerate(runs) if run["method"] == "grokalign_tuned"]
        if tuned:
            first = instances.get(0) or one.build(0, context.device)
            weight = _tuned_weight(name, one, first, context)
            for i in tuned:
                ways[i] = replace(ways[i], weight=weight)
        ensembles.append(_ensemble(one, ways, instances, context.device))
    trained = train_ensembles(ensembles, context, names=list(places))
    results: list[dict[str, Any]] = [{} for _ in batch]
    for (name, positions), ensemble, ended in zip(
        places.items(), ensembles, trained, strict=True
    ):
        context.progress(1.0, f"{name}, timing")
        paces = _paces(ensemble)
        for i, run, pace in zip(positions, ended, paces, strict=True):
            results[i] = {**_result(run, ensemble), **pace}
    return results


def _task(
    preset: str, settings: Mapping[str, Any], *, source: str | None = None
) -> Task:
    """Return the task of a run, at its size and on its data."""
    sizes = dict(settings.get("resized", {}))
    if preset == "text":  # which starts small: a larger start would be another task
        sizes.pop("init_scale", None)
    one = task(settings["task"], preset=preset).resized(**sizes)
    if source is not None and settings["task"].startswith("mnist"):
        return one.resized(source=source)
    return one


def _instances(
    task: Task, seeds: Sequence[int], device: torch.device | str
) -> dict[int, Instance]:
    place = torch.device(device)
    made = {seeds[0]: task.build(seeds[0], place)}  # CUDA libraries load here, alone
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        # torch draws its numbers outside Python's lock.
        others = pool.map(lambda seed: task.build(seed, place), seeds[1:])
        return made | dict(zip(seeds[1:], others, strict=True))


def _ensemble(
    task: Task,
    members: Sequence[Member],
    instances: Mapping[int, Instance],
    device: torch.device | str,
) -> Ensemble:
    starts = [instances[member.seed] for member in members]
    also = {name: [one.also[name] for one in starts] for name in starts[0].also}
    return Ensemble(
        [one.network for one in starts], [one.data for one in starts], members,
        loss=task.loss, epochs=task.epochs, batch_size=task.batch_size, also=also,
        until=task.has_grokked, device=device,
    )  # fmt: skip


def _tuned_weight(name: str, task: Task, start: Instance, context: Context) -> float:
    """Return the weight that a pilot on the training data finds, once for a batch."""
    base = context.checkpoint
    kept = base.with_name(f"{base.name}.{name}.pilot.json")
    found = load_cache(kept)
    if found is not None:
        return found["weight"]
    context.progress(0.0, f"{name}, pilot for the weight")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its remarks are advice on a longer pilot
        tuned = tune_weight(
            start.network, start.data.x_train, start.data.y_train, loss=task.loss,
            optimizer=task.optimizer, batch_size=task.batch_size,
            device=context.device, **PILOT,
        )  # fmt: skip
    if tuned.stopped == "interrupted":
        raise KeyboardInterrupt
    write_checked(kept, {"weight": tuned.weight, "seconds": tuned.seconds})
    return tuned.weight


def _result(run: Trained, ensemble: Ensemble) -> dict[str, Any]:
    until = ensemble.plan.until
    assert until is not None
    row = run.history.first(until)
    last = {name: float(f"{v:.6g}") for name, v in run.history.last().items()}
    return {
        "epoch": None if row is None else int(row["epoch"]),
        "stopped": run.stopped,
        "last": {k: v if v == v and abs(v) < 1e300 else None for k, v in last.items()},
        "weight": run.member.weight,
        "power": run.member.penalty.power if run.member.weight > 0 else None,
    }


def _paces(ensemble: Ensemble) -> list[dict[str, Any]]:
    """Return the seconds of an epoch of each member's kind, all its seeds together.

    Each kind trains on from its start, alone, after two epochs of warm-up.
    """
    found: list[dict[str, Any]] = [{} for _ in ensemble.members]
    for group in ensemble.groups():
        stack = group.stack
        stack.advance(2)
        stack.wait()
        begun, epochs = time.perf_counter(), 0
        while epochs < _TIMED_EPOCHS and time.perf_counter() - begun < _TIMED_SECONDS:
            stack.advance(1)
            stack.wait()
            epochs += 1
        pace = (time.perf_counter() - begun) / epochs
        for i in group.positions:
            found[i] = {"seconds_per_epoch": pace, "seeds_together": stack.size}
    return found
