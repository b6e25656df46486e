"""The path between RFM and RFAM: rows by identity weight, and validated weights."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from normalign_reproduction._errors import require
from normalign_reproduction.items.table2.rows import scores, seed_means
from normalign_reproduction.spec import Record, Records, Row
from normalign_reproduction.statistics import bootstrap_interval, drop_none, mean

__all__ = [
    "PLAIN", "PROTOCOL", "RADII", "RULES", "BySeed", "Score", "chosen_weights",
    "common_scores", "defined_tables", "finding", "frontier_rows", "leak_free",
    "path_rows", "quartile_tables", "table_means", "validated_rows",
]  # fmt: skip

PROTOCOL = "leak-free"
PLAIN = 1.0  # RFM's weight
RADII = ("0.1", "1", "2")
_QUANTITIES = (
    "accuracy", *(f"asr_{radius}" for radius in RADII), "strong_1", "normal_alignment",
)  # fmt: skip

Score = Mapping[str, float | None]
BySeed = dict[int, dict[str, float | None]]


def leak_free(records: Records) -> list[Record]:
    """Return the runs of RFM, RFAM and what is between them that have no leak."""
    return [r for r in records if r["method"] == "rfam" and r["protocol"] == PROTOCOL]


def common_scores(records: Records) -> dict[float, dict[str, BySeed]]:
    """Return the numbers by weight, table and seed, where all weights have them.

    Weights rise, tables come by name. A seed that a weight lacks is left out of its
    table, and a table without a seed that all have is left out altogether.
    """
    weights = sorted({record["identity_weight"] for record in leak_free(records)})
    found = {
        weight: scores(records, protocol=PROTOCOL, identity_weight=weight)
        for weight in weights
    }
    if not found:
        return {}
    kept: dict[str, list[int]] = {}
    for table in sorted(set.intersection(*(set(by) for by in found.values()))):
        seeds = sorted(set.intersection(*(set(by[table]) for by in found.values())))
        if seeds:
            kept[table] = seeds
    return {
        weight: {
            table: {seed: by_table[table][seed] for seed in seeds}
            for table, seeds in kept.items()
        }
        for weight, by_table in found.items()
    }


def table_means(records: Records) -> dict[float, dict[str, dict[str, float | None]]]:
    """Return the means over seeds, by weight and table."""
    return {
        weight: {table: seed_means(by_seed) for table, by_seed in by_table.items()}
        for weight, by_table in common_scores(records).items()
    }


def defined_tables(found: Mapping[float, Mapping[str, Score]], name: str) -> list[str]:
    """Return the tables on which all weights have a quantity."""
    tables = next(iter(found.values()), {})
    return [
        table
        for table in tables
        if all(by_table[table][name] is not None for by_table in found.values())
    ]


def path_rows(records: Records) -> list[Row]:
    """Return means over tables for each weight, and their change from weight 1.

    Each quantity is over the tables where all weights have it, so that every line of
    a column is of the same tables.
    """
    found = table_means(records)
    rows: list[Row] = []
    for weight, by_table in found.items():
        row: Row = {"weight": weight, "n_tables": len(by_table)}
        for name in _QUANTITIES:
            tables = defined_tables(found, name)
            values = drop_none(by_table[table][name] for table in tables)
            row[name] = mean(values)
            row[f"{name}_interval"] = bootstrap_interval(values)
            if (
                name in ("accuracy", "asr_1", "strong_1")
                and PLAIN in found
                and weight != PLAIN
            ):
                base = drop_none(found[PLAIN][table][name] for table in tables)
                moved = [a - b for a, b in zip(values, base, strict=True)]
                row[f"{name}_change"] = mean(moved)
                row[f"{name}_change_interval"] = bootstrap_interval(moved)
        row["n_undefined"] = len(by_table) - len(defined_tables(found, "asr_1"))
        rows.append(row)
    return rows


def quartile_tables(records: Records) -> list[str]:
    """Return the tables at the quartiles of how attack success changes, 1 to 0.

    From the largest fall to the largest rise, each once: five, or as many as there are.
    """
    found = table_means(records)
    if PLAIN not in found or 0.0 not in found:
        return []
    changes = sorted(
        (new - old, table)
        for table in found[PLAIN]
        if (new := found[0.0][table]["asr_1"]) is not None
        and (old := found[PLAIN][table]["asr_1"]) is not None
    )
    last = len(changes) - 1
    places = dict.fromkeys(round(share * last / 4) for share in range(5))
    return [changes[place][1] for place in places if changes]


_JUDGED = ("as_accurate", "free", "clear", "dearer")
_HAIR = 1e-9  # of rounding in a mean of folds


def frontier_rows(records: Records) -> list[Row]:
    r"""Return on how many tables a weight below one makes robustness free.

    A weight is *as accurate* on a table if :math:`\bar\delta \ge -s/\sqrt m` for its
    differences to weight 1 in the ``m`` folds of all seeds; *free* if it also has a
    lower attack success rate at radius 1, *clearly* so by more than one such standard
    error of that rate. *Dearer* is *free* with the two weights exchanged: weight 1 is
    as accurate as this one and has the lower rate, which chance alone would give as
    often as *free*. Folds overlap, so the errors are on the small side.

    The last row counts tables where any weight does; best of several, it is larger by
    chance, and so is its *dearer*.
    """
    judged = _classify(records)
    rows: list[Row] = [
        {"weight": f"{weight:g}", **_counts([[one] for one in by_table.values()])}
        for weight, by_table in judged.items()
    ]
    if judged:
        tables = next(iter(judged.values()))
        every = [[by[table] for by in judged.values()] for table in tables]
        rows.append({"weight": "any below 1", **_counts(every)})
    return rows


def _classify(records: Records) -> dict[float, dict[str, dict[str, bool]]]:
    """Return for each weight below 1 and table what it is: as accurate, free, ..."""
    common, found = common_scores(records), table_means(records)
    if PLAIN not in found:
        return {}
    runs = {
        (r["identity_weight"], r["dataset"], r.run.seed): r for r in leak_free(records)
    }
    judged: dict[float, dict[str, dict[str, bool]]] = {}
    for weight in (weight for weight in found if weight != PLAIN):
        judged[weight] = {}
        for table in defined_tables(found, "asr_1"):
            twins = [
                (runs[weight, table, seed], runs[PLAIN, table, seed])
                for seed in common[weight][table]
            ]
            new, old = drop_none(
                [found[weight][table]["asr_1"], found[PLAIN][table]["asr_1"]]
            )
            judged[weight][table] = _judgement(twins, new - old)
    return judged


def _judgement(twins: Sequence[tuple[Record, Record]], moved: float) -> dict[str, bool]:
    """Compare a weight with weight 1 on a table, within their standard errors.

    Parameters
    ----------
    moved : float
        By how much the attack success rate differs.
    """
    accuracy, rate = [], []
    for one, other in twins:
        radius = list(one["radii"]).index(1.0)
        folds = zip(one.result["folds"], other.result["folds"], strict=True)
        for mine, theirs in folds:
            accuracy.append(100 * (mine["accuracy"] - theirs["accuracy"]))
            # A fold without a right row has no rate.
            rates = drop_none([_rate(mine, radius), _rate(theirs, radius)])
            rate += [rates[0] - rates[1]] if len(rates) == 2 else []
    change, error = statistics.fmean(accuracy), _standard_error(accuracy) + _HAIR
    as_accurate = change >= -error
    return {
        "as_accurate": as_accurate,
        "free": as_accurate and moved < 0,
        "clear": as_accurate and moved < -_standard_error(rate),
        "dearer": change <= error and moved > 0,
    }


def _rate(fold: Mapping[str, Any], radius: int) -> float | None:
    clean = fold["accuracy"]
    return 100 * (clean - fold["attacked"][radius]) / clean if clean else None


def _standard_error(values: Sequence[float]) -> float:
    n = len(values)
    return statistics.stdev(values) / math.sqrt(n) if n > 1 else 0.0


def _counts(tables: Sequence[Sequence[Mapping[str, bool]]]) -> Row:
    """Count the tables where any of some weights is so."""
    counted = {n: sum(any(one[n] for one in some) for some in tables) for n in _JUDGED}
    return {"n_tables": len(tables), **counted}


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
        taken = _scores_of(chosen, common)
        rows.append(
            _summary(f"validated over all folds; of equal ones {rule}", taken, common)
        )
    best = {
        table: {seed: _most_accurate(common, table, seed) for seed in by_seed}
        for table, by_seed in common[PLAIN].items()
    }
    taken = _scores_of(best, common)
    rows.append(_summary("best on the test rows, not to be had", taken, common))
    return [row for row in rows if row["n_tables"]]


def finding(records: Records) -> str:
    """Return what a weight validated in each fold changes."""
    rows = validated_rows(records)
    if not rows:
        return "No table has weight 1 and another."
    changes = [
        f"{name} by {rows[0][f'{key}_change']:+.2f} points{_reach(rows[0], key)}"
        for name, key in (("accuracy", "accuracy"), ("attack success", "asr_1"))
        if rows[0][f"{key}_change"] is not None
    ]
    return (
        f"On {rows[0]['n_tables']} tables a validated weight is below 1 in "
        f"{rows[0]['below']:.0%} of its choices and changes {' and '.join(changes)}."
    )


def _best(
    validation: Mapping[float, float], tie: Callable[[list[float]], float]
) -> float:
    best = max(validation.values())
    return tie([w for w, score in validation.items() if score >= best - _EQUAL])


def _most_accurate(common: Common, table: str, seed: int) -> float:
    """Return the weight with the best test accuracy; of equal ones the largest."""
    return max(common, key=lambda w: (common[w][table][seed]["accuracy"] or 0.0, w))


def _scores_of(
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
