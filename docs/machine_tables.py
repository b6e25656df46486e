"""Tables of the benchmarks of kernel machines, for tables.py."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]

# What the columns of benchmarks/rfm.py are called on the page.
NAMES = {
    "ours": "ours",
    "tensors": "ours, by tensors alone",
    "core": "recursion alone",
    "factors": "its factors alone",
    "xrfm": "xrfm",
    "xrfm cholesky": "xrfm, Cholesky",
    "plain": "plain transcription",
}
UNCOMPARED = ("ours", "tensors", "core", "factors")


def rfm(result: Row) -> list[str]:
    """The parts of benchmarks/rfm.py that were run, one table each."""
    kinds = {
        "a": ("full fit", "seconds", _seconds),
        "b": ("peak memory above import", "megabytes", lambda v: f"{v:.0f} MB"),
        "c": ("small tables", "milliseconds", lambda v: _milliseconds(v)),
        "d": ("one iteration", "seconds", _seconds),
    }
    lines: list[str] = []
    for part, (title, quantity, told) in kinds.items():
        rows = result["records"].get(part)
        if rows:
            lines += [*_contest(f"({part}) {title}", rows, quantity, told), ""]
    for part in ("e", "h"):
        if result["records"].get(part):
            lines += [*_large(part, result["records"][part]), ""]
    if result.get("xrfm"):
        numba = f", numba {result['numba']}" if result.get("numba") else ""
        lines += [f"xrfm {result['xrfm']}{numba}.", ""]
    return lines


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 10 else f"{value:.2g} s"


def _milliseconds(value: float) -> str:
    return f"{value:.0f} ms" if value >= 10 else f"{value:.2g} ms"


def _contest(title: str, rows: list[Row], quantity: str, told: Any) -> list[str]:
    """One row per size; how many times ours the others take, in brackets."""
    present = {name for row in rows for name in row.get(quantity, ())}
    names = [name for name in NAMES if name in present]
    lines = [
        f"| {title} | " + " | ".join(NAMES[name] for name in names) + " | differ by |",
        "|---" * (len(names) + 2) + "|",
    ]
    for row in rows:
        if "failed" in row:
            blank = " |" * (len(names) + 1)
            lines.append(f"| failed: {row['failed']} |{blank}")
            continue
        cells = [_entry(row, name, quantity, told) for name in names]
        apart = max(row["differs"].values(), default=None)
        cells.append("" if apart is None else f"{apart:.0e}")
        lines.append(f"| {_size(row)} | " + " | ".join(cells) + " |")
    return lines


def _entry(row: Row, name: str, quantity: str, told: Any) -> str:
    if name not in row[quantity]:
        return ""  # not asked to take part
    value = row[quantity][name]
    if value is None:
        return "fails"
    if name in UNCOMPARED:
        return told(value)
    times = row["faster"].get(name)
    return told(value) if times is None else f"{told(value)} (**{times:.1f}x**)"


def _size(row: Row) -> str:
    updates = "update" if row["n_iter"] == 1 else "updates"
    told = f"n = {row['n']}, d = {row['d']}, k = {row['k']}, {row['n_iter']} {updates}"
    return f"{told}, {row['dtype']}" if "dtype" in row else told


def _large(part: str, rows: list[Row]) -> list[str]:
    lines = [
        f"| ({part}) many rows | fit | predict | memory | AUC "
        "| behind the direct fit |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "failed" in row:
            lines.append(f"| failed: {row['failed']} | | | | | |")
            continue
        leaf = row["max_leaf_size"]
        how = "direct" if leaf is None else f"parts of at most {leaf}"
        how = "as is usual there" if leaf == "auto" else how
        held = f"{row['tree_megabytes'] / 1e3:.1f} GB"
        if row["gpu_megabytes"]:
            held = f"{row['gpu_megabytes'] / 1e3:.1f} GB on the GPU"
        behind = f"{row['behind']:+.2f} points" if "behind" in row else ""
        lines.append(
            f"| {row['n']} x 10, {how} | {row['fit_seconds']:.0f} s for "
            f"{row['n_iter'] + 1} solves | {row['predict_seconds']:.1f} s for "
            f"{row['n_test']} rows | {held} | {100 * row['auc']:.2f} (at best "
            f"{100 * row['best_auc']:.2f}) | {behind} |"
        )
    return lines


def rfm_selection(result: Row) -> list[str]:
    """How often another precision chooses the same hyperparameters."""
    lines = [
        f"| against ours in float64, {result['tables']} tables of at most "
        f"{result['max_rows']} rows | same choice on | as accurate a choice "
        "| accuracies that differ |",
        "|---|---|---|---|",
    ]
    names = {"float32": "ours, float32", "plain": "plain transcription, float64"}
    for route, found in result["routes"].items():
        lines.append(
            f"| {names[route]} | {100 * found['tables_same']:.1f} % of the tables, "
            f"{100 * found['same']:.1f} % of {found['choices']} choices "
            f"| {100 * found['same_or_as_accurate']:.1f} % of the choices "
            f"| {found['cells_that_differ']} of {found['cells']} |"
        )
    return lines


def ridges(result: Row) -> list[str]:
    """One eigendecomposition in units of a Cholesky solve."""
    threads = f"{result['threads']} thread{'s' if result['threads'] > 1 else ''}"
    lines = [
        f"| rows, {threads} | a Cholesky solve | an eigendecomposition | ratio |",
        "|---|---|---|---|",
    ]
    for row in result["rows"]:
        lines.append(
            f"| {row['n']} | {_milliseconds(1e3 * row['cholesky_s'])} "
            f"| {_milliseconds(1e3 * row['eigh_s'])} | {row['ratio']:.1f} |"
        )
    return lines
