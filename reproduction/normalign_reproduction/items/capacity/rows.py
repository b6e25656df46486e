"""Numbers of robustly trained networks, for the final and the averaged weights."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import Any

from scipy import stats

from normalign_reproduction.spec import Cell, Record, Records, Row
from normalign_reproduction.statistics import drop_none, group_by, mean

__all__ = [
    "MOST_CORRELATION", "WEIGHTS", "by_network", "capacity_rows", "falls_with_images",
    "means", "network_title", "rank_correlation", "reach", "seeds_of", "value",
    "wider_aligns_more",
]  # fmt: skip

WEIGHTS = ("final", "averaged")


def value(record: Record, name: str, weights: str = "final") -> float | None:
    """Return a number of a result, of either weights; ``None`` where there is none."""
    result: Any = record.result if weights == "final" else record.result["averaged"]
    return None if result is None else result.get(name)


def by_network(records: Records) -> dict[str, list[Record]]:
    """Return the runs of each network, from the fewest parameters to the most."""
    groups = group_by(records, "network")
    order = sorted(groups, key=lambda key: groups[key][0].result["n_parameters"])
    return {key[0]: groups[key] for key in order}


def network_title(name: str) -> str:
    """Return what a network is called in the paper.

    Examples
    --------
    >>> network_title("wrn28-10"), network_title("resnet18-w4")
    ('WideResNet-28-10', 'ResNet18, width 4')
    """
    wide = re.fullmatch(r"wrn(.*)", name)
    if wide is not None:
        return f"WideResNet-{wide[1]}"
    head, _, width = name.removeprefix("resnet").partition("-w")
    return f"ResNet{head}, width {width}" if width else f"ResNet{head}"


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Spearman's rank correlation; 0 where one of the two does not vary.

    Examples
    --------
    >>> rank_correlation([1, 2, 3], [5.0, 7.0, 70.0]), rank_correlation([1, 2], [3, 3])
    (1.0, 0.0)
    """
    if len(set(x)) < 2 or len(set(y)) < 2:
        return 0.0
    ranks = (stats.rankdata(each).tolist() for each in (x, y))
    return round(statistics.correlation(*ranks), 12)


def reach(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the least and the greatest of some numbers; ``None`` of fewer than two.

    Examples
    --------
    >>> reach([2.0, 1.0, 3.0])
    (1.0, 3.0)
    """
    return (min(values), max(values)) if len(values) > 1 else None


def seeds_of(records: Records) -> str:
    """Return how many seeds there are, in words: one tells little of another.

    Examples
    --------
    >>> seeds_of([])
    'no seed'
    """
    n = len({record.run.seed for record in records})
    return {0: "no seed", 1: "one seed"}.get(n, f"{n} seeds")


MOST_CORRELATION = -0.75
_SHARES = ("train_accuracy", "test_accuracy", "robust_accuracy")
_NUMBERS = ("normal_alignment", "effective_rank")


def by_size(records: Records) -> dict[int, list[Record]]:
    """Return the runs of each number of images, from few to many."""
    return {n: group for (n,), group in sorted(group_by(records, "n_train").items())}


def means(
    records: Records, name: str, weights: str = "final"
) -> dict[str, dict[int, float]]:
    """Return the mean over seeds of a number, by network and number of images.

    A run that diverged, or without averaged weights, has no number and is left out.
    """
    found: dict[str, dict[int, float]] = {}
    for network, group in by_network(records).items():
        for n, runs in by_size(group).items():
            middle = mean(drop_none(value(r, name, weights) for r in runs))
            if middle is not None:
                found.setdefault(network, {})[n] = middle
    return found


def capacity_rows(records: Records) -> list[Row]:
    """Return a row for each network, number of images and kind of weights.

    Accuracies are in percent.
    """
    rows: list[Row] = []
    for network, group in by_network(records).items():
        for n_train, runs in by_size(group).items():
            for weights in WEIGHTS:
                row: Row = {
                    "network": network_title(network), "n_train": n_train,
                    "weights": weights, "n": len(runs),
                }  # fmt: skip
                for name in (*_SHARES, *_NUMBERS):
                    scale = 100.0 if name in _SHARES else 1.0
                    found = drop_none(value(r, name, weights) for r in runs)
                    seeds = [scale * one for one in found]
                    row |= {name: mean(seeds), f"{name}_reach": reach(seeds)}
                rows.append(row)
    return rows


def wider_aligns_more(records: Records) -> list[Cell]:
    """Return for each number of images whether the widest network aligns most."""
    verdicts = []
    for weights in WEIGHTS:
        found = means(records, "normal_alignment", weights)
        networks = [one for one in by_network(records) if one in found]
        if len(networks) < 2:
            continue
        narrow, wide = networks[0], networks[-1]
        for n_train in by_size(records):
            cell, paper = f"{n_train} images, {weights} weights", "the wider more"
            if not (n_train in found[narrow] and n_train in found[wide]):
                verdicts.append(Cell(cell, paper, "a network lacks", None))
                continue
            less, more = found[narrow][n_train], found[wide][n_train]
            why = f"{network_title(wide)} {more - less:+.3f} over "
            why += f"{network_title(narrow)}, above 0; {seeds_of(records)}"
            ours = f"{less:.3f} and {more:.3f}"
            verdicts.append(Cell(cell, paper, ours, more > less, why))
    return verdicts


def falls_with_images(records: Records) -> list[Cell]:
    """Return for each network whether alignment falls as its images become more."""
    verdicts = []
    for weights in WEIGHTS:
        for network, found in means(records, "normal_alignment", weights).items():
            cell = f"{network_title(network)}, {weights} weights"
            if len(found) < 3:
                verdicts.append(Cell(cell, "falls", "too few sizes", None))
                continue
            sizes, values = list(found), list(found.values())
            rank = rank_correlation(sizes, values)
            holds = rank <= MOST_CORRELATION and values[-1] < values[0]
            why = f"a rank correlation of {rank:.2f}, at most {MOST_CORRELATION:g}; "
            why += f"{values[-1] - values[0]:+.3f} from the fewest to the most; "
            why += seeds_of(records)
            ours = f"{values[0]:.3f} to {values[-1]:.3f}"
            verdicts.append(Cell(cell, "falls", ours, holds, why))
    return verdicts
