"""Alignment against the number of images and the width of a network (Figure 1, right).

Each number is a mean over seeds, of the weights at the end of training or of their
average on the way: the paper does not tell which it measured.
"""

from __future__ import annotations

from normalign_reproduction.evidence.robust_images import (
    WEIGHTS,
    by_network,
    defined,
    network_title,
    rank_correlation,
    reach,
    seeds_of,
    source_sentence,
    value,
)
from normalign_reproduction.spec import Record, Records, Row, Verdict
from normalign_reproduction.summaries import grouped, mean

__all__ = [
    "MOST_CORRELATION", "capacity_rows", "falls_with_images", "finding", "means",
    "wider_aligns_more",
]  # fmt: skip

MOST_CORRELATION = -0.75
_SHARES = ("train_accuracy", "test_accuracy", "robust_accuracy")
_NUMBERS = ("normal_alignment", "effective_rank")


def by_size(records: Records) -> dict[int, list[Record]]:
    """Return the runs of each number of images, from few to many."""
    return {n: group for (n,), group in sorted(grouped(records, "n_train").items())}


def means(
    records: Records, name: str, weights: str = "final"
) -> dict[str, dict[int, float]]:
    """Return the mean over seeds of a number, by network and number of images.

    A run that diverged, or without averaged weights, has no number and is left out.
    """
    found: dict[str, dict[int, float]] = {}
    for network, group in by_network(records).items():
        for n, runs in by_size(group).items():
            middle = mean(defined(value(r, name, weights) for r in runs))
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
                    found = defined(value(r, name, weights) for r in runs)
                    seeds = [scale * one for one in found]
                    row |= {name: mean(seeds), f"{name}_reach": reach(seeds)}
                rows.append(row)
    return rows


def wider_aligns_more(records: Records) -> list[Verdict]:
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
                verdicts.append(Verdict(cell, paper, "a network lacks", None))
                continue
            less, more = found[narrow][n_train], found[wide][n_train]
            why = f"{network_title(wide)} {more - less:+.3f} over "
            why += f"{network_title(narrow)}, above 0; {seeds_of(records)}"
            ours = f"{less:.3f} and {more:.3f}"
            verdicts.append(Verdict(cell, paper, ours, more > less, why))
    return verdicts


def falls_with_images(records: Records) -> list[Verdict]:
    """Return for each network whether alignment falls as its images become more."""
    verdicts = []
    for weights in WEIGHTS:
        for network, found in means(records, "normal_alignment", weights).items():
            cell = f"{network_title(network)}, {weights} weights"
            if len(found) < 3:
                verdicts.append(Verdict(cell, "falls", "too few sizes", None))
                continue
            sizes, values = list(found), list(found.values())
            rank = rank_correlation(sizes, values)
            holds = rank <= MOST_CORRELATION and values[-1] < values[0]
            why = f"a rank correlation of {rank:.2f}, at most {MOST_CORRELATION:g}; "
            why += f"{values[-1] - values[0]:+.3f} from the fewest to the most; "
            why += seeds_of(records)
            ours = f"{values[0]:.3f} to {values[-1]:.3f}"
            verdicts.append(Verdict(cell, "falls", ours, holds, why))
    return verdicts


def finding(records: Records) -> str:
    """Return alignment by network and number of images, and where the wide one leads.

    Of the final weights; in how many sizes the wider network leads, and by how much,
    of both.
    """
    found = means(records, "normal_alignment")
    if not found:
        return f"No run ended with numbers.{source_sentence(records)}"
    listed = "; ".join(
        f"{network_title(network)} "
        + ", ".join(f"{middle:.3f} at {n}" for n, middle in by_n.items())
        for network, by_n in found.items()
    )
    text = f"Normal alignment at the end, by the number of images: {listed}."
    for weights in WEIGHTS:
        leads = list(_leads(means(records, "normal_alignment", weights)).values())
        if leads:
            text += f" With {weights} weights the widest network leads at "
            text += f"{sum(lead > 0 for lead in leads)} of {len(leads)} sizes, "
            text += f"by {min(leads):+.3f} to {max(leads):+.3f}."
    text += f" Of {seeds_of(records)}"
    text += ": another could be otherwise." if seeds_of(records) == "one seed" else "."
    return text + source_sentence(records)


def _leads(found: dict[str, dict[int, float]]) -> dict[int, float]:
    """Return how far the widest network is above the narrowest, where both are."""
    if len(found) < 2:
        return {}
    narrow, *_, wide = found.values()
    return {n: wide[n] - narrow[n] for n in narrow if n in wide}
