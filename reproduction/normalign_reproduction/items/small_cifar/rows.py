"""The study of few images of CIFAR-10, from its runs: methods, choices, rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

from normalign_reproduction.spec import Record, Records, Row
from normalign_reproduction.statistics import mean

__all__ = [
    "CHOICES", "COMPARED", "CONTROL", "METHODS", "QUANTITIES", "TUNED", "Difference",
    "Quantity", "arms", "cost_rows", "difference", "difference_rows", "grid_rows",
    "method_rows", "pooled_mean", "ratio", "seconds", "strength", "validation_choice",
]  # fmt: skip

METHODS = {
    "baseline": "No decay",
    "control": "GrokAlign's decay alone",
    "decay": "Weight decay, tuned",
    "grokalign": "GrokAlign, tuned",
    "pgd": "PGD training",
}
CONTROL = "control"
# What is tuned, and where its recipe has it.
TUNED = {"decay": "weight_decay", "grokalign": "penalty_weight"}
# By what it is tuned: the first decides, the second among equals.
CHOICES = {
    "accuracy": ("validation_accuracy", "validation_robust_accuracy"),
    "robust accuracy": ("validation_robust_accuracy", "validation_accuracy"),
}

BySeed = dict[int, Record]


@dataclass(frozen=True)
class Quantity:
    """A number of a result: what it is called, its scale, and the least of note.

    Parameters
    ----------
    name : str
        In the result.
    words : str
    unit : str
        Of a difference.
    scale : float
        What it is multiplied with: 100 for percentages.
    worth : float
        A difference below this, scaled, is of no use to anybody.
    form : str
        How a difference is written.
    """

    name: str
    words: str
    unit: str
    scale: float
    worth: float
    form: str

    @property
    def title(self) -> str:
        """What heads a column of differences."""
        named = self.words.capitalize()
        return f"{named} ({self.unit})" if self.unit else named

    def of(self, record: Record) -> float:
        """Return it of a run; NaN where the run has none."""
        value = record.result.get(self.name)
        return math.nan if value is None else self.scale * float(value)


QUANTITIES = {
    one.name: one
    for one in (
        Quantity("test_accuracy", "test accuracy", "points", 100, 1.0, "{:+.1f}"),
        Quantity("robust_accuracy", "robust accuracy", "points", 100, 1.0, "{:+.1f}"),
        Quantity("nearby_accuracy", "robust accuracy at a quarter of the radius",
                 "points", 100, 1.0, "{:+.1f}"),
        Quantity("normal_alignment", "normal alignment", "", 1, 0.01, "{:+.3f}"),
        Quantity("effective_rank", "effective rank", "", 1, 0.1, "{:+.2f}"),
    )
}  # fmt: skip


def strength(record: Record, method: str) -> float | None:
    """Return the number of a run that is tuned; ``None`` if the method has none."""
    return float(record["recipe"][TUNED[method]]) if method in TUNED else None


def arms(records: Records) -> dict[int, dict[str, dict[float, BySeed]]]:
    """Return the runs by number of images, method, strength and seed.

    The control of GrokAlign is the run of weight decay that has GrokAlign's own. What
    has no strength has 0.
    """
    decays = {
        record["recipe"]["weight_decay"]
        for record in records
        if record["method"] == "grokalign"
    }
    found: dict[int, dict[str, dict[float, BySeed]]] = {}
    for record in sorted(records, key=lambda one: (one["n_train"], one.run.seed)):
        methods = [record["method"]]
        if record["method"] == "decay" and record["recipe"]["weight_decay"] in decays:
            methods.append(CONTROL)
        by_method = found.setdefault(record["n_train"], {})
        for method in methods:
            value = strength(record, method) or 0.0
            by_strength = by_method.setdefault(method, {})
            by_strength.setdefault(value, {})[record.run.seed] = record
    return found


def validation_choice(records: Records, by: str) -> dict[int, dict[str, BySeed]]:
    """Return the run that validation chooses, by number of images, method and seed.

    Of equals the smaller strength is taken. A seed that lacks a strength which the
    method has elsewhere is left out: of a part of the grid, the choice is another.

    Parameters
    ----------
    by : {"accuracy", "robust accuracy"}
    """
    found = arms(records)
    grids = {
        method: sorted({s for m in found.values() for s in m.get(method, {})})
        for method in METHODS
    }
    taken: dict[int, dict[str, BySeed]] = {}
    for size, by_method in found.items():
        for method in METHODS:
            by_strength = by_method.get(method, {})
            if set(by_strength) != set(grids[method]) or not by_strength:
                continue
            seeds = set.intersection(*(set(one) for one in by_strength.values()))
            best = {
                seed: _best([by_strength[s][seed] for s in grids[method]], by)
                for seed in sorted(seeds)
            }
            if best:
                taken.setdefault(size, {})[method] = best
    return taken


def _best(grid: Sequence[Record], by: str) -> Record:
    """Return the first of the best."""

    def score(record: Record) -> tuple[float, ...]:
        values = [record.result.get(name) for name in CHOICES[by]]
        return tuple(-math.inf if value is None else value for value in values)

    return max(grid, key=score)


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences: over all sizes, and at each of them.

    Attributes
    ----------
    mean : float or None
        ``None`` where there is no pair.
    interval : pair of float or None
        95 %; ``None`` where no size has two seeds.
    sizes : dict of int to (mean, interval)
    n_pairs : int
    """

    mean: float | None
    interval: tuple[float, float] | None
    sizes: dict[int, tuple[float, tuple[float, float] | None]]
    n_pairs: int


def pooled_mean(groups: Mapping[int, Sequence[float]]) -> Difference:
    """Return the mean over sizes, with the noise of seeds pooled over the sizes.

    Values that are not finite are left out.

    Examples
    --------
    >>> found = pooled_mean({100: [1.0, 3.0], 300: [5.0, 7.0]})
    >>> found.mean, [round(end, 2) for end in found.interval]  # 4 -+ 4.303 / sqrt(2)
    (4.0, [0.96, 7.04])
    """
    kept = {
        size: finite
        for size, values in groups.items()
        if (finite := [value for value in values if math.isfinite(value)])
    }
    n_pairs = sum(map(len, kept.values()))
    if not kept:
        return Difference(None, None, {}, 0)
    means = {size: statistics.fmean(values) for size, values in kept.items()}
    freedom = n_pairs - len(kept)
    squares = sum((v - means[s]) ** 2 for s, values in kept.items() for v in values)

    def reach(middle: float, variance: float) -> tuple[float, float] | None:
        if not freedom:
            return None
        noise = math.sqrt(squares / freedom * variance)
        far = float(stats.t.ppf(0.975, freedom)) * noise
        return middle - far, middle + far

    sizes = {size: (means[size], reach(means[size], 1 / len(kept[size])))
             for size in sorted(kept)}  # fmt: skip
    middle = statistics.fmean(means.values())
    variance = sum(1 / len(values) for values in kept.values()) / len(kept) ** 2
    return Difference(middle, reach(middle, variance), sizes, n_pairs)


def difference(
    records: Records, method: str, reference: str, quantity: str, *, by: str
) -> Difference:
    """Return how a quantity differs between two methods, in pairs.

    Parameters
    ----------
    method, reference : str
        Of :data:`METHODS`; the difference is the first's less the second's.
    quantity : str
        Of :data:`QUANTITIES`.
    by : {"accuracy", "robust accuracy"}
        What tunes them.
    """
    value = QUANTITIES[quantity].of
    return pooled_mean(_pairs(validation_choice(records, by), method, reference, value))


def _pairs(
    taken: Mapping[int, Mapping[str, BySeed]],
    method: str,
    reference: str,
    value: Callable[[Record], float],
) -> dict[int, list[float]]:
    return {
        size: [
            value(ours[seed]) - value(theirs[seed])
            for seed in ours
            if seed in theirs
        ]
        for size, by_method in taken.items()
        if (ours := by_method.get(method)) and (theirs := by_method.get(reference))
    }  # fmt: skip


def seconds(
    records: Records, *, tuning: bool
) -> dict[int, dict[str, dict[int, float]]]:
    """Return the seconds of training, by number of images, method and seed.

    Of a method that is tuned, the mean over its grid, or with ``tuning`` the sum: what
    it takes to find the strength. A run that diverged has no end, and no time; one that
    shared a GPU with others has none that counts, and the sum of its grid is not known.
    """
    total = sum if tuning else statistics.fmean
    times: dict[int, dict[str, dict[int, float]]] = {}
    for size, by_method in arms(records).items():
        for method in METHODS:
            grid = list(by_method.get(method, {}).values())
            common = set.intersection(*(set(one) for one in grid)) if grid else set()
            found = times.setdefault(size, {}).setdefault(method, {})
            for seed in sorted(common):
                alone = [one[seed] for one in grid if not _shares_gpu(one[seed])]
                values = [run.result["seconds"] for run in alone if _has_end(run)]
                if values and not (tuning and len(alone) < len(grid)):
                    found[seed] = total(values)
    return times


def _shares_gpu(record: Record) -> bool:
    """Return whether a run shared its GPU with others."""
    made = record.made
    return made.get("device_kind") == "cuda" and made.get("at_a_time", 1) > 1


def _has_end(record: Record) -> bool:
    result = record.result
    return result.get("seconds") is not None and result["test_accuracy"] is not None


# What GrokAlign is compared with.
COMPARED = (CONTROL, "decay", "pgd")


def method_rows(by: str) -> Callable[[Records], list[Row]]:
    """Return the rows of the table of one choice: means over seeds on test images.

    Methods without a choice are in the table of the first choice alone.
    """
    first = by == next(iter(CHOICES))

    def rows(records: Records) -> list[Row]:
        made = []
        for size, by_method in validation_choice(records, by).items():
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
    return pooled_mean(
        {
            size: [
                math.log(by_seed[method][s] / theirs[size][reference][s])
                for s in by_seed[method]
                if theirs[size][reference].get(s) and by_seed[method][s]
            ]
            for size, by_seed in ours.items()
        }
    )
