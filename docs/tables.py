"""Fill the tables of the pages from the results that were saved.

    python docs/tables.py

A table stands between ``<!--table:NAME-->`` and ``<!--/table-->``; NAME is a file
``results/benchmarks/NAME.json`` that a script in ``benchmarks/`` wrote with ``--save``.
What is of the paper stands between ``<!--paper:ITEM/WHAT/PRESET-->`` and
``<!--/paper-->`` (see ``paper_tables.py``). A single number stands between
``<!--v:NAME-->`` and ``<!--/v-->`` (see ``tabular_numbers.py``). Where there are no
such results yet, the page says so. A test checks that every page shows what its files
say.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # tests run this file from afar
from deep_tables import layer_profile, robust_training
from machine_tables import rfm, rfm_selection, ridges
from paper_tables import shown
from tabular_numbers import numbers

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"
TABLE = re.compile(r"<!--(table|paper):(\S+)-->\n.*?<!--/\1-->", re.DOTALL)
VALUE = re.compile(r"<!--v:(\w+)-->.*?<!--/v-->")
# Markdown takes such a line for HTML, and shows its links and bold text as they are.
LINE_START = re.compile(r"^[ >]*(?:(?:[-*+]|\d+[.)])[ ]+)*<!--[vn]:", re.MULTILINE)


def geometry(result: dict[str, Any]) -> list[str]:
    """Our measures against the plain way to the same numbers."""
    lines = [
        "| | plain | ours | faster | plain, peak | ours, peak | largest error |",
        "|---|---|---|---|---|---|---|",
    ]
    for record in result["records"]:
        plain, ours = record["plain"], record["ours"]
        lines.append(
            f"| ({record['case']}) {record['title']} "
            f"| {plain['seconds']:.2f} s | {ours['seconds']:.2f} s "
            f"| **{record['faster']:.1f}x** "
            f"| {plain['megabytes']:.0f} MB | {ours['megabytes']:.0f} MB "
            f"| {max(record['errors'].values()):.0e} |"
        )
    return lines


def grokalign_step(result: dict[str, Any]) -> list[str]:
    """A penalised step in units of a plain one."""
    names = list(dict.fromkeys(n for r in result["records"] for n in r["contestants"]))
    lines = [
        "| | " + " | ".join(names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for record in result["records"]:
        cells = []
        for name in names:
            found = record["contestants"].get(name)
            if found is None:
                cells.append("")
            elif "failed" in found:
                cells.append("fails")
            elif name == "plain":
                cells.append(f"{found['ms']:.2f} ms")
            else:
                cells.append(f"{found['ratio']:.2f}x")
        lines.append(f"| {record['title']} | " + " | ".join(cells) + " |")
    return lines


def ensemble(result: dict[str, Any]) -> list[str]:
    """Seeds in lockstep, XOR in its span."""
    lines = []
    for record in result["records"]:
        if record["part"] == "a":
            lines += _lockstep(record)
        elif record["part"] == "b":
            lines += _span(record)
    return lines


def _lockstep(record: dict[str, Any]) -> list[str]:
    lines = [
        f"| modular addition, {record['seeds']} seeds, an epoch of all | time "
        "| lockstep is faster |",
        "|---|---|---|",
    ]
    for method, case in record["methods"].items():
        for name, row in case["contestants"].items():
            lines.append(
                f"| {method}, {name} | {row['ms']:.1f} ms "
                f"| {row['lockstep_is_faster']:.1f}x |"
            )
    return [*lines, ""]


def _span(record: dict[str, Any]) -> list[str]:
    lines = [
        "| XOR to its grokked epoch | in the span | directly | faster |",
        "|---|---|---|---|",
    ]
    for one in record["full"]:
        direct = list(one["medians"].values())[:2]
        best = min(cost["extrapolated"] for cost in direct)
        told = f"{best:.0f} s, extrapolated"
        ratio = one["faster_than_best_direct"]
        if "direct" in one:
            told = (
                f"{one['direct']['seconds']:.0f} s (epoch {one['direct']['epochs'][0]})"
            )
            ratio = one["faster_than_direct_run"]
        ours = one["in_span"]
        lines.append(
            f"| 40000 inputs, {one['method']} | {ours['seconds']:.1f} s (epoch "
            f"{ours['epochs'][0]}) | {told} | **{ratio:.1f}x** |"
        )
    for one in record["smaller"]:
        size, direct, ours = one["size"], one["direct"], one["in_span"]
        lines.append(
            f"| {size['d']} inputs, {one['method']}, three seeds "
            f"| {ours['seconds']:.1f} s (epochs {_listed(ours['epochs'])}) "
            f"| {direct['seconds']:.1f} s (epochs {_listed(direct['epochs'])}) "
            f"| **{one['faster']:.1f}x** |"
        )
    return [*lines, ""]


def _listed(values: list[Any]) -> str:
    return ", ".join(map(str, values))


def powers(result: dict[str, Any]) -> list[str]:
    """Epochs to grok by form and weight, a column for each task."""
    tasks = list(result["epochs"])
    lines = [
        "| form | weight | " + " | ".join(tasks) + " |",
        "|---|---" + "|---" * len(tasks) + "|",
    ]
    keys = dict.fromkeys((line["form"], line["weight"]) for line in result["lines"])
    best = {
        task: min(
            line["mean_epoch"]
            for line in result["lines"]
            if line["task"] == task and line["grokked"] == line["seeds"]
        )
        for task in tasks
        if any(
            line["task"] == task and line["grokked"] == line["seeds"]
            for line in result["lines"]
        )
    }
    for form, weight in keys:
        cells = []
        for task in tasks:
            wanted = {"task": task, "form": form, "weight": weight}
            line = next(x for x in result["lines"] if wanted.items() <= x.items())
            if not line["grokked"]:
                cells.append("-")
                continue
            cell = f"{line['mean_epoch']:.0f}"
            if line["grokked"] < line["seeds"]:
                cell += f" ({line['grokked']})"
            elif line["mean_epoch"] == best[task]:
                cell = f"**{cell}**"
            cells.append(cell)
        lines.append(f"| {form} | {weight:g} | " + " | ".join(cells) + " |")
    limits = ", ".join(f"{task} {limit}" for task, limit in result["epochs"].items())
    return [*lines, "", f"Epochs at most: {limits}."]


def powers_variants(result: dict[str, Any]) -> list[str]:
    """Epochs to grok with the ratio, a row for each variant of MNIST."""
    weights = [
        line["weight"]
        for line in result["lines"]
        if line["form"] == "ratio" and line["task"] == next(iter(result["epochs"]))
    ]
    lines = [
        "| loss | biases | start | no penalty | fastest other form "
        + "".join(f"| ratio, {weight:g} " for weight in weights)
        + "|",
        "|---" * (5 + len(weights)) + "|",
    ]
    for variant in result["epochs"]:
        found = [line for line in result["lines"] if line["task"] == variant]
        (none,) = (line for line in found if line["form"] == "none")
        ratio = [line for line in found if line["form"] == "ratio"]
        others = [line for line in found if line["form"] not in ("none", "ratio")]
        best = min(others, key=_sooner)
        least = min(_epochs(line) for line in (none, best))
        cells = [
            *_told(variant),
            _cell(none),
            f"{_cell(best)} ({best['form']}, {best['weight']:g})",
            *(
                f"**{_cell(line)}**" if _epochs(line) < least else _cell(line)
                for line in ratio
            ),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    (limit,) = set(result["epochs"].values())
    return [*lines, "", f"Epochs at most: {limit}."]


def _told(variant: str) -> list[str]:
    loss, biases, start = variant.split(", ")
    losses = {"mnist_ce": "cross-entropy", "mnist_se": "squared error"}
    yes = "no" if biases.startswith("no ") else "yes"
    return [losses[loss], yes, f"weights {start.removeprefix('start ')}"]


def _in_full(line: dict[str, Any]) -> bool:
    return line["grokked"] == line["seeds"]


def _epochs(line: dict[str, Any]) -> float:
    """As printed, so that no difference is made of what the table cannot show."""
    return round(line["mean_epoch"]) if _in_full(line) else math.inf


def _sooner(line: dict[str, Any]) -> tuple[float, float]:
    return _epochs(line), line["weight"]


def _cell(line: dict[str, Any]) -> str:
    if not line["grokked"]:
        return f"{100 * line['test_accuracy']:.0f} %"
    some = "" if _in_full(line) else f" ({line['grokked']})"
    return f"{line['mean_epoch']:.0f}{some}"


KINDS = {
    "ensemble": ensemble,
    "geometry": geometry,
    "grokalign_step": grokalign_step,
    "layer_profile": layer_profile,
    "powers": powers,
    "powers-variants": powers_variants,
    "rfm": rfm,
    "rfm_selection": rfm_selection,
    "ridges": ridges,
    "robust_training": robust_training,
}


def table(name: str) -> str:
    """The rows of a result, and where they were measured."""
    kind = max((kind for kind in KINDS if name.startswith(f"{kind}-")), key=len)
    path = RESULTS / "benchmarks" / f"{name}.json"
    if not path.exists():
        return "Not measured yet.\n"
    result = json.loads(path.read_text())
    lines = KINDS[kind](result)
    while not lines[-1]:
        lines.pop()
    device = result.get("device") or result["machine"]
    told = "cores" not in result or "cores" in device
    cores = "" if told else f", {result['cores']} cores"
    versions = {**result, **result.get("versions", {})}
    python = f", Python {versions['python']}" if "python" in versions else ""
    return "\n".join(lines) + (
        f"\n\n{device}{cores}, torch {versions['torch']}{python}, "
        f"commit {result['commit'][:7]}.\n"
    )


def filled(page: str) -> str:
    """The page with every table made anew.

    Raises
    ------
    ValueError
        If a line begins with a value.
    """
    if found := LINE_START.search(page):
        number = page.count("\n", 0, found.start()) + 1
        raise ValueError(
            "filled: page must not have a value at the beginning of a line, got one in "
            f"line {number}. Begin the line with a word."
        )

    def fill(match: re.Match[str]) -> str:
        kind, name = match.groups()
        content = table(name) if kind == "table" else shown(name)
        return f"<!--{kind}:{name}-->\n{content}<!--/{kind}-->"

    def number(match: re.Match[str]) -> str:
        name = match[1]
        return f"<!--v:{name}-->{numbers()[name]}<!--/v-->"

    return VALUE.sub(number, TABLE.sub(fill, page))


if __name__ == "__main__":
    for path in (DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))):
        path.write_text(filled(path.read_text()))
