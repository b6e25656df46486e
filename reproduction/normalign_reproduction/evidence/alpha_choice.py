"""Whether validation rows find an identity weight that makes robustness free."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from normalign_reproduction._errors import require
from normalign_reproduction.evidence.alpha_frontier import frontier_rows
from normalign_reproduction.evidence.alpha_path import (
    PLAIN,
    RADII,
    BySeed,
    Score,
    common_scores,
    leak_free,
)
from normalign_reproduction.evidence.paired import bootstrap_interval
from normalign_reproduction.evidence.tabular import seed_means
from normalign_reproduction.spec import Records, Row
from normalign_reproduction.summaries import mean

__all__ = ["RULES", "chosen_weights", "finding", "validated_rows"]

# Which of the weights that validate equally well is taken.
RULES = {"the largest": max, "the smallest": min}
# Accuracies are shares of at most some ten thousand rows: closer ones are equal.
_EQUAL = 1e-9

Common = Mapping[float, Mapping[str, BySeed]]
Fold = Mapping[str, Any]
# The weights that were chosen, and what they gave.
Taken = tuple[list[float], Score]


def chosen_weights(records: Records, *, rule: str) -> dict[str, dict[int, float]]:
    """Return the weight that validates best, by table and seed.

    A run without a validation score takes no part, nor does a table and seed without
    any.

    Parameters
    ----------
    rule : {"the largest", "the smallest"}
        Which of several weights that are equally good.

    Raises
    ------
    ValueError
        If there is no such rule.
    """
    known = " or ".join(map(repr, RULES))
    require(rule in RULES, "chosen_weights", "rule", known, repr(rule))
    tables = next(iter(common_scores(records).values()), {})
    by_place: dict[tuple[str, int], dict[float, float]] = {}
    for record in leak_free(records):
        place, score = (record["dataset"], record.run.seed), record.result["validation"]
        if score is not None and place[1] in tables.get(place[0], {}):
            by_place.setdefault(place, {})[record["identity_weight"]] = score
    chosen: dict[str, dict[int, float]] = {}
    for (table, seed), validation in sorted(by_place.items()):
        chosen.setdefault(table, {})[seed] = _best(validation, RULES[rule])
    return chosen


def validated_rows(records: Records) -> list[Row]:
    """Return what a validated weight gives, and its change from weight 1, in pairs.

    The weight is chosen by the accuracy on validation rows, for each fold of each seed,
    and once more for all folds together: validation rows of one fold may be test rows
    of another, so that only the choice within a fold is wholly free of a leak. Attacks
    have no say. The last row takes for each table and seed the weight that is most
    accurate on the test rows, which nobody can know: how far a better choice over all
    folds could come.
    """
    common, rows = common_scores(records), []
    if PLAIN not in common:
        return []
    for rule in RULES:
        taken = _by_fold(records, common, RULES[rule])
        title = f"validated in each fold; of equal ones {rule}"
        rows.append(_summary(title, taken, common))
    for rule in RULES:
        chosen = chosen_weights(records, rule=rule)
        taken = _scored(chosen, common)
        rows.append(
            _summary(f"validated over all folds; of equal ones {rule}", taken, common)
        )
    best = {
        table: {seed: _most_accurate(common, table, seed) for seed in by_seed}
        for table, by_seed in common[PLAIN].items()
    }
    taken = _scored(best, common)
    rows.append(_summary("best on the test rows, not to be had", taken, common))
    return [row for row in rows if row["n_tables"]]


def finding(records: Records) -> str:
    """Return whether a validated weight gives robustness for free, by its intervals."""
    rows, counts = validated_rows(records), frontier_rows(records)
    if not rows or not counts:
        return "No table has weight 1 and another."
    first, ever = rows[0], counts[-1]
    said = (
        f"On {ever['free']} of {ever['n_tables']} tables some weight below 1 is as "
        "accurate as weight 1 and has a lower attack success rate at radius 1; on "
        f"{ever['dearer']} weight 1 has the same over some of them. "
    )
    moved = [
        f"{name} by {first[f'{key}_change']:+.2f} points{_reach(first, key)}"
        for name, key in (("accuracy", "accuracy"), ("attack success", "asr_1"))
        if first[f"{key}_change"] is not None
    ]
    said += f"A validated weight is below 1 in {first['below']:.0%} of its choices"
    said += f" and changes {' and '.join(moved)}: " if moved else ": "
    return f"{said}{_answer(first)}, on these {first['n_tables']} tables."


def _best(
    validation: Mapping[float, float], tie: Callable[[list[float]], float]
) -> float:
    best = max(validation.values())
    return tie([w for w, score in validation.items() if score >= best - _EQUAL])


def _most_accurate(common: Common, table: str, seed: int) -> float:
    """Return the weight with the best test accuracy; of equal ones the largest."""
    return max(common, key=lambda w: (common[w][table][seed]["accuracy"] or 0.0, w))


def _scored(
    chosen: Mapping[str, Mapping[int, float]], common: Common
) -> dict[str, dict[int, Taken]]:
    return {
        table: {seed: ([w], common[w][table][seed]) for seed, w in by_seed.items()}
        for table, by_seed in chosen.items()
    }


def _by_fold(
    records: Records, common: Common, tie: Callable[[list[float]], float]
) -> dict[str, dict[int, Taken]]:
    """Choose within each fold, and put the folds together as a run does its own."""
    runs = {
        (r["identity_weight"], r["dataset"], r.run.seed): r for r in leak_free(records)
    }
    taken: dict[str, dict[int, Taken]] = {}
    for table, by_seed in common[PLAIN].items():
        for seed in by_seed:
            mine = {weight: runs[weight, table, seed] for weight in common}
            found = _folds_taken({w: r.result["folds"] for w, r in mine.items()}, tie)
            if found is not None:
                weights, folds = found
                radii = mine[PLAIN]["radii"]
                taken.setdefault(table, {})[seed] = weights, _together(folds, radii)
    return taken


def _folds_taken(
    folds: Mapping[float, Sequence[Fold]], tie: Callable[[list[float]], float]
) -> tuple[list[float], list[Fold]] | None:
    """Return the chosen weight of each fold, and that fold; ``None`` without scores."""
    weights, taken = [], []
    for place in zip(*folds.values(), strict=True):
        scored = {
            weight: fold["validation"]
            for weight, fold in zip(folds, place, strict=True)
            if fold.get("validation") is not None
        }
        if not scored:
            return None
        weights.append(_best(scored, tie))
        taken.append(place[list(folds).index(weights[-1])])
    return weights, taken


def _together(folds: Sequence[Fold], radii: Sequence[float]) -> Score:
    """Return accuracy and attack success of folds, from their mean accuracies."""
    clean = statistics.fmean(fold["accuracy"] for fold in folds)
    score: dict[str, float | None] = {"accuracy": 100 * clean}
    for i, radius in enumerate(radii):
        attacked = statistics.fmean(fold["attacked"][i] for fold in folds)
        score[f"asr_{radius:g}"] = 100 * (clean - attacked) / clean if clean else None
    return score


def _summary(
    title: str, taken: Mapping[str, Mapping[int, Taken]], common: Common
) -> Row:
    """Return means over tables of some choice, beside those of weight 1."""
    counts = Counter(
        weight
        for by_seed in taken.values()
        for weights, _ in by_seed.values()
        for weight in weights
    )
    row: Row = {
        "choice": title,
        "n_tables": len(taken),
        "n_left_out": len(common[PLAIN]) - len(taken),
        "below": 1 - counts[PLAIN] / max(counts.total(), 1),
        "weights": ", ".join(f"{w:g}: {counts[w]}" for w in sorted(common)),
    }
    pairs = [
        (
            seed_means({seed: score for seed, (_, score) in by_seed.items()}),
            seed_means({seed: common[PLAIN][table][seed] for seed in by_seed}),
        )
        for table, by_seed in taken.items()
    ]
    for name in ("accuracy", *(f"asr_{radius}" for radius in RADII)):
        known = [
            (a, b)
            for ours, plain in pairs
            if (a := ours[name]) is not None and (b := plain[name]) is not None
        ]
        moved = [a - b for a, b in known]
        row[name] = mean([a for a, _ in known])
        row[f"{name}_plain"] = mean([b for _, b in known])
        row[f"{name}_change"] = mean(moved)
        row[f"{name}_change_interval"] = bootstrap_interval(moved)
    return row


def _reach(row: Row, name: str) -> str:
    reach = row[f"{name}_change_interval"]
    return "" if reach is None else f" [{reach[0]:+.2f}, {reach[1]:+.2f}]"


def _answer(row: Row) -> str:
    """Return what the two intervals of a choice say."""
    accuracy, rate = (row[f"{n}_change_interval"] for n in ("accuracy", "asr_1"))
    if accuracy is None or rate is None:
        return "too few tables to say more"
    if rate[0] > 0:
        return "less robustness, not more"
    if rate[1] >= 0:
        return "no robustness that could be told from none"
    if accuracy[1] < 0:
        return "robustness, at a price in accuracy"
    return "robustness at no price that could be told from none"
