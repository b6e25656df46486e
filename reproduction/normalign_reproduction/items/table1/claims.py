"""What Table 1 shows, and the rules by which ours agrees with the paper's."""

from __future__ import annotations

from typing import Any

from normalign_reproduction.items.table1.rows import (
    METHOD_TITLES,
    TASK_TITLES,
    acceleration_rows,
    epochs_by_seed,
)
from normalign_reproduction.spec import Cell, Claim, Records

__all__ = ["CLAIMS"]

LOW, HIGH = 0.75, 1.33  # of the ratio of ours to the paper's
SHARE = 0.3  # three seeds of ten
SURE = 0.05


def _rows(records: Records, *, printed: bool) -> list[dict[str, Any]]:
    rows = acceleration_rows(epochs_by_seed(records))
    return [row for row in rows if not printed or row["published_share"] is not None]


def _cell(row: dict[str, Any]) -> str:
    return f"{TASK_TITLES[row['task']]}, {METHOD_TITLES[row['method']]}"


def _sooner(records: Records) -> list[Cell]:
    """GrokAlign needs fewer epochs than each method that groks in most of its seeds."""
    verdicts = []
    results = epochs_by_seed(records)
    rows = {(row["task"], row["method"]): row for row in acceleration_rows(results)}
    for task, methods in results.items():
        ours = rows.get((task, "grokalign"))
        others = {
            method: rows[task, method]["epochs"]
            for method in methods
            if method in ("baseline", "grokfast", "orthograd")
            and (rows[task, method]["share"] or 0) >= 0.5
        }
        cell = f"{TASK_TITLES[task]}, GrokAlign first"
        if ours is None or "baseline" not in methods:
            why = "GrokAlign or the baseline was not run"
            verdicts.append(Cell(cell, "first", "-", None, why))
            continue
        epochs, share = ours["epochs"], ours["share"] or 0.0
        compared = ", ".join(f"{METHOD_TITLES[m]} {e:.0f}" for m, e in others.items())
        compared = compared or "no other groks in half of its seeds"
        why = f"{share:.0%} of its seeds; {compared}"
        sooner = [m for m, e in others.items() if epochs is None or e <= epochs]
        holds: bool | None = share > 0.5 and not sooner
        lucky = sooner and all(rows[task, m]["share"] == 0.5 for m in sooner)
        if share > 0.5 and lucky:
            holds, why = None, f"{why}; what is sooner groks in half of its seeds only"
        shown = "not grokked" if epochs is None else f"{epochs:.0f} epochs"
        verdicts.append(Cell(cell, "first", shown, holds, why))
    return verdicts


def _shares(records: Records) -> list[Cell]:
    verdicts = []
    for row in _rows(records, printed=True):
        theirs, ours = row["published_share"], row["share"]
        close = ours is not None and abs(ours - theirs) <= SHARE + 1e-9
        verdicts.append(
            Cell(_cell(row), f"{theirs:.0%}", f"{ours:.0%}", close, "share grokked")
        )
    return verdicts


def _epochs(records: Records) -> list[Cell]:
    verdicts = []
    for row in _rows(records, printed=True):
        theirs, ours = row["published_epochs"], row["epochs"]
        if theirs is None and ours is None:
            both = Cell(_cell(row), "never", "never", True, "no seed groks")
            verdicts.append(both)
            continue
        if theirs is None or ours is None:
            one, other = (f"{e:.0f}" if e else "never" for e in (theirs, ours))
            why = "only one of the two has a seed that groks"
            verdicts.append(Cell(_cell(row), one, other, False, why))
            continue
        ratio = ours / theirs
        why = f"ratio of means {ratio:.2f}, {row['n_grokked']} seeds"
        holds = LOW <= ratio <= HIGH
        verdicts.append(Cell(_cell(row), f"{theirs:.0f}", f"{ours:.0f}", holds, why))
    return verdicts


def _speedups(records: Records) -> list[Cell]:
    verdicts = []
    for row in _rows(records, printed=True):
        theirs, ours = row["published_speedup"], row["speedup"]
        if row["method"] != "grokalign" or theirs is None:
            continue
        holds = ours is not None and LOW <= ours / theirs <= HIGH
        shown = "-" if ours is None else f"{ours:.2f}"
        why = "" if ours is None else f"ratio {ours / theirs:.2f}"
        verdicts.append(Cell(_cell(row), f"{theirs:.2f}", shown, holds, why))
    return verdicts


def _significance(records: Records) -> list[Cell]:
    verdicts = []
    for row in _rows(records, printed=True):
        theirs, paired, welch = row["published_p"], row["p_paired"], row["p_welch"]
        if theirs is None:
            continue
        holds = None if welch is None else (theirs < SURE) == (welch < SURE)
        shown = "-" if welch is None else f"{welch:.2g}"
        why = "too few seeds grok for a test"
        if welch is not None:
            why = f"Welch; paired {'-' if paired is None else f'{paired:.2g}'}"
        verdicts.append(Cell(_cell(row), f"{theirs:.2g}", shown, holds, why))
    return verdicts


_FULL: dict[str, Any] = {"sizes": ("full",), "presets": ("released",)}

CLAIMS = (
    Claim(
        "GrokAlign groks first",
        "GrokAlign groks in more than half of its seeds, in fewer epochs on average "
        "than each method of the paper that does; one that groks in exactly half of "
        "its seeds, and sooner, leaves it open",
        _sooner,
    ),
    Claim(
        "Share of seeds that grok", f"within {100 * SHARE:.0f} points of the paper's",
        _shares, **_FULL,
    ),
    Claim(
        "Mean epoch", f"the ratio to the paper's in [{LOW}, {HIGH}], or none groks in "
        "both", _epochs, **_FULL,
    ),
    Claim(
        "Speed-up of GrokAlign", f"the ratio to the paper's in [{LOW}, {HIGH}]",
        _speedups, **_FULL,
    ),
    Claim(
        "Significance", f"p < {SURE} in both or in neither (Welch's test, as the "
        "paper's own summary takes)", _significance, **_FULL,
    ),
)  # fmt: skip
