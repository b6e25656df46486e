"""RFM and RFAM on tables: fits, attacks and local geometry (Tables 2 and 3)."""

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
from normalign.kernels import (
    Iteration,
    Laplace,
    Machine,
    initial_metric,
    recursions,
)
from normalign.robustness import attack_success_rate, pgd
from normalign_reproduction._errors import require
from normalign_reproduction.context import Context, RunCache
from normalign_reproduction.data import UCITable
from normalign_reproduction.items.peers.experiment import peer_result
from normalign_reproduction.items.table2.data import inner_split, table_named
from normalign_reproduction.spec import Run
from normalign_reproduction.training import round_all

__all__ = ["PROTOCOLS", "batches", "compute", "machine_result"]


def batches(runs: Sequence[Run], device: torch.device) -> list[list[Run]]:
    """Return the runs of a method on a table together, large tables first."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        place = run.data, run["dataset"], run["method"]
        groups.setdefault(place, []).append(run)
    return sorted(groups.values(), key=lambda group: -group[0]["rows"])


def compute(batch: Sequence[Run], context: Context) -> list[dict[str, Any]]:
    """Return the result of each run, keeping every one as soon as it is there."""
    table = table_named(batch[0]["dataset"], batch[0].data)
    kept, results = RunCache(context), []
    for number, run in enumerate(batch):

        def hear(share: float, words: str, done: int = number) -> None:
            said = f"{table.name}, {words}"
            context.progress((done + share) / len(batch), said)

        found = kept.get(run)
        if found is None:
            method = machine_result if run["method"] == "rfam" else peer_result
            found = kept.put(
                run, method(run, table, device=context.device, progress=hear)
            )
        results.append(found)
        hear(1.0, "done")
    return results


PROTOCOLS = ("released", "leak-free")
_GEOMETRY = {
    "normal_alignment": normal_alignment,
    "alignment_ratio": alignment_ratio,
    "effective_rank": lambda jacobian, x: effective_rank(jacobian),
    "participation_rank": lambda jacobian, x: participation_rank(jacobian),
}
# Accuracies under attack, and what the success rates made of them are called.
_RATES = {"attacked": "attack_success", "strongly_attacked": "strong_success"}
# What is stored of every fold; of the rest, means.
_OF_FOLDS = (
    "ridge", "iteration", "dtype", "validation", "accuracy", *_RATES,
    "normal_alignment",
)  # fmt: skip
_ENTRIES = 1 << 24  # of Jacobians held at once
_SMALL = 3000  # rows of a table that a GPU is not asked for

Say = Callable[[float, str], None]


@dataclass(frozen=True)
class Choice:
    """What validation rows chose: a ridge, an iteration, and the metric it had."""

    ridge: float
    iteration: int
    metric: Tensor
    accuracy: float


@dataclass(frozen=True)
class Fitting:
    """A table on a device, and how machines are fitted to rows of it.

    Parameters
    ----------
    x : Tensor of shape (n, d)
    y : Tensor of shape (n,)
    targets : Tensor of shape (n, k)
        One-hot rows.
    run : Run
        Whose settings they are.
    """

    x: Tensor
    y: Tensor
    targets: Tensor
    run: Run

    @classmethod
    def of(cls, table: UCITable, run: Run, device: torch.device) -> Fitting:
        """Bring a table to a device, in float32: solvers double that where it fails.

        A small one stays on the processor: on a GPU the launches take longer than the
        arithmetic takes there.
        """
        device = device if len(table.x) > _SMALL else torch.device("cpu")
        x, y = table.x.to(device, torch.float32), table.y.to(device)
        return cls(x, y, one_hot(y, table.n_classes).to(x.dtype), run)

    def machines(
        self, rows: Tensor, *, ridge: float, n_iter: int, metric: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Iterator[Iteration]:  # fmt: skip
        """Yield the machines of Algorithm 1 on some rows.

        Without a metric they start from the run's initial one. With a generator the
        gradients of an update are taken at rows drawn with replacement.
        """
        x, run = self.x[rows], self.run
        if metric is None:
            metric = initial_metric(x, identity_weight=run["identity_weight"])
        return recursions(
            x, self.targets[rows], kernel=Laplace(run["bandwidth"]), ridge=ridge,
            metric=metric.to(x.dtype), n_iter=n_iter, agop_samples=run["agop_samples"],
            resampled=generator is not None, generator=generator,
        )  # fmt: skip

    def accuracy(self, machine: Machine, rows: Tensor) -> float:
        """Return the share of rows whose largest output is that of their class."""
        found = machine(self.x[rows]).argmax(1)
        return float((found == self.y[rows]).double().mean())

    def chosen(
        self,
        fit: Tensor,
        validation: Tensor,
        *,
        generator: torch.Generator | None,
    ) -> Choice:
        """Return the ridge and iteration with the best accuracy on validation rows.

        Of equal ones the first: the largest ridge, then the fewest iterations.
        """
        best: Choice | None = None
        for ridge in self.run["ridges"]:
            for one in self.machines(
                fit, ridge=ridge, n_iter=self.run["n_iter"], generator=generator
            ):
                accuracy = self.accuracy(one.machine, validation)
                if best is None or accuracy > best.accuracy:
                    best = Choice(ridge, one.index, one.machine.metric, accuracy)
        assert best is not None, "an item without ridges"
        return best


def machine_result(
    run: Run, table: UCITable, *, device: torch.device, progress: Say
) -> dict[str, Any]:
    """Return accuracy, robustness and geometry of a machine on a table.

    Parameters
    ----------
    run : Run
        Of the experiment ``tabular``, with ``method`` "rfam".
    progress : callable
        ``progress(share, words)``.
    """
    known = run["protocol"] in PROTOCOLS
    rule = " or ".join(map(repr, PROTOCOLS))
    require(known, "tabular", "protocol", rule, repr(run["protocol"]))
    fitting = Fitting.of(table, run, device)
    fitted = _released_protocol if run["protocol"] == "released" else _leak_free
    folds = []
    for number, (choice, machine, dtype) in enumerate(fitted(fitting, table)):
        train, test = (rows.to(fitting.x.device) for rows in table.folds[number])
        progress((number + 0.5) / len(table.folds), f"fold {number + 1} attacked")
        folds.append(
            {
                "ridge": choice.ridge,
                "iteration": choice.iteration,
                "validation": choice.accuracy,
                "dtype": dtype,
                **_attack(fitting, machine, test, seed=run.seed),
                **_geometry(fitting, machine, train),
            }
        )
        progress((number + 1) / len(table.folds), f"fold {number + 1} done")
    (n, d), k = table.x.shape, table.n_classes
    kept = [{name: fold[name] for name in _OF_FOLDS} for fold in folds]
    return round_all(
        {"n_rows": n, "n_inputs": d, "n_classes": k, **_means(folds), "folds": kept}
    )


def _released_protocol(
    fitting: Fitting, table: UCITable
) -> Iterator[tuple[Choice, Machine, str]]:
    device = fitting.x.device
    generator = torch.Generator().manual_seed(fitting.run.seed)
    half, other = (rows.to(device) for rows in table.split)
    choice = fitting.chosen(half, other, generator=generator)
    for train, _ in table.folds:
        yield _fit(fitting, train.to(device), choice, metric=choice.metric)


def _leak_free(
    fitting: Fitting, table: UCITable
) -> Iterator[tuple[Choice, Machine, str]]:
    device = fitting.x.device
    for train, _ in table.folds:
        inside = inner_split(table.y, train, seed=fitting.run.seed)
        fit, validation = (rows.to(device) for rows in inside)
        choice = fitting.chosen(fit, validation, generator=None)
        yield _fit(fitting, train.to(device), choice)


def _fit(
    fitting: Fitting, rows: Tensor, choice: Choice, *, metric: Tensor | None = None
) -> tuple[Choice, Machine, str]:
    """Fit what was chosen: in a metric as it is, else in one learned on the rows."""
    n_iter = 0 if metric is not None else choice.iteration
    *_, last = fitting.machines(rows, ridge=choice.ridge, n_iter=n_iter, metric=metric)
    return choice, last.machine, str(last.solved.dtype).removeprefix("torch.")


def _attack(
    fitting: Fitting, machine: Machine, rows: Tensor, *, seed: int
) -> dict[str, Any]:
    """Attack test rows as released, and by more than that.

    As released, squared error is raised from a random start and the last point counts.
    That also climbs where the right output exceeds its label, which is no way to
    another class. The strong attack raises the margin, from the row itself and from
    random starts, and the worst point on any way counts.
    """
    run = fitting.run
    rows_and_answers = machine, fitting.x[rows], fitting.y[rows]
    common = {"radii": run["radii"], "norm": "linf", "n_steps": run["n_steps"]}
    released = pgd(
        *rows_and_answers, step_size=run["step"], loss="squared_error", **common,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    strong = pgd(
        *rows_and_answers, loss="margin", start="center", keep="best",
        n_restarts=run["strong_restarts"], **common,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    return {
        "accuracy": released.accuracy,
        # Of the end alone, as released: a wrong row may end up right.
        "attacked": (~released.reached).double().mean(1).tolist(),
        "strongly_attacked": strong.robust_accuracy.tolist(),
    }


def _geometry(fitting: Fitting, machine: Machine, rows: Tensor) -> dict[str, float]:
    """Return means over training rows, a part of them at a time.

    What is not defined, such as the rank of a zero Jacobian, counts as zero.
    On the processor: CUDA decomposes many small matrices one after the other.
    """
    width = fitting.targets.shape[1] * fitting.x.shape[1]
    parts = rows.split(max(_ENTRIES // width, 1))
    sums = dict.fromkeys(_GEOMETRY, 0.0)
    for part in parts:
        x = fitting.x[part].to(machine.coef.dtype)
        jacobian, x = machine.jacobian(x).cpu(), x.cpu()
        for name, quantity in _GEOMETRY.items():
            sums[name] += float(quantity(jacobian, x).nan_to_num(0.0).double().sum())
    return {name: total / len(rows) for name, total in sums.items()}


def _means(folds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over folds; attack success from the mean accuracies."""
    names = ("validation", "accuracy", *_GEOMETRY)
    means: dict[str, Any] = {name: fmean(f[name] for f in folds) for name in names}
    accuracy = means["accuracy"]
    for name, rate in _RATES.items():
        each = zip(*(fold[name] for fold in folds), strict=True)
        means[name] = [fmean(at_radius) for at_radius in each]
        means[rate] = [
            attack_success_rate(accuracy, robust) if accuracy else None
            for robust in means[name]
        ]
    return means
