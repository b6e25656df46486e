"""Tables 2 and 3 from their runs, and what stands behind them: every table, the leak.

Intervals are percentile bootstraps over tables, 10000 resamples, seed 0.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from normalign_reproduction.evidence.paired import (
    bootstrap_interval,
    student_p,
    wilcoxon_p,
)
from normalign_reproduction.evidence.tabular import (
    METHOD_TITLES,
    METHODS,
    METRICS,
    PROTOCOLS,
    ROUNDED,
    Metric,
    changes,
    defined,
    differences,
    pairs,
    published_changes,
    published_means,
    scores,
    seed_means,
    seeds_of,
)
from normalign_reproduction.spec import Records, Row
from normalign_reproduction.summaries import mean

__all__ = [
    "change_rows", "is_papers", "leak_rows", "mean_rows", "seed_p_values", "summary",
    "table_rows",
]  # fmt: skip

# Of our quantities, the paper's; the paper has radius 1 alone.
_PRINTED = {
    "accuracy": "accuracy", "asr_1": "attack_success",
    "normal_alignment": "normal_alignment",
}  # fmt: skip
_PER_TABLE = ("accuracy", "asr_1", "strong_1", "normal_alignment")


def summary(values: Sequence[float | None]) -> dict[str, Any]:
    """Return mean and median of what is defined, with intervals, and how many are.

    Examples
    --------
    >>> found = summary([1.0, 1.0, 4.0, None])
    >>> found["mean"], found["median"], found["n"], found["n_undefined"]
    (2.0, 1.0, 3, 1)
    """
    known = defined(values)
    return {
        "n": len(known),
        "n_undefined": len(values) - len(known),
        "mean": mean(known),
        "mean_interval": bootstrap_interval(known),
        "std": statistics.stdev(known) if len(known) > 1 else None,
        "median": statistics.median(known) if known else None,
        "median_interval": bootstrap_interval(known, statistic="median"),
    }


def is_papers(records: Records) -> bool:
    """Say whether the tables are those of the paper."""
    return {record.run.data for record in records} == {"uci"}


def mean_rows(records: Records) -> list[Row]:
    """Return Table 2: the mean over tables of each quantity, by protocol and method.

    The paper's numbers stand beside runs on the UCI collection by the released
    protocol, and beside no others.
    """
    published, rows = published_means(), []
    for protocol in PROTOCOLS:
        for method, weight in METHODS.items():
            found = scores(records, protocol=protocol, identity_weight=weight)
            if not found:
                continue
            means = [seed_means(by_seed) for by_seed in found.values()]
            row: Row = {
                "protocol": protocol, "method": METHOD_TITLES[method],
                "n_tables": len(means),
                "n_undefined": sum(one["asr_1"] is None for one in means),
            }  # fmt: skip
            for name in means[0]:
                known = defined(one[name] for one in means)
                row[name] = mean(known)
                row[f"{name}_interval"] = bootstrap_interval(known)
            if protocol == "released" and is_papers(records):
                row |= {
                    f"published_{name}": published[method][printed]
                    for name, printed in _PRINTED.items()
                }
            rows.append(row)
    return rows


def change_rows(records: Records) -> list[Row]:
    """Return Table 3: how each metric changes from RFM to RFAM, by protocol.

    Tests are one-sided, for the direction that is an improvement. ``p`` is of the
    paired t-test of the raw values, as in the paper's evaluation; ``p_changes`` and
    ``p_wilcoxon`` are of the changes as they are tabulated (for the attack success
    rate, of the same differences).
    """
    published, rows = published_changes(), []
    for metric in METRICS:
        for protocol in PROTOCOLS:
            found = changes(records, metric, protocol=protocol)
            if not found:
                continue
            row = {
                "metric": metric.title, "unit": metric.unit, "protocol": protocol,
                **summary(list(found.values())), **_tests(records, metric, protocol),
            }  # fmt: skip
            if protocol == "released" and is_papers(records):
                printed = published.get(metric.name, {}).items()
                row |= {f"published_{name}": value for name, value in printed}
            rows.append(row)
    return rows


def seed_p_values(records: Records, metric: Metric, *, protocol: str) -> list[float]:
    """Return the p-value of the paired t-test for each seed by itself."""
    found = (
        student_p(
            differences(records, metric, protocol=protocol, seeds=[seed]),
            direction=metric.better,
        )
        for seed in seeds_of(records, protocol=protocol)
    )
    return defined(found)


def table_rows(records: Records) -> list[Row]:
    """Return each table by each protocol: both methods, and how much seeds differ."""
    rows = []
    facts = {r["dataset"]: r.result for r in records if r["method"] == "rfam"}
    for protocol in PROTOCOLS:
        rfm, rfam = (
            scores(records, protocol=protocol, identity_weight=weight)
            for weight in METHODS.values()
        )
        for table in sorted({*rfm, *rfam}):
            row: Row = {
                "table": table, "protocol": protocol,
                **{n: facts[table][n] for n in ("n_rows", "n_inputs", "n_classes")},
                "n_seeds": max(len(rfm.get(table, ())), len(rfam.get(table, ()))),
            }  # fmt: skip
            for method, found in (("rfm", rfm), ("rfam", rfam)):
                by_seed = found.get(table, {})
                for name in _PER_TABLE if by_seed else ():
                    known = defined(score[name] for score in by_seed.values())
                    row[f"{method}_{name}"] = mean(known)
                    spread = statistics.stdev(known) if len(known) > 1 else None
                    row[f"{method}_{name}_std"] = spread
            rows.append(row)
    return sorted(rows, key=lambda row: row["table"])


def leak_rows(records: Records) -> list[Row]:
    """Return accuracy as released less leak-free, by method.

    A difference per table, over the seeds that both protocols have. Not of the leak
    alone: the protocols also differ in which rows choose, and how many learn a metric.
    """
    rows = []
    for method, weight in METHODS.items():
        released, leak_free = (
            scores(records, protocol=protocol, identity_weight=weight)
            for protocol in PROTOCOLS
        )
        both = [
            (one["accuracy"], other["accuracy"])
            for one, other in pairs(released, leak_free).values()
            if one["accuracy"] is not None and other["accuracy"] is not None
        ]
        if not both:
            continue
        gains = [
            0.0 if math.isclose(one, other, rel_tol=ROUNDED) else one - other
            for one, other in both
        ]
        rows.append(
            {
                "method": METHOD_TITLES[method],
                "released": mean([one for one, _ in both]),
                "leak_free": mean([other for _, other in both]),
                **summary(gains),
                "higher": sum(gain > 0 for gain in gains) / len(gains),
                "p": student_p(gains, direction="greater"),
                "p_wilcoxon": wilcoxon_p(gains, direction="greater"),
            }
        )
    return rows


def _tests(records: Records, metric: Metric, protocol: str) -> dict[str, Any]:
    known = defined(changes(records, metric, protocol=protocol).values())
    better = [c > 0 if metric.better == "greater" else c < 0 for c in known]
    raw = differences(records, metric, protocol=protocol)
    by_seed = seed_p_values(records, metric, protocol=protocol)
    return {
        "improved": sum(better) / len(better) if better else None,
        "equal": sum(c == 0 for c in known) / len(known) if known else None,
        "p": student_p(raw, direction=metric.better),
        "p_changes": student_p(known, direction=metric.better),
        "p_wilcoxon": wilcoxon_p(known, direction=metric.better),
        "p_least": min(by_seed, default=None),
        "p_greatest": max(by_seed, default=None),
    }
