"""RFM and RFAM on tables: accuracy, attacks and local geometry (Tables 2 and 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from normalign.geometry import (
    alignment_ratio,
    effective_rank,
    normal_alignment,
    participation_rank,
)
from normalign.kernels import Iteration, Laplace, Machine, initial_metric, recursions
from normalign.robustness import attack_success_rate, pgd
from normalign_reproduction.context import Context, RunCache
from normalign_reproduction.data import UCITable
from normalign_reproduction.items.peers.experiment import peer_result
from normalign_reproduction.items.table2.data import inner_split, table_named
from normalign_reproduction.spec import Run
from normalign_reproduction.training import round_all

__all__ = ["batches", "compute", "machine_result"]

_SMALL = 3000  # rows that a GPU does not pay for: launches take longer than arithmetic
_ENTRIES = 1 << 24  # of the Jacobians that are held at once
_GEOMETRY = {
    "normal_alignment": normal_alignment,
    "alignment_ratio": alignment_ratio,
    "effective_rank": lambda jacobian, x: effective_rank(jacobian),
    "participation_rank": lambda jacobian, x: participation_rank(jacobian),
}
# Accuracies under attack, and the names of the success rates computed from them.
_RATES = {"attacked": "attack_success", "strongly_attacked": "strong_success"}
# What is stored of each fold; of the rest only means are stored.
_OF_FOLDS = (
    "ridge",
    "iteration",
    "dtype",
    "validation",
    "accuracy",
    *_RATES,
    "normal_alignment",
)


def batches(runs: Sequence[Run], device: torch.device) -> list[list[Run]]:
    """Return the runs of a method on a table together, large tables first."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        key = run.data, run["dataset"], run["method"]
        groups.setdefault(key, []).append(run)
    return sorted(groups.values(), key=lambda group: -group[0]["rows"])


def compute(batch: Sequence[Run], context: Context) -> list[dict[str, Any]]:
    """Return the result of each run; finished runs are cached."""
    table = table_named(batch[0]["dataset"], batch[0].data)
    finished, results = RunCache(context), []
    for i, run in enumerate(batch):

        def progress(share: float, words: str, i: int = i) -> None:
            context.progress((i + share) / len(batch), f"{table.name}, {words}")

        result = finished.get(run)
        if result is None:
            method = machine_result if run["method"] == "rfam" else peer_result
            result = method(run, table, device=context.device, progress=progress)
            result = finished.put(run, result)
        results.append(result)
        progress(1.0, "done")
    return results


def machine_result(
    run: Run,
    table: UCITable,
    *,
    device: torch.device,
    progress: Callable[[float, str], None],
) -> dict[str, Any]:
    """Return accuracy, robustness and geometry of a machine on a table.

    Parameters
    ----------
    run : Run
        Of the experiment ``tabular``, with ``method`` "rfam".
    progress : callable
        ``progress(share, words)``.
    """
    protocols = {"released": _released_protocol, "leak-free": _leak_free_protocol}
    if run["protocol"] not in protocols:
        raise ValueError(
            "tabular: protocol must be 'released' or 'leak-free', got "
            f"{run['protocol']!r}."
        )
    task = TableTask(run, table, device)
    folds = []
    for i, (choice, last) in enumerate(protocols[run["protocol"]](task)):
        train, test = task.folds[i]
        progress((i + 0.5) / len(task.folds), f"fold {i + 1} attacked")
        folds.append(
            {
                "ridge": choice.ridge,
                "iteration": choice.iteration,
                "validation": choice.accuracy,
                "dtype": str(last.solved.dtype).removeprefix("torch."),
                **_attack(task, last.machine, test),
                **_geometry(task, last.machine, train),
            }
        )
        progress((i + 1) / len(task.folds), f"fold {i + 1} done")
    (n, d), k = table.x.shape, table.n_classes
    stored = [{name: fold[name] for name in _OF_FOLDS} for fold in folds]
    return round_all(
        {"n_rows": n, "n_inputs": d, "n_classes": k, **_means(folds), "folds": stored}
    )


@dataclass(frozen=True)
class Choice:
    """The ridge and iteration selected on validation rows, and the metric there."""

    ridge: float
    iteration: int
    metric: Tensor
    accuracy: float


class TableTask:
    """A table on a device, in float32, with the settings of a run.

    Solvers change to float64 where float32 fails.
    """

    def __init__(self, run: Run, table: UCITable, device: torch.device) -> None:
        if len(table.x) <= _SMALL:
            device = torch.device("cpu")
        self.run = run
        self.x, self.y = table.x.to(device, torch.float32), table.y.to(device)
        self.targets = one_hot(self.y, table.n_classes).to(self.x.dtype)
        self.split = tuple(rows.to(device) for rows in table.split)
        self.folds = [tuple(rows.to(device) for rows in fold) for fold in table.folds]

    def machines(
        self,
        rows: Tensor,
        *,
        ridge: float,
        n_iter: int,
        metric: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Iterator[Iteration]:
        """Yield the machines of Algorithm 1 on some rows.

        The metric starts from the run's initial one by default. With a generator its
        updates use gradients at rows drawn with replacement.
        """
        x, run = self.x[rows], self.run
        if metric is None:
            metric = initial_metric(x, identity_weight=run["identity_weight"])
        return recursions(
            x,
            self.targets[rows],
            kernel=Laplace(run["bandwidth"]),
            ridge=ridge,
            metric=metric.to(x.dtype),
            n_iter=n_iter,
            agop_samples=run["agop_samples"],
            resampled=generator is not None,
            generator=generator,
        )

    def select(
        self,
        fit: Tensor,
        validation: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Choice:
        """Return the ridge and iteration with the best accuracy on validation rows.

        Of equal ones the first: the largest ridge, then the fewest iterations.
        """
        best: Choice | None = None
        for ridge in self.run["ridges"]:
            for one in self.machines(
                fit, ridge=ridge, n_iter=self.run["n_iter"], generator=generator
            ):
                right = one.machine(self.x[validation]).argmax(1) == self.y[validation]
                accuracy = float(right.double().mean())
                if best is None or accuracy > best.accuracy:
                    best = Choice(ridge, one.index, one.machine.metric, accuracy)
        assert best is not None, "an item without ridges"
        return best


def _released_protocol(task: TableTask) -> Iterator[tuple[Choice, Iteration]]:
    """Yield one choice for all folds, and machines with its metric."""
    generator = torch.Generator().manual_seed(task.run.seed)
    choice = task.select(*task.split, generator=generator)
    for train, _ in task.folds:
        (last,) = task.machines(
            train, ridge=choice.ridge, n_iter=0, metric=choice.metric
        )
        yield choice, last


def _leak_free_protocol(task: TableTask) -> Iterator[tuple[Choice, Iteration]]:
    """Yield a choice from each training fold, and its machine on the whole fold."""
    for train, _ in task.folds:
        choice = task.select(*inner_split(task.y, train, seed=task.run.seed))
        *_, last = task.machines(train, ridge=choice.ridge, n_iter=choice.iteration)
        yield choice, last


def _attack(task: TableTask, machine: Machine, rows: Tensor) -> dict[str, Any]:
    """Attack test rows like the released code, and with a stronger attack.

    The released attack maximises the squared error from a random start, and its last
    point counts. It also climbs where the right output exceeds its label, which leads
    to no other class. The strong attack maximises the margin from the row itself and
    from random starts, and its worst point counts.
    """
    run = task.run
    model_and_rows = machine, task.x[rows], task.y[rows]
    common = {"radii": run["radii"], "norm": "linf", "n_steps": run["n_steps"]}
    released = pgd(
        *model_and_rows,
        **common,
        step_size=run["step"],
        loss="squared_error",
        generator=torch.Generator().manual_seed(run.seed),
    )
    strong = pgd(
        *model_and_rows,
        **common,
        loss="margin",
        start="center",
        keep="best",
        n_restarts=run["strong_restarts"],
        generator=torch.Generator().manual_seed(run.seed),
    )
    return {
        "accuracy": released.accuracy,
        # At the last point alone, as released: a wrong row may end up right.
        "attacked": (~released.reached).double().mean(1).tolist(),
        "strongly_attacked": strong.robust_accuracy.tolist(),
    }


def _geometry(task: TableTask, machine: Machine, rows: Tensor) -> dict[str, float]:
    """Return means over training rows; undefined values count as zero.

    Computed on the processor: CUDA decomposes many small matrices one by one.
    """
    width = task.targets.shape[1] * task.x.shape[1]
    sums = dict.fromkeys(_GEOMETRY, 0.0)
    for part in rows.split(max(_ENTRIES // width, 1)):
        x = task.x[part].to(machine.coef.dtype)
        jacobian, x = machine.jacobian(x).cpu(), x.cpu()
        for name, quantity in _GEOMETRY.items():
            sums[name] += float(quantity(jacobian, x).nan_to_num(0.0).double().sum())
    return {name: total / len(rows) for name, total in sums.items()}


def _means(folds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over folds, and attack success from the mean accuracies."""
    names = ("validation", "accuracy", *_GEOMETRY)
    means: dict[str, Any] = {name: fmean(f[name] for f in folds) for name in names}
    accuracy = means["accuracy"]
    for name, rate in _RATES.items():
        by_radius = zip(*(fold[name] for fold in folds), strict=True)
        means[name] = [fmean(accuracies) for accuracies in by_radius]
        means[rate] = [
            attack_success_rate(accuracy, robust) if accuracy else None
            for robust in means[name]
        ]
    return means
