"""Where RFAM stands among other methods: accuracies, ranks and paired tests.

Accuracies are means over the folds of a table and over seeds, of runs without a leak.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import stats

from normalign_reproduction.spec import Record, Records
from normalign_reproduction.statistics import (
    NONE,
    group_by,
    holm,
    mean,
    signed_rank_p,
)

__all__ = [
    "REFERENCE", "TITLES", "Standing", "finding", "seconds_rows", "standing",
    "standing_rows", "table_rows",
]  # fmt: skip

REFERENCE = "rfam"
# Methods by name, in the order of tables.
TITLES = {
    "rfam": "RFAM", "rfm": "RFM", "validated": "RFAM, α validated", "svc": "SVC",
    "random_forest": "Random forest",
    "hist_gradient_boosting": "Histogram gradient boosting", "catboost": "CatBoost",
    "xrfm": "xRFM, as it comes", "logistic_regression": "Logistic regression",
    "most_frequent": "Most frequent class",
}  # fmt: skip
_MACHINES = {0.0: "rfam", 1.0: "rfm"}


@dataclass(frozen=True)
class Standing:
    """Accuracies of methods on tables, and what they say of each other.

    Parameters
    ----------
    accuracies : mapping of method to mapping of table to float
        Only what there is; methods in the order of :data:`TITLES`.
    """

    accuracies: Mapping[str, Mapping[str, float]]

    @cached_property
    def complete(self) -> list[str]:
        """The tables on which all methods have a result, sorted."""
        known = [set(of_method) for of_method in self.accuracies.values()]
        return sorted(set.intersection(*known)) if known else []

    def mean_accuracy(self, method: str) -> float | None:
        """Return a method's mean over the complete tables."""
        return mean([self.accuracies[method][table] for table in self.complete])

    @cached_property
    def mean_ranks(self) -> dict[str, float]:
        """The mean rank of each method over the complete tables; 1 is the best."""
        if not self.complete:
            return {}
        ranks = [
            stats.rankdata([-round(of[table], 5) for of in self.accuracies.values()])
            for table in self.complete
        ]
        return dict(zip(self.accuracies, np.mean(ranks, axis=0).tolist(), strict=True))

    @cached_property
    def friedman_p(self) -> float | None:
        """Friedman's test that all methods are alike; None where there is no test."""
        columns = [
            [round(of[table], 5) for table in self.complete]
            for of in self.accuracies.values()
        ]
        alike = all(column == columns[0] for column in columns)
        if len(columns) < 3 or len(self.complete) < 2 or alike:
            return None
        found: Any = stats.friedmanchisquare(*columns)
        return float(found.pvalue)

    def differences(self, method: str) -> list[float]:
        """Return RFAM's accuracy less a method's, on all tables that both have."""
        ours, theirs = self.accuracies.get(REFERENCE, {}), self.accuracies[method]
        return [ours[table] - theirs[table] for table in ours if table in theirs]

    @cached_property
    def tests(self) -> dict[str, tuple[float, float]]:
        """Wilcoxon's p of RFAM against each other method, plain and after Holm."""
        found = {
            method: signed_rank_p(self.differences(method))
            for method in self.accuracies
            if method != REFERENCE
        }
        plain = {method: p for method, p in found.items() if p is not None}
        corrected = holm(list(plain.values()))
        return {
            method: (p, whole)
            for (method, p), whole in zip(plain.items(), corrected, strict=True)
        }


def standing(records: Records) -> Standing:
    """Return the accuracies of all methods that have runs without a leak.

    RFAM with a validated identity weight is made of the runs of RFAM and RFM: in each
    fold the one whose validation rows, which are of the training fold, it answers
    better; of equal ones RFM, as :class:`normalign.RFAMClassifierCV` would.
    """
    by_method: dict[str, dict[str, list[float]]] = {name: {} for name in TITLES}
    machines: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        if record["protocol"] != "leak-free":
            continue
        table, name = record["dataset"], _name(record)
        if record["method"] == "rfam":
            machines.setdefault((table, record.run.seed), []).append(record)
        if name in TITLES and record.result["accuracy"] is not None:
            accuracy = record.result["accuracy"]
            by_method[name].setdefault(table, []).append(accuracy)
    for (table, _), group in sorted(machines.items()):
        pair = [one for one in group if one["identity_weight"] in _MACHINES]
        if len(pair) == len(_MACHINES):
            found = by_method["validated"].setdefault(table, [])
            found.append(_validated_accuracy(pair))
    return Standing(
        {
            name: {table: statistics.fmean(all_) for table, all_ in sorted(of.items())}
            for name, of in by_method.items()
            if of
        }
    )


def _name(record: Record) -> str:
    """Return the method of a run; machines between RFAM and RFM have no name."""
    if record["method"] != "rfam":
        return record["method"]
    return _MACHINES.get(record["identity_weight"], "")


def _validated_accuracy(machines: Sequence[Record]) -> float:
    """Return the mean accuracy over folds of what the validation rows of each chose."""
    nearest = sorted(machines, key=lambda one: -one["identity_weight"])
    folds = zip(*(one.result["folds"] for one in nearest), strict=True)
    chosen = (
        max(candidates, key=lambda fold: fold["validation"]) for candidates in folds
    )
    return statistics.fmean(fold["accuracy"] for fold in chosen)


def standing_rows(records: Records) -> list[dict[str, Any]]:
    """Return a row for each method: mean accuracy and rank, and RFAM against it."""
    found = standing(records)
    rows = []
    for method in found.accuracies:
        row: dict[str, Any] = {
            "method": TITLES[method],
            "n_results": len(found.accuracies[method]),
            "n_complete": len(found.complete),
            "accuracy": found.mean_accuracy(method),
            "rank": found.mean_ranks.get(method),
        }
        differences = [] if method == REFERENCE else found.differences(method)
        if differences:
            plain, corrected = found.tests.get(method, (None, None))
            row |= {
                "n_pairs": len(differences),
                "wins": sum(value >= NONE for value in differences),
                "ties": sum(abs(value) < NONE for value in differences),
                "losses": sum(value <= -NONE for value in differences),
                "difference": statistics.fmean(differences),
                "median": statistics.median(differences),
                "p": plain,
                "p_holm": corrected,
            }
        rows.append(row)
    return rows


def table_rows(records: Records) -> list[dict[str, Any]]:
    """Return a row for each table: its shape, and every method's accuracy."""
    found = standing(records)
    rows = []
    for (table,), group in sorted(group_by(records, "dataset").items()):
        facts = group[0].result
        row = {"table": table} | {
            name: facts[name] for name in ("n_rows", "n_inputs", "n_classes")
        }
        row |= {name: of.get(table) for name, of in found.accuracies.items()}
        rows.append(row)
    return rows


def seconds_rows(records: Records) -> list[dict[str, Any]]:
    """Return what choosing, fitting and answering took, where a run says so."""
    rows = []
    for (method,), group in group_by(records, "method").items():
        spent = {
            table: statistics.fmean(record.result["seconds"] for record in of_table)
            for (table,), of_table in group_by(
                [one for one in group if one.result.get("seconds") is not None],
                "dataset",
            ).items()
        }
        if spent:
            slowest = max(spent, key=lambda table: (spent[table], table))
            rows.append(
                {
                    "method": TITLES.get(method, method),
                    "n_tables": len(spent),
                    "total": sum(spent.values()),
                    "median": statistics.median(spent.values()),
                    "slowest": slowest,
                    "longest": spent[slowest],
                }
            )
    order = {title: place for place, title in enumerate(TITLES.values())}
    return sorted(rows, key=lambda row: order.get(row["method"], len(order)))


def finding(records: Records) -> str:
    """Return the rank of RFAM, and Friedman's test that all methods are alike."""
    found = standing(records)
    ranks = found.mean_ranks
    if REFERENCE not in ranks:
        return "There is no table yet on which all methods have a result."
    place = sorted(ranks, key=lambda method: ranks[method]).index(REFERENCE) + 1
    p = found.friedman_p
    return (
        f"RFAM is number {place} of {len(ranks)} methods by mean rank, "
        f"{ranks[REFERENCE]:.2f}, on the {len(found.complete)} tables with a result of "
        f"all methods (Friedman's p: {'none' if p is None else f'{p:.2g}'})."
    )
