"""The regularization strategies of the ablation: grid, choices, verdicts, sentences.

What the hyperparameter table and its figure have in common. A *choice* is a number of
probes and a weight; the paper printed one for each strategy in bold, and our rule
selects one from the records.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from normalign_reproduction.spec import Cell, Record, Records, Row
from normalign_reproduction.statistics import final, group_by, interval

__all__ = [
    "BASELINE", "GRID", "LABELS", "PRINTED", "SELECTION", "beyond_baseline",
    "choice_records", "end", "ends", "leads", "printed_is_selected", "rows",
    "select_choices", "spoken_choice", "variants",
]  # fmt: skip

# In the order of the paper's table; its figure has the baseline last.
LABELS = {
    "input": "R by input probes",
    "output": "R by output probes",
    "orthogonal": "R perp",
    "nuclear": "R Nuc",
    "baseline": "Baseline",
}
# tab:hyperparameters: numbers of probes and weights of each strategy, and those in
# bold.
_LONG = (1e-4, 1e-3, 1e-2, 0.1, 1.0)
GRID = {
    "input": ((1, 2, 4), _LONG),
    "output": ((1, 2, 4), _LONG[:-1]),
    "orthogonal": ((1, 2, 4), _LONG),
    "nuclear": ((1, 2, 4), _LONG[:-1]),
}
PRINTED = {
    "input": (1, 0.1), "output": (1, 0.01), "orthogonal": (1, 0.1), "nuclear": (1, 0.01)
}  # fmt: skip
BASELINE = {"strategy": "baseline", "n_probes": 0, "weight": 0.0}
# Evaluations that an end is the mean of: AdamW spikes late in training.
LAST = 3
SELECTION = (
    "For each strategy the highest mean robust accuracy over seeds and the last "
    f"{LAST} evaluations, ties by alignment"
)

Choices = Mapping[str, tuple[int, float]]


def variants(choices: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the variants of some choices, and the baseline.

    Parameters
    ----------
    choices : mapping of strategy to a choice, or to (numbers of probes, weights)

    Examples
    --------
    >>> variants({"output": (1, 0.01)})[0]
    {'strategy': 'output', 'n_probes': 1, 'weight': 0.01}
    >>> len(variants(GRID))
    55
    """
    found = [
        {"strategy": strategy, "n_probes": n, "weight": weight}
        for strategy, (probes, weights) in choices.items()
        for n in (probes if isinstance(probes, tuple) else (probes,))
        for weight in (weights if isinstance(weights, tuple) else (weights,))
    ]
    return (*found, BASELINE)


def end(record: Record, name: str) -> float:
    """Return the end of a column; NaN of a run that did not reach its last epoch."""
    reached = record.result["stopped"] == "epochs"
    return final(record, name, over=LAST) if reached else math.nan


def ends(group: Records, name: str) -> float:
    """Return the mean over seeds of the ends; NaN if a run diverged."""
    return statistics.fmean(end(record, name) for record in group)


def choice_records(records: Records, choices: Choices) -> dict[str, list[Record]]:
    """Return the records of one choice of each strategy, and of the baseline."""
    groups = group_by(records, "strategy", "n_probes", "weight")
    wanted = [(strategy, *choice) for strategy, choice in choices.items()]
    wanted.append(tuple(BASELINE.values()))
    return {key[0]: groups[key] for key in wanted if key in groups}


def select_choices(records: Records) -> dict[str, tuple[int, float]]:
    """Return the choice of each strategy by our rule, :data:`SELECTION`.

    A choice with a run that diverged is not selected. Where all is equal, fewer probes
    and then the smaller weight.
    """
    best: dict[str, tuple[Any, ...]] = {}
    for (strategy, n, weight), group in group_by(
        records, "strategy", "n_probes", "weight"
    ).items():
        score = ends(group, "robust_accuracy"), ends(group, "normal_alignment")
        if strategy == "baseline" or not all(map(math.isfinite, score)):
            continue
        best[strategy] = max(best.get(strategy, ()), (*score, -n, -weight))
    order = [strategy for strategy in LABELS if strategy in best]
    return {strategy: (-best[strategy][2], -best[strategy][3]) for strategy in order}


def rows(records: Records) -> list[Row]:
    """Return a row for each strategy, number of probes and weight."""
    ours = select_choices(records)
    groups = group_by(records, "strategy", "n_probes", "weight")
    order = list(LABELS)
    made = []
    for key in sorted(groups, key=lambda key: (order.index(key[0]), *key[1:])):
        strategy, n, weight = key
        row: Row = {
            "strategy": LABELS[strategy],
            "n_probes": n or None,
            "weight": weight or None,
            "n": len(groups[key]),
            "ours": "selected" if ours.get(strategy) == (n, weight) else "",
            "paper": "bold" if PRINTED.get(strategy) == (n, weight) else "",
        }
        for name in _MEASURES:
            values = [end(record, name) for record in groups[key]]
            whole = all(map(math.isfinite, values))
            row[name] = statistics.fmean(values) if whole else None
            row[f"{name}_interval"] = interval(values) if whole else None
        made.append(row)
    return made


_MEASURES = ("robust_accuracy", "test_accuracy", "normal_alignment", "effective_rank")
_WORDS = {
    "robust_accuracy": "robust accuracy",
    "normal_alignment": "normal alignment",
    "effective_rank": "effective rank",
}


def beyond_baseline(
    name: str, *, factor: float = 1.0, points: float = 0.0
) -> Callable[[Records], list[Cell]]:
    """Return a check that each printed choice is beyond the baseline in a column.

    The mean over seeds must be above ``factor`` times the baseline's plus ``points``;
    the effective rank must be below it.
    """
    lower = name == "effective_rank"
    sign, word = (-1, "below") if lower else (1, "above")

    def check(records: Records) -> list[Cell]:
        groups = choice_records(records, PRINTED)
        limit = factor * ends(groups.pop("baseline"), name) + points
        found = []
        for strategy, group in groups.items():
            value = ends(group, name)
            whole = math.isfinite(value) and math.isfinite(limit)
            found.append(
                Cell(
                    f"{LABELS[strategy]}, {_WORDS[name]}", f"{word} the baseline",
                    f"{value:.3g}", sign * (value - limit) > 0 if whole else None,
                    f"{value:.4g}, to be {word} {limit:.4g}",
                )
            )  # fmt: skip
        return found

    return check


def leads(
    choose: Callable[[Records], Choices], *, tolerant: bool
) -> Callable[[Records], list[Cell]]:
    """Return a check that output probes come first, in alignment and robust accuracy.

    Parameters
    ----------
    choose : callable
        From records to the choice of each strategy.
    tolerant : bool
        Whether the best of the others may be ahead by one standard error of the
        differences, seed by seed.
    """

    def check(records: Records) -> list[Cell]:
        groups = choice_records(records, choose(records))
        return [
            _lead(groups, name, tolerant)
            for name in ("normal_alignment", "robust_accuracy")
        ]

    return check


def _lead(groups: dict[str, list[Record]], name: str, tolerant: bool) -> Cell:
    means = {strategy: ends(group, name) for strategy, group in groups.items()}
    means = {strategy: v for strategy, v in means.items() if math.isfinite(v)}
    cell, paper = f"Final {_WORDS[name]}", f"{LABELS['output']} highest"
    if "output" not in means or len(means) < 2:
        return Cell(cell, paper, "", None, "too few strategies reached their end")
    rival = max((s for s in means if s != "output"), key=lambda s: means[s])
    first = LABELS[max(means, key=lambda s: means[s])]
    gap, error = _difference(groups[rival], groups["output"], name)
    why = (
        f"{LABELS['output']} {means['output']:.4g}, {LABELS[rival]} {means[rival]:.4g}"
    )
    if not tolerant or gap < 0:
        return Cell(cell, paper, f"{first} highest", gap < 0, why)
    if error is None:
        return Cell(cell, paper, f"{first} highest", None, f"{why}; one seed")
    why = f"{why}; ahead by {gap:.3g}, standard error {error:.3g}"
    return Cell(cell, paper, f"{first} highest", gap <= error, why)


def _difference(
    group: Records, other: Records, name: str
) -> tuple[float, float | None]:
    """Return the mean difference, seed by seed, and its standard error."""
    theirs = {record.run.seed: end(record, name) for record in other}
    pairs = [
        end(record, name) - theirs[record.run.seed]
        for record in group
        if record.run.seed in theirs
    ]
    error = statistics.stdev(pairs) / len(pairs) ** 0.5 if len(pairs) > 1 else None
    return statistics.fmean(pairs), error


def printed_is_selected(records: Records) -> list[Cell]:
    """Return, for each strategy, whether our rule selects what the paper printed."""
    ours = select_choices(records)
    groups = group_by(records, "strategy", "n_probes", "weight")
    found = []
    for strategy, printed in PRINTED.items():
        mine, group = ours.get(strategy), groups.get((strategy, *printed))
        if mine is None or group is None:
            why = "too few runs reached their end"
            found.append(Cell(LABELS[strategy], spoken_choice(printed), "", None, why))
            continue
        best = groups[strategy, *mine]
        why = (
            f"robust accuracy {ends(best, 'robust_accuracy'):.4g} as we select, "
            f"{ends(group, 'robust_accuracy'):.4g} as printed"
        )
        found.append(
            Cell(
                LABELS[strategy], spoken_choice(printed), spoken_choice(mine),
                mine == printed, why,
            )
        )  # fmt: skip
    return found


def spoken_choice(choice: tuple[int, float]) -> str:
    """Return a choice in words.

    Examples
    --------
    >>> spoken_choice((1, 0.01))
    '1 probe, weight 0.01'
    """
    n, weight = choice
    return f"{n} probe{'s' if n > 1 else ''}, weight {weight:g}"
