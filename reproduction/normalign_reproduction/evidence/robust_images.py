"""Numbers of robustly trained networks, for the final and for the averaged weights."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from scipy import stats

from normalign_reproduction.spec import Record, Records
from normalign_reproduction.summaries import grouped

__all__ = [
    "WEIGHTS", "by_network", "defined", "network_title", "rank_correlation", "reach",
    "seeds_of", "source_sentence", "value",
]  # fmt: skip

WEIGHTS = ("final", "averaged")


def value(record: Record, name: str, weights: str = "final") -> float | None:
    """Return a number of a result, of either weights; ``None`` where there is none."""
    result: Any = record.result if weights == "final" else record.result["averaged"]
    return None if result is None else result.get(name)


def defined(values: Iterable[float | None]) -> list[float]:
    """Return the numbers that are there.

    Examples
    --------
    >>> defined([1.0, None])
    [1.0]
    """
    return [one for one in values if one is not None]


def by_network(records: Records) -> dict[str, list[Record]]:
    """Return the runs of each network, from the fewest parameters to the most."""
    groups = grouped(records, "network")
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


def source_sentence(records: Records) -> str:
    """Return which images these are, where they are not the published ones."""
    copies = dict.fromkeys(
        record.result["origin"]
        for record in records
        if record.result.get("exact") is False
    )
    return f" The images: {'; '.join(copies)}." if copies else ""
