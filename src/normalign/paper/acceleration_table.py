"""Table 1 from its runs: who grokked, when, how much sooner, and how surely."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from scipy import stats

from normalign._checks import require
from normalign.paper.acceleration import METHODS, TASKS, Task
from normalign.paper.store import provenance, write_json
from normalign.training import Trained

__all__ = [
    "acceleration_rows",
    "epochs_to_grok",
    "paired_p",
    "published_acceleration",
    "read_acceleration",
    "welch_p",
    "write_acceleration",
]

# The epoch at which each seed grokked, or None: by method, and by task and method.
BySeed = Mapping[int, int | None]
Results = Mapping[str, Mapping[str, BySeed]]

_FIELDS = ("share", "epochs", "speedup", "p")


def epochs_to_grok(
    task: Task, trained: Sequence[Trained]
) -> dict[str, dict[int, int | None]]:
    """Return the epoch at which each run of a task grokked, by method and seed.

    It is the first evaluated one that meets the task's criteria, and ``None`` for a run
    that was trained to its last epoch or diverged without meeting them. Which method a
    run belongs to is read off its :class:`~normalign.training.Member`, so that the runs
    may come in any order.

    Raises
    ------
    ValueError
        If a run is not of this task, comes twice, or was ended before its last epoch.
    """
    callee, found = "epochs_to_grok", {}
    for i, run in enumerate(trained):
        argument, seed = f"trained[{i}]", run.member.seed
        fitting = (m for m in METHODS if task.member(m, seed) == run.member)
        method = next(fitting, None)
        rule = f"a run of the task {task.title!r}"
        require(method is not None, callee, argument, rule, f"{run.member}")
        assert method is not None
        seeds = found.setdefault(method, {})
        rule = "one run for each method and seed"
        require(seed not in seeds, callee, argument, rule, f"another {method}, {seed}")
        row = run.history.first(task.has_grokked)
        ended = row is not None or run.stopped in ("epochs", "diverged")
        rule = "grokked, diverged or trained to its last epoch"
        remedy = "Train it on from its checkpoint."
        require(ended, callee, argument, rule, f"{run.stopped!r}", remedy)
        seeds[seed] = None if row is None else int(row["epoch"])
    return {method: found[method] for method in METHODS if method in found}


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
        As :func:`epochs_to_grok` gives them for each task.

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
    path = files("normalign.paper").joinpath("published", "table1.csv")
    lines = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    return {
        (line["task"], line["method"]): {
            name: float(line[name]) if line[name] else None for name in _FIELDS
        }
        for line in lines
    }


def write_acceleration(
    path: str | Path,
    results: Results,
    *,
    preset: str,
    device: str,
    seconds: float,
    finished: Mapping[str, Mapping[str, float]] | None = None,
    commit: str | None = None,
) -> Path:
    """Write runs of Table 1 as a small JSON file, with what they were made by.

    Parameters
    ----------
    results : mapping of task to method to seed to epoch
    preset : {"released", "text"}
    device : str
        Its name in words.
    seconds : float
        From the first line of set-up to the last network.
    finished : mapping of task to method to float, optional
        When the last of their seeds had finished, in seconds from the same start.
    commit : str, optional
        What was run, where the package is in no repository.
    """
    callee, rule = "write_acceleration", " or ".join(map(repr, TASKS))
    require(preset in TASKS, callee, "preset", rule, repr(preset))
    made = provenance()
    record = {
        "table": "acceleration",
        "preset": preset,
        **made,
        "commit": commit or made["commit"],
        "device": device,
        "seconds": seconds,
        "tasks": {
            task: {
                method: {
                    "seeds": list(by_seed),
                    "epochs": list(by_seed.values()),
                    "finished": (finished or {}).get(task, {}).get(method),
                }
                for method, by_seed in methods.items()
            }
            for task, methods in results.items()
        },
    }
    return write_json(Path(path), record)


def read_acceleration(path: str | Path) -> dict[str, dict[str, dict[int, int | None]]]:
    """Return the results in a file of :func:`write_acceleration`.

    Raises
    ------
    ValueError
        If the file holds something else.
    """
    record = json.loads(Path(path).read_text(encoding="utf-8"))
    rule, named = "a file that write_acceleration wrote", Path(path).name
    known = isinstance(record, dict) and record.get("table") == "acceleration"
    require(known, "read_acceleration", "path", rule, named)
    return {
        task: {
            method: dict(zip(cell["seeds"], cell["epochs"], strict=True))
            for method, cell in methods.items()
        }
        for task, methods in record["tasks"].items()
    }


def _grokked(by_seed: BySeed) -> dict[int, int]:
    return {seed: epoch for seed, epoch in by_seed.items() if epoch is not None}


def _summary(by_seed: BySeed) -> dict[str, Any]:
    """Return how many grokked, and when."""
    epochs = list(_grokked(by_seed).values())
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
    ours, theirs = _grokked(by_seed), _grokked(baseline)
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
