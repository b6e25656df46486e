"""Alignment of the maps from the inputs of a network's stages to its output.

Each number is a mean over seeds: at training images, at test images, and of the same
network before training, at training images.
"""

from __future__ import annotations

from typing import Any

from normalign_reproduction.items.capacity.rows import (
    by_network,
    network_title,
    rank_correlation,
    reach,
    seeds_of,
)
from normalign_reproduction.spec import Cell, Record, Records, Row
from normalign_reproduction.statistics import drop_none, mean

__all__ = [
    "LEAST_CORRELATION", "VIEWS", "due_to_training", "layer_rows", "profile",
    "rises_with_depth",
]  # fmt: skip

LEAST_CORRELATION = 0.8  # of four stages: at most one pair of neighbours is exchanged
VIEWS = {
    "train": "training images",
    "test": "test images",
    "averaged": "training images, averaged weights",
    "untrained": "training images, untrained",
}
_NUMBERS = (
    "centroid_alignment", "answer_alignment", "normal_alignment", "effective_rank",
)  # fmt: skip


def profile(records: Records, name: str, view: str = "train") -> dict[str, list[float]]:
    """Return a number of each stage, from the first to the last, for every seed.

    Parameters
    ----------
    records
        Of one network.
    view : {"train", "test", "averaged", "untrained"}
    """
    found: dict[str, list[float]] = {}
    for record in records:
        for place, numbers in _places(record, view).items():
            found.setdefault(place, []).extend(drop_none([numbers[name]]))
    return {place: values for place, values in found.items() if values}


def _places(record: Record, view: str) -> dict[str, Any]:
    result = record.result
    if view == "test":
        return result["places_test"]
    if view == "train":
        return result["places"]
    return (result[view] or {}).get("places", {})


def _means(records: Records, name: str, view: str) -> list[float]:
    return [
        middle
        for values in profile(records, name, view).values()
        if (middle := mean(values)) is not None
    ]


def layer_rows(records: Records) -> list[Row]:
    """Return a row for each network and stage."""
    rows: list[Row] = []
    for network, group in by_network(records).items():
        found = {
            (view, name): profile(group, name, view)
            for view in VIEWS
            for name in _NUMBERS
        }
        for place in group[0]["places"]:
            row: Row = {
                "network": network_title(network), "place": place, "n": len(group),
            }  # fmt: skip
            for (view, name), by_place in found.items():
                seeds, key = by_place.get(place, []), f"{name}_{view}"
                row |= {key: mean(seeds), f"{key}_reach": reach(seeds)}
            rows.append(row)
    return rows


def rises_with_depth(records: Records) -> list[Cell]:
    """Return for each network whether centroid alignment rises with depth."""
    verdicts = []
    for network, group in by_network(records).items():
        for view in ("train", "test"):
            values = _means(group, "centroid_alignment", view)
            cell = f"{network_title(network)}, {VIEWS[view]}"
            # A profile with a gap would be judged by other stages than it says.
            if len(values) < max(3, len(group[0]["places"])):
                verdicts.append(Cell(cell, "rises", "too few stages", None))
                continue
            rank = rank_correlation(range(len(values)), values)
            holds = rank >= LEAST_CORRELATION and values[-1] > values[0]
            why = f"a rank correlation of {rank:.2f}, at least {LEAST_CORRELATION:g}; "
            why += f"{values[-1] - values[0]:+.3f} from the first stage to the last; "
            why += seeds_of(group)
            ours = ", ".join(f"{one:.3f}" for one in values)
            verdicts.append(Cell(cell, "rises", ours, holds, why))
    return verdicts


def due_to_training(records: Records) -> list[Cell]:
    """Return for each network whether training has raised the rise with depth."""
    verdicts = []
    for network, group in by_network(records).items():
        after, before = (
            _means(group, "centroid_alignment", view) for view in ("train", "untrained")
        )
        whole = len(group[0]["places"])
        if len(after) < 2 or not len(after) == len(before) == whole:
            verdicts.append(Cell(network_title(network), "", "a network lacks", None))
            continue
        risen, start = after[-1] - after[0], before[-1] - before[0]
        why = f"a rise of {risen:.3f} from the first stage to the last, above 0 and "
        why += f"above the {start:.3f} of the untrained network; {seeds_of(group)}"
        ours = f"{risen:+.3f} after {start:+.3f}"
        verdicts.append(
            Cell(network_title(network), "", ours, risen > max(start, 0.0), why)
        )
    return verdicts
