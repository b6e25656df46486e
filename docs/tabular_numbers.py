"""The single numbers of the pages on tables, from the archived runs.

A page has them between ``<!--v:NAME-->`` and ``<!--/v-->``, where ``tables.py`` fills
them in.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from normalign_reproduction.items.alpha_path.rows import (
    frontier_rows,
    path_rows,
    validated_rows,
)
from normalign_reproduction.items.tabarena.rows import (
    PUBLISHED_COUNTS,
    PUBLISHED_MEAN,
    RFM,
    breakdown_rows,
    published_tasks,
    reference_rows,
    summary_rows,
    task_rows,
)
from normalign_reproduction.items.tabarena.tasks import LACKING, TASKS
from normalign_reproduction.items.table2.rows import (
    METRICS,
    change_rows,
    changes,
    leak_rows,
    mean_rows,
)
from normalign_reproduction.spec import Records
from normalign_reproduction.statistics import drop_none, student_p

sys.path.insert(0, str(Path(__file__).parent))  # tests run this file from afar
from paper_tables import full, made
from tabular_tables import UNFINISHED, attack_rows, choice_rows, extreme_rows

_PRINTED = {"accuracy": "{:.1f}", "asr_1": "{:.1f}", "normal_alignment": "{:.3f}"}
MADE = ("table2", "alpha_path", "tabarena")
_SHORT = {"released": "released", "leak-free": "free"}


@cache
def numbers() -> dict[str, str]:
    """All of them, by name."""
    table2 = full("table2").records
    return {
        **_means(table2), **_changes(table2), **_attacks(table2), **_extremes(table2),
        **{f"made_{name}": made(full(name)) for name in MADE},
        **_path(full("alpha_path").records), **_tasks(full("tabarena").records),
    }  # fmt: skip


def _means(records: Records) -> dict[str, str]:
    """Table 2: each mean, how far from the paper's, and the leak's worth."""
    rows = mean_rows(records)
    found = {"tables": f"{rows[0]['n_tables']}", "runs": f"{len(records)}"}
    single = [r["dataset"] for r in records if r["rows"] > 10_000]
    found["single_seed"] = f"{len(set(single))}"
    for name, form in _PRINTED.items():
        apart = max(
            abs(row[name] - row[f"published_{name}"])
            for row in rows
            if row["protocol"] == "released"
        )
        found[f"gap_{name}"] = form.format(apart)
    for row in rows:
        prefix = f"{row['method'].lower()}_{_SHORT[row['protocol']]}"
        if "published_accuracy" in row:
            printed = f"{row['published_accuracy']:.1f}"
            found[f"paper_{row['method'].lower()}_accuracy"] = printed
        found[f"{prefix}_accuracy"] = f"{row['accuracy']:.1f}"
        found[f"{prefix}_asr"] = f"{row['asr_1']:.1f}"
        found[f"{prefix}_alignment"] = f"{row['normal_alignment']:.2f}"
    for row in leak_rows(records):
        found[f"leak_{row['method'].lower()}"] = f"{row['mean']:.1f}"
        found[f"leak_median_{row['method'].lower()}"] = f"{row['median']:.1f}"
    return found


def _changes(records: Records) -> dict[str, str]:
    """Table 3: means, medians and p-values."""
    metrics = {metric.title: metric for metric in METRICS}
    found = {}
    for row in change_rows(records):
        metric = metrics[row["metric"]]
        prefix = f"{metric.name}_{_SHORT[row['protocol']]}"
        for name in ("mean", "median"):
            found[f"{prefix}_{name}"] = metric.form.format(row[name])
        found[f"{prefix}_improved"] = f"{row['improved']:.0%}"
        for name in ("p", "p_least", "p_greatest", "p_changes", "p_wilcoxon"):
            found[f"{prefix}_{name}"] = f"{row[name]:.2g}"
        if row.get("published_p") is not None:
            found[f"{prefix}_paper_p"] = f"{row['published_p']}"
            found[f"{prefix}_paper_mean"] = metric.form.format(row["published_mean"])
    return found


def _attacks(records: Records) -> dict[str, str]:
    """How much the strong attack finds that the released one does not."""
    rows = {(r["protocol"], r["radius"], r["attack"]): r for r in attack_rows(records)}
    found = {}
    for (protocol, radius, attack), row in rows.items():
        prefix = f"{attack}_attack_{radius.replace('.', '')}_{_SHORT[protocol]}"
        for name, form in (("mean", "{:+.1f}"), ("median", "{:+.2f}"), ("p", "{:.2g}")):
            found[f"{prefix}_{name}"] = form.format(row[name])
        for method in ("rfm", "rfam"):
            found[f"{prefix}_{method}"] = f"{row[method]:.0f}"
    return found


def _extremes(records: Records) -> dict[str, str]:
    """What single tables make of the means of Table 3."""
    found = {}
    for metric in (METRICS[1], METRICS[2]):
        for protocol, short in _SHORT.items():
            known = changes(records, metric, protocol=protocol)
            rows = extreme_rows(records, metric, protocol=protocol, n=2)
            prefix = f"{metric.name}_{short}"
            found[f"{prefix}_first"] = rows[0]["table"]
            found[f"{prefix}_second"] = rows[1]["table"]
            found[f"{prefix}_first_share"] = f"{rows[0]['share']:.0%}"
            found[f"{prefix}_two_share"] = f"{sum(r['share'] for r in rows):.0%}"
            left = drop_none(v for t, v in known.items() if t != rows[0]["table"])
            found[f"{prefix}_mean_without"] = metric.form.format(statistics.fmean(left))
            p = student_p(left, direction=metric.better)
            found[f"{prefix}_p_without"] = f"{p:.1g}"
    return found


def _path(records: Records) -> dict[str, str]:
    """The identity weight's path."""
    rows, choice = path_rows(records), validated_rows(records)[0]
    free = frontier_rows(records)[-1]
    found = {
        "path_tables": f"{rows[0]['n_tables']}", "path_runs": f"{len(records)}",
        "path_free": f"{free['free']}", "path_dearer": f"{free['dearer']}",
        "validated_below": f"{choice['below']:.0%}",
        **_ranged("validated_accuracy", choice, "accuracy_change", "{:+.2f}"),
        **_ranged("validated_attack", choice, "asr_1_change", "{:+.2f}"),
    }  # fmt: skip
    for row in rows:
        if row["weight"] != RFM:
            prefix = f"path_{row['weight']:g}".replace(".", "")
            found[f"{prefix}_accuracy"] = f"{row['accuracy_change']:+.1f}"
            found[f"{prefix}_attack"] = f"{row['asr_1_change']:+.1f}"
    return found


def _tasks(records: Records) -> dict[str, str]:
    """TabArena: who chooses what, and what is left of it on test rows."""
    share, gained, same, own, tested, _ = summary_rows(records)
    rows = task_rows(records)
    printed = [
        row for row in choice_rows(records) if row.get("published_weight") is not None
    ]
    whole = [row for row in printed if row["state"] == ""]
    partial = [row for row in printed if row["state"] == "partial"]
    below = [row for row in whole if row["weight"] != RFM]
    best = max(
        (row for row in rows if row.get("weight", RFM) != RFM),
        key=lambda row: row["test_gain"],
    )
    defaults = {row["weight"]: row for row in reference_rows(records)}
    (rfm,) = (row for row in breakdown_rows(records) if row["weight"] == RFM)
    total = sum(PUBLISHED_COUNTS.values())
    return {
        "tasks": f"{share['n']}", "tasks_all": f"{total}",
        "tasks_at_hand": f"{len(TASKS)}", "tasks_lacking": f"{len(LACKING)}",
        "tasks_partial": f"{sum(row['state'] == 'partial' for row in rows)}",
        "tasks_below": f"{gained['n']}", "tasks_share": f"{share['mean']:.0f} %",
        "tasks_low": f"{share['interval'][0]:.0f}",
        "tasks_high": f"{share['interval'][1]:.0f}",
        "tasks_single_below": f"{1 - rfm['single_share']:.0%}",
        "paper_below": f"{total - PUBLISHED_COUNTS[RFM]}",
        "paper_gain": f"{PUBLISHED_MEAN:g} %",
        "gain": f"{gained['mean']:.1f} %",
        **_ranged("gain_test", same, "mean", "{:+.1f}", interval="interval"),
        "gain_test_median": f"{same['median']:+.1f} %",
        "gain_own": f"{own['mean']:.1f} %", "own_tasks": f"{own['n']}",
        **_ranged("gain_own_test", tested, "mean", "{:+.1f}", interval="interval"),
        "gain_own_test_median": f"{tested['median']:+.1f} %",
        "printed": f"{len(published_tasks())}", "printed_whole": f"{len(whole)}",
        "printed_below": f"{len(below)}", "printed_partial": f"{len(partial)}",
        "printed_partial_below": f"{sum(row['weight'] != RFM for row in partial)}",
        "printed_names": _listed([row["task"] for row in below]),
        "printed_unfinished": f"{sum(r['state'] == UNFINISHED for r in printed)}",
        "largest_gain": f"{best['test_gain']:.0f} %", "largest_task": best["task"],
        "largest_low": f"{best['test_interval'][0]:.0f}",
        "largest_high": f"{best['test_interval'][1]:.0f}",
        "task_runs": f"{len(records)}",
        "default_0_beaten": f"{defaults[0.0]['n']}",
        "default_0_gain": f"{defaults[0.0]['test_gain']:.1f} %",
        "default_chance": f"{defaults[RFM]['chance']:.0%}",
    }  # fmt: skip


def _ranged(
    prefix: str,
    row: Mapping[str, Any],
    name: str,
    form: str,
    *,
    interval: str | None = None,
) -> dict[str, str]:
    """A number and the ends of its interval, under three names."""
    low, high = row[interval or f"{name}_interval"]
    values = {"": row[name], "_low": low, "_high": high}
    return {f"{prefix}{end}": form.format(value) for end, value in values.items()}


def _listed(names: list[str]) -> str:
    *rest, last = names
    return f"{', '.join(rest)} and {last}" if rest else last
