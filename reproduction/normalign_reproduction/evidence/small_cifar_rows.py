"""The tables of few images: what each method reaches, differences, grids, costs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from normalign_reproduction.evidence.small_cifar import (
    CHOICES,
    CONTROL,
    METHODS,
    QUANTITIES,
    TUNED,
    Difference,
    arms,
    chosen,
    difference,
    pooled,
    seconds,
    strength,
)
from normalign_reproduction.spec import Record, Records, Row
from normalign_reproduction.summaries import mean

__all__ = [
    "COMPARED", "cost_rows", "difference_rows", "grid_rows", "method_rows", "ratio",
]  # fmt: skip

# What GrokAlign is compared with.
COMPARED = (CONTROL, "decay", "pgd")


def method_rows(by: str) -> Callable[[Records], list[Row]]:
    """Return the rows of the table of one choice: means over seeds on test images.

    Methods without a choice are in the table of the first choice alone.
    """
    first = by == next(iter(CHOICES))

    def rows(records: Records) -> list[Row]:
        made = []
        for size, by_method in chosen(records, by).items():
            for method, by_seed in by_method.items():
                if not first and method not in TUNED:
                    continue
                group = list(by_seed.values())
                values = dict.fromkeys(strength(one, method) for one in group)
                told = ", ".join(f"{v:g}" for v in values if v is not None)
                named = {"n_train": size, "method": METHODS[method], "strength": told}
                made.append({**named, **_means(group)})
        return made

    return rows


def _means(group: Sequence[Record]) -> Row:
    """Return means over seeds, and the least and the greatest of some."""
    row: Row = {"n": len(group)}
    validated = [name for names in CHOICES.values() for name in names]
    for name in dict.fromkeys(validated):
        known = [r.result[name] for r in group if r.result.get(name) is not None]
        row[name] = mean([100 * value for value in known])
    for name, quantity in QUANTITIES.items():
        known = [v for v in map(quantity.of, group) if math.isfinite(v)]
        row[name] = mean(known)
        row[f"{name}_seeds"] = (min(known), max(known)) if len(known) > 1 else None
    return row


def difference_rows(records: Records) -> list[Row]:
    """Return GrokAlign less the others, in pairs, over all sizes and at each."""
    made = []
    for by in CHOICES:
        for reference in COMPARED:
            found = {
                name: difference(records, "grokalign", reference, name, by=by)
                for name in QUANTITIES
            }
            sizes = list(dict.fromkeys(s for one in found.values() for s in one.sizes))
            for size in ("all", *sorted(sizes)):
                row: Row = {
                    "by": by, "n_train": str(size),
                    "reference": METHODS[reference],
                }  # fmt: skip
                for name, one in found.items():
                    row[name], row[f"{name}_interval"] = _at(one, size)
                if any(row[name] is not None for name in found):
                    made.append(row)
    return made


def _at(
    found: Difference, size: str | int
) -> tuple[float | None, tuple[float, float] | None]:
    if isinstance(size, int):
        return found.sizes.get(size, (None, None))
    return found.mean, found.interval


def grid_rows(records: Records) -> list[Row]:
    """Return every strength of the tuned methods, means over seeds."""
    return [
        {"n_train": size, "method": METHODS[method], "strength": value}
        | _means(list(by_seed.values()))
        for size, by_method in arms(records).items()
        for method in TUNED
        for value, by_seed in sorted(by_method.get(method, {}).items())
    ]


def cost_rows(records: Records) -> list[Row]:
    """Return the seconds of a training, in units of the control, and with tuning."""
    once, tuned = (seconds(records, tuning=tuning) for tuning in (False, True))
    made = []
    for size, by_method in once.items():
        base = by_method[CONTROL]
        for method, by_seed in by_method.items():
            if not by_seed:
                continue
            shares = [by_seed[s] / base[s] for s in by_seed if base.get(s)]
            grid = tuned[size][method]
            whole = [grid[s] / base[s] for s in grid if base.get(s)]
            made.append(
                {
                    "n_train": size, "method": METHODS[method], "n": len(by_seed),
                    "seconds": statistics.fmean(by_seed.values()),
                    "relative": mean(shares), "with_tuning": mean(whole),
                }
            )  # fmt: skip
    return made


def ratio(
    records: Records, method: str, reference: str, *, tuning: bool = False
) -> Difference:
    """Return the difference of the logarithms of seconds, in pairs.

    Parameters
    ----------
    tuning : bool
        Whether the first has to be tuned and the second not.
    """
    ours = seconds(records, tuning=tuning)
    theirs = seconds(records, tuning=False)
    return pooled(
        {
            size: [
                math.log(by_seed[method][s] / theirs[size][reference][s])
                for s in by_seed[method]
                if theirs[size][reference].get(s) and by_seed[method][s]
            ]
            for size, by_seed in ours.items()
        }
    )
