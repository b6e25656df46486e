"""The tables of the pages on RFM and RFAM: shorter than the report's own.

Each is a function of what there is of an item, and gives Markdown.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from normalign_reproduction.items.alpha_path.rows import path_rows, validated_rows
from normalign_reproduction.items.peers.rows import finding, standing_rows
from normalign_reproduction.items.tabarena.rows import RFM, published_tasks, task_rows
from normalign_reproduction.items.table2.data import TABLES
from normalign_reproduction.items.table2.rows import (
    METHODS,
    METRICS,
    PROTOCOLS,
    Metric,
    change_rows,
    changes,
    leak_rows,
    mean_rows,
    pairs,
    scores,
    summary,
)
from normalign_reproduction.report.outcome import Outcome
from normalign_reproduction.spec import Record, Records
from normalign_reproduction.statistics import drop_none, student_p, wilcoxon_p

ATTACKS = {"asr": "released", "strong": "strong"}
RADII = ("0.1", "1", "2")
UNFINISHED = "not finished"


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def reach(row: dict[str, Any], name: str, form: str) -> str:
    """A number with its interval, where it has one."""
    value, ends = row.get(name), row.get(f"{name}_interval")
    if value is None:
        return "–"
    text = form.format(value)
    if ends is None:
        return text
    return f"{text} [{form.format(ends[0])}, {form.format(ends[1])}]"


def beside(row: dict[str, Any], name: str, form: str) -> str:
    """A number, with the paper's in brackets where it has one."""
    printed = row.get(f"published_{name}")
    text = form.format(row[name])
    if printed is None:
        return text
    return f"{text} ({printed if isinstance(printed, str) else form.format(printed)})"


def made(records: Records) -> str:
    """Where, when and how fast: the seconds of all batches, side by side or not."""
    batches = {r.made["batch"]: r.made["seconds"] for r in records}
    runs, seconds = f"{len(records)} runs", f"{sum(batches.values()):.0f} s"
    devices = Counter(r.made["device"] for r in records)
    told = f"{runs}, {seconds} on {next(iter(devices))}"
    if len(devices) > 1:
        each = " and ".join(f"{n} on {device}" for device, n in devices.most_common())
        told = f"{runs}, {each}, {seconds} together"
    torch = records[0].made["versions"]["torch"]
    commits = sorted({(r.made["commit"] or "unknown")[:7] for r in records})
    word = "commit" if len(commits) == 1 else "commits"
    return f"{told}, torch {torch}, {word} {', '.join(commits)}."


def means(found: Outcome) -> str:
    """Table 2, with the paper's in brackets."""
    heads = ["protocol", "", "accuracy (%)", "attack success (%)", "normal alignment"]
    return grid(
        heads,
        (
            [
                row["protocol"], row["method"], beside(row, "accuracy", "{:.1f}"),
                beside(row, "asr_1", "{:.1f}"),
                beside(row, "normal_alignment", "{:.2f}"),
            ]
            for row in mean_rows(found.records)
        ),
    )  # fmt: skip


def changed(found: Outcome) -> str:
    """Table 3, with the paper's in brackets: the mean and what it hides."""
    heads = [
        "RFM to RFAM", "protocol", "mean", "95 %", "median", "better on",
        "p, paired t-test", "by single seeds", "p, t-test of changes", "p, Wilcoxon",
    ]  # fmt: skip
    forms = {metric.title: metric.form for metric in METRICS}
    rows = []
    for row in change_rows(found.records):
        form = forms[row["metric"]]
        low, high = (form.format(end) for end in row["mean_interval"])
        rows.append(
            [
                f"{row['metric']}, {row['unit']}", row["protocol"],
                beside(row, "mean", form), f"{low} to {high}",
                form.format(row["median"]), f"{row['improved']:.0%}",
                beside(row, "p", "{:.2g}"),
                f"{row['p_least']:.2g} to {row['p_greatest']:.2g}",
                f"{row['p_changes']:.2g}", f"{row['p_wilcoxon']:.2g}",
            ]
        )  # fmt: skip
    return grid(heads, rows)


def leak(found: Outcome) -> str:
    """Accuracy by protocol: released less leak-free."""
    heads = [
        "", "released (%)", "leak-free (%)", "mean difference (points)", "median",
        "released higher on",
    ]  # fmt: skip
    return grid(
        heads,
        (
            [
                row["method"], f"{row['released']:.1f}", f"{row['leak_free']:.1f}",
                reach(row, "mean", "{:+.2f}"), reach(row, "median", "{:+.2f}"),
                f"{row['higher']:.0%} of {row['n']} tables",
            ]
            for row in leak_rows(found.records)
        ),
    )  # fmt: skip


def attack_rows(records: Records) -> list[dict[str, Any]]:
    """Success of both attacks at each radius, and RFAM's less RFM's, by protocol."""
    mean = {(row["protocol"], row["method"]): row for row in mean_rows(records)}
    rows = []
    for protocol in PROTOCOLS:
        for radius in RADII:
            for attack, title in ATTACKS.items():
                name = f"{attack}_{radius}"
                metric = Metric(name, name, name, False, "less", "points", "{:+.2f}")
                known = drop_none(changes(records, metric, protocol=protocol).values())
                rows.append(
                    {
                        "protocol": protocol, "radius": radius, "attack": title,
                        "rfm": mean[protocol, "RFM"][name],
                        "rfam": mean[protocol, "RFAM"][name],
                        **summary(known),
                        "p": student_p(known, direction="less"),
                        "p_wilcoxon": wilcoxon_p(known, direction="less"),
                    }
                )  # fmt: skip
    return rows


def attacks(found: Outcome) -> str:
    """Both attacks, at all radii."""
    heads = [
        "protocol", "radius", "attack", "RFM (%)", "RFAM (%)", "mean change", "median",
        "p, t-test", "p, Wilcoxon",
    ]  # fmt: skip
    return grid(
        heads,
        (
            [
                row["protocol"], row["radius"], row["attack"], f"{row['rfm']:.1f}",
                f"{row['rfam']:.1f}", reach(row, "mean", "{:+.1f}"),
                f"{row['median']:+.2f}", f"{row['p']:.2g}", f"{row['p_wilcoxon']:.2g}",
            ]
            for row in attack_rows(found.records)
        ),
    )  # fmt: skip


def extreme_rows(
    records: Records, metric: Metric, *, protocol: str, n: int
) -> list[dict[str, Any]]:
    """The tables on which a metric gains most, and their share of all change."""
    rfm, rfam = (
        scores(records, protocol=protocol, identity_weight=weight)
        for weight in METHODS.values()
    )
    known = {
        table: change
        for table, change in changes(records, metric, protocol=protocol).items()
        if change is not None
    }
    sign = 1 if metric.better == "greater" else -1
    order = sorted(known, key=lambda table: -sign * known[table])
    both = pairs(rfm, rfam)
    return [
        {
            "table": table, "change": known[table],
            "share": known[table] / sum(known.values()),
            "rfm": both[table][0], "rfam": both[table][1],
        }
        for table in order[:n]
    ]  # fmt: skip


def extremes(found: Outcome) -> str:
    """The tables that make the means of Table 3."""
    heads = [
        "released protocol", "table", "RFM", "RFAM", "change", "of the sum over tables",
        "accuracy (%), RFM", "RFAM",
    ]  # fmt: skip
    rows = []
    for metric in (METRICS[1], METRICS[2]):
        told = "{:.2f}" if metric.relative else "{:.1f}"
        rows += [
            [
                metric.title, row["table"], told.format(row["rfm"][metric.quantity]),
                told.format(row["rfam"][metric.quantity]),
                f"{metric.form.format(row['change'])}, {metric.unit}",
                f"{row['share']:.0%}", f"{row['rfm']['accuracy']:.1f}",
                f"{row['rfam']['accuracy']:.1f}",
            ]
            for row in extreme_rows(found.records, metric, protocol="released", n=3)
        ]  # fmt: skip
    return grid(heads, rows)


def path(found: Outcome) -> str:
    """The identity weights, each against weight 1."""
    heads = [
        "identity weight", "accuracy (%)", "change (points)",
        "attack success, radius 1 (%)", "change", "strong attack (%)", "change",
        "normal alignment",
    ]  # fmt: skip
    return grid(
        heads,
        (
            [
                f"{row['weight']:g}", f"{row['accuracy']:.1f}",
                reach(row, "accuracy_change", "{:+.1f}"), f"{row['asr_1']:.1f}",
                reach(row, "asr_1_change", "{:+.1f}"), f"{row['strong_1']:.1f}",
                reach(row, "strong_1_change", "{:+.1f}"),
                f"{row['normal_alignment']:.2f}",
            ]
            for row in path_rows(found.records)
        ),
    )  # fmt: skip


def validated(found: Outcome) -> str:
    """What a validated weight gives."""
    heads = [
        "identity weight", "below 1", "change of accuracy (points)",
        "of attack success, radius 0.1", "radius 1", "radius 2",
    ]  # fmt: skip
    return grid(
        heads,
        (
            [
                row["choice"], f"{row['below']:.0%}",
                *(
                    reach(row, f"{name}_change", "{:+.2f}")
                    for name in ("accuracy", "asr_0.1", "asr_1", "asr_2")
                ),
            ]
            for row in validated_rows(found.records)
        ),
    )  # fmt: skip


def choices(found: Outcome) -> str:
    """The tasks where the paper or we choose an identity weight below 1."""
    heads = [
        "task", "data", "rows", "weight, paper", "ours", "by each draw",
        "validation gain, paper (%)", "ours (%)", "test gain (%)",
    ]  # fmt: skip
    rows = [
        [
            row["task"].replace("_", r"\_"), row["state"] or "whole",
            _or_dash(row.get("n_rows"), "{:d}"),
            _or_dash(row.get("published_weight"), "{:g}"),
            _or_dash(row.get("weight"), "{:g}"), row.get("own_weights") or "–",
            _or_dash(row.get("published_gain"), "{:.2f}"),
            _or_dash(row.get("validation_gain"), "{:.2f}"),
            _or_dash(row.get("test_gain"), "{:.2f}"),
        ]
        for row in choice_rows(found.records)
    ]  # fmt: skip
    return grid(heads, rows)


def choice_rows(records: Records) -> list[dict[str, Any]]:
    """The rows of tasks where the paper or we choose less than 1.

    Tasks that the paper prints and that were not finished come last.
    """
    rows = [
        row
        for row in task_rows(records)
        if row.get("weight", RFM) != RFM or row.get("published_weight") is not None
    ]
    there = {row["task"] for row in rows}
    for printed in published_tasks().values():
        if printed["title"] not in there:
            rows.append(
                {
                    "task": printed["title"], "state": UNFINISHED,
                    "published_weight": printed["alpha"],
                    "published_gain": printed["improvement"],
                }
            )  # fmt: skip
    return sorted(rows, key=lambda row: row.get("published_weight") is None)


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def whole_tables(found: Outcome) -> list[Record]:
    """The records of those tables on which every method of an item is finished."""
    wanted, there = ({}, {})
    for run in found.runs:
        wanted.setdefault(run["dataset"], set()).add(run.key)
    for record in found.records:
        there.setdefault(record["dataset"], set()).add(record.run.key)
    whole = {table for table, keys in wanted.items() if keys == there.get(table)}
    return [record for record in found.records if record["dataset"] in whole]


def peers(found: Outcome) -> str:
    """The section on peers; nothing as long as no table has all of them."""
    records = whole_tables(found)
    if not records:
        return ""
    rows = {record["dataset"]: record["rows"] for record in records}
    others = [record for record in records if record["method"] != "rfam"]
    most = max(rows.values())
    among = sum(table.rows <= most for table in TABLES)
    said = f"the {len(rows)} tables of up to {most} rows"
    if len(rows) < among:
        said = f"{len(rows)} of the {among} tables of up to {most} rows"
    heads = [
        "", "mean accuracy", "mean rank", "RFAM wins", "ties", "loses",
        "RFAM's lead, mean", "median", "p, Wilcoxon and Holm",
    ]  # fmt: skip
    order = sorted(standing_rows(records), key=lambda row: row["rank"])
    table = grid(heads, (_peer(row) for row in order))
    return "\n".join(
        [
            "",
            "## Among other methods",
            "",
            *_picture(),
            "Leak-free, one seed, the same folds and the same validation rows for all, "
            f"on {said}. Beyond the paper, "
            "which compares RFAM with RFM alone.",
            "",
            f'    normalign reproduce peers --full --only "rows<={most}" --device cpu',
            "",
            table,
            "",
            _wrapped(finding(records)),
            "",
            _wrapped(f"RFM and RFAM are runs of Table 2. The others: {made(others)}"),
        ]
    )


def _picture() -> list[str]:
    drawn = "images/paper-peers.svg"
    if not (Path(__file__).parent / drawn).is_file():
        return []
    return [f"![RFAM against other methods, and their mean ranks]({drawn})", ""]


def _peer(row: dict[str, Any]) -> list[str]:
    cells = [row["method"], f"{row['accuracy']:.1%}", f"{row['rank']:.2f}"]
    if row.get("n_pairs") is None:
        return [*cells, *[""] * 6]
    return [
        *cells, *(f"{row[name]}" for name in ("wins", "ties", "losses")),
        f"{row['difference']:+.1%}", f"{row['median']:+.1%}", f"{row['p_holm']:.2g}",
    ]  # fmt: skip


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


KINDS = {
    "attacks": attacks, "changes": changed, "choices": choices, "extremes": extremes,
    "leak": leak, "means": means, "path": path, "peers": peers, "validated": validated,
}  # fmt: skip
