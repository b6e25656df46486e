"""Table 1 from its runs: who grokked, when, how much sooner, and how surely."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from normalign_reproduction.files import read_csv
from normalign_reproduction.report.tables import data_words
from normalign_reproduction.spec import Records
from normalign_reproduction.statistics import group_by, interval

__all__ = [
    "METHOD_TITLES", "TASK_TITLES", "acceleration_rows", "cost_rows", "epochs_by_seed",
    "paired_p", "published_acceleration", "table_rows", "welch_p",
]  # fmt: skip

# The epoch at which each seed grokked, or None: by method, and by task and method.
BySeed = Mapping[int, int | None]
Results = Mapping[str, Mapping[str, BySeed]]

_FIELDS = ("share", "epochs", "speedup", "p")

TASK_TITLES = {
    "xor": "XOR", "parity": "Sparse parity", "mnist_ce": "MNIST, cross-entropy",
    "mnist_se": "MNIST, squared error", "modular": "Modular addition",
}  # fmt: skip
METHOD_TITLES = {
    "baseline": "Baseline", "grokfast": "Grokfast", "orthograd": "OrthoGrad",
    "grokalign": "GrokAlign", "grokfast_matched": "Grokfast, rate / 1.1",
    "grokalign_tuned": "GrokAlign, tuned",
}  # fmt: skip


def epochs_by_seed(records: Records) -> dict[str, dict[str, dict[int, int | None]]]:
    """Return the epoch at which each run grokked, by task, method and seed.

    ``None`` is a run that was trained to its last epoch, or diverged, without meeting
    the criteria. Tasks and methods come in the table's order.
    """
    groups = group_by(records, "task", "method")
    return {
        task: {
            method: {r.run.seed: r.result["epoch"] for r in groups[task, method]}
            for method in METHOD_TITLES
            if (task, method) in groups
        }
        for task in TASK_TITLES
        if any(known == task for known, _ in groups)
    }


def table_rows(records: Records) -> list[dict[str, Any]]:
    """Return the rows of Table 1, named as the paper names them, with intervals."""
    results, groups = epochs_by_seed(records), group_by(records, "task", "method")
    rows = []
    for row in acceleration_rows(results):
        of_cell = groups[row["task"], row["method"]]
        epochs = _grokking_epochs(results[row["task"]][row["method"]]).values()
        reach = interval([float(epoch) for epoch in epochs])
        rows.append(
            row
            | {
                "task": TASK_TITLES[row["task"]],
                "method": METHOD_TITLES[row["method"]],
                "epochs_interval": reach,
                "data": data_words(record.run.data for record in of_cell),
            }
        )
    return rows


def cost_rows(records: Records) -> list[dict[str, Any]]:
    r"""Return what an epoch costs, and the speed-up in seconds.

    .. math:: \text{speed-up in seconds} = \text{speed-up in epochs} \cdot
        \frac{\text{seconds of an epoch of the baseline}}{\text{of the method}}

    Seconds of an epoch are those of all seeds in lockstep, without evaluations.
    """
    groups = group_by(records, "task", "method")
    rows = []
    for row in acceleration_rows(epochs_by_seed(records)):
        task, method = row["task"], row["method"]
        paces = _paces(groups[task, method])
        base = _paces(groups.get((task, "baseline"), []))
        # Only what was timed in the same way can be compared.
        ways = [way for way in paces if way in base] or list(paces)
        way = max(ways, key=lambda way: len(paces[way]))
        pace = statistics.median(paces[way])
        relative = pace / statistics.median(base[way]) if way in base else None
        speedup = row["speedup"]
        faster = None if speedup is None or not relative else speedup / relative
        weights = {r.result["weight"] for r in groups[task, method]}
        rows.append(
            {
                "task": TASK_TITLES[task],
                "method": METHOD_TITLES[method],
                "data": data_words(r.run.data for r in groups[task, method]),
                "share": row["share"],
                "weight": weights.pop() if len(weights) == 1 else None,
                "pace": 1000 * pace,
                "relative": relative,
                "speedup": speedup,
                "faster": faster,
            }
        )
    return rows


def _paces(records: Records) -> dict[Any, list[float]]:
    """Return the seconds of an epoch by device and by how many seeds shared it."""
    paces: dict[Any, list[float]] = {}
    for record in records:
        way = record.made.get("device"), record.result.get("seeds_together")
        paces.setdefault(way, []).append(record.result["seconds_per_epoch"])
    return paces


def paired_p(one: Sequence[float], other: Sequence[float]) -> float | None:
    r"""Return the two-sided p-value of Student's paired t-test.

    .. math:: t = \bar\delta \big/ \sqrt{s_\delta^2 / n}, \qquad n - 1
        \text{ degrees of freedom}

    ``None`` where there is no such test: fewer than two pairs, or differences that do
    not vary.

    Examples
    --------
    >>> round(paired_p([3, 5], [2, 2]), 3)  # t = 2: 1 - 2 arctan(2) / pi
    0.295
    """
    differences = [a - b for a, b in zip(one, other, strict=True)]
    if len(set(differences)) < 2:
        return None
    found: Any = stats.ttest_1samp(differences, 0.0)
    return float(found.pvalue)


def welch_p(one: Sequence[float], other: Sequence[float]) -> float | None:
    r"""Return the two-sided p-value of Welch's t-test, of unpaired samples.

    .. math:: t = (\bar a - \bar b) \big/ \sqrt{s_a^2 / n_a + s_b^2 / n_b}

    ``None`` where there is no such test: a sample of fewer than two, or two that do
    not vary. The paper speaks of a paired test, its released summary takes this one.

    Examples
    --------
    >>> round(welch_p([0, 2], [2, 4]), 3)  # t^2 = 2: 1 - sqrt(2 / (2 + 2))
    0.293
    """
    if min(len(one), len(other)) < 2 or len(set(one)) == len(set(other)) == 1:
        return None
    moments = (
        part(sample)
        for sample in (one, other)
        for part in (statistics.fmean, statistics.stdev, len)
    )
    found: Any = stats.ttest_ind_from_stats(*moments, equal_var=False)
    return float(found.pvalue)


def acceleration_rows(results: Results) -> list[dict[str, Any]]:
    """Return the cells of Table 1, a row for each task and method, beside the paper's.

    Means and standard deviations are over the seeds that grokked, as in the paper; the
    speed-up is the baseline's mean over the method's, and the paired test takes the
    seeds that grokked both ways. A method that loses its slow seeds gains by that:
    read the mean with the share. What is not defined is ``None``.

    Parameters
    ----------
    results : mapping of task to method to seed to epoch
        As :func:`epochs_by_seed` gives them.

    Returns
    -------
    list of dict
        ``task``, ``method``, ``n_seeds``, ``n_grokked``, ``share``, ``epochs``,
        ``epochs_std``, ``speedup``, ``n_paired``, ``p_paired``, ``p_welch``, and the
        paper's ``published_share``, ``published_epochs``, ``published_speedup`` and
        ``published_p``.

    Examples
    --------
    >>> results = {"xor": {"baseline": {0: 90, 1: 110}, "grokalign": {0: 50, 1: None}}}
    >>> row = acceleration_rows(results)[1]
    >>> row["share"], row["speedup"], row["published_speedup"]
    (0.5, 2.0, 1.51)
    """
    published = published_acceleration()
    rows = []
    for task, methods in results.items():
        baseline = methods.get("baseline", {})
        for method, by_seed in methods.items():
            printed = published.get((task, method), dict.fromkeys(_FIELDS))
            row = {"task": task, "method": method, **_summary(by_seed)}
            row |= _comparison(by_seed, {} if method == "baseline" else baseline)
            row |= {f"published_{name}": value for name, value in printed.items()}
            rows.append(row)
    return rows


def published_acceleration() -> dict[tuple[str, str], dict[str, float | None]]:
    """Return Table 1 as the paper prints it, by task and method.

    ``share`` is a fraction; ``epochs``, ``speedup`` and ``p`` are ``None`` where the
    paper prints nothing or a dash. An asterisk there is a p-value above 0.05 here.

    Examples
    --------
    >>> published_acceleration()["modular", "grokalign"]["epochs"]
    166.0
    """
    lines = read_csv(Path(__file__).with_name("published.csv"))
    return {
        (line["task"], line["method"]): {
            name: float(line[name]) if line[name] else None for name in _FIELDS
        }
        for line in lines
    }


def _grokking_epochs(by_seed: BySeed) -> dict[int, int]:
    return {seed: epoch for seed, epoch in by_seed.items() if epoch is not None}


def _summary(by_seed: BySeed) -> dict[str, Any]:
    """Return how many grokked, and when."""
    epochs = list(_grokking_epochs(by_seed).values())
    n = len(by_seed)
    return {
        "n_seeds": n,
        "n_grokked": len(epochs),
        "share": len(epochs) / n if n else None,
        "epochs": statistics.fmean(epochs) if epochs else None,
        "epochs_std": statistics.stdev(epochs) if len(epochs) > 1 else None,
    }


def _comparison(by_seed: BySeed, baseline: BySeed) -> dict[str, Any]:
    """Return how much sooner than the baseline; None where that is not defined."""
    ours, theirs = _grokking_epochs(by_seed), _grokking_epochs(baseline)
    both = [seed for seed in ours if seed in theirs]
    speedup = None
    if theirs and any(ours.values()):
        speedup = statistics.fmean(theirs.values()) / statistics.fmean(ours.values())
    return {
        "speedup": speedup,
        "n_paired": len(both),
        "p_paired": paired_p([ours[s] for s in both], [theirs[s] for s in both]),
        "p_welch": welch_p(list(ours.values()), list(theirs.values())),
    }
