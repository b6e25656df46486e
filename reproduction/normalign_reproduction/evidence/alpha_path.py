"""Along the identity weight, the paper's alpha: accuracy, robustness and alignment.

All by the leak-free protocol. A table's number is its mean over seeds; means are over
tables that have every weight, intervals percentile bootstraps over those tables, 10000
resamples, seed 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from normalign_reproduction.evidence.paired import bootstrap_interval
from normalign_reproduction.evidence.tabular import defined, scores, seed_means
from normalign_reproduction.spec import Record, Records, Row
from normalign_reproduction.summaries import mean

__all__ = [
    "PLAIN", "PROTOCOL", "RADII", "BySeed", "Score", "common_scores", "defined_tables",
    "leak_free", "path_rows", "quartile_tables", "table_means",
]  # fmt: skip

PROTOCOL = "leak-free"
PLAIN = 1.0  # RFM's weight
RADII = ("0.1", "1", "2")
_QUANTITIES = (
    "accuracy", *(f"asr_{radius}" for radius in RADII), "strong_1", "normal_alignment",
)  # fmt: skip

Score = Mapping[str, float | None]
BySeed = dict[int, dict[str, float | None]]


def leak_free(records: Records) -> list[Record]:
    """Return the runs of RFM, RFAM and what is between them that have no leak."""
    return [r for r in records if r["method"] == "rfam" and r["protocol"] == PROTOCOL]


def common_scores(records: Records) -> dict[float, dict[str, BySeed]]:
    """Return the numbers by weight, table and seed, where all weights have them.

    Weights rise, tables come by name. A seed that a weight lacks is left out of its
    table, and a table without a seed that all have is left out altogether.
    """
    weights = sorted({record["identity_weight"] for record in leak_free(records)})
    found = {
        weight: scores(records, protocol=PROTOCOL, identity_weight=weight)
        for weight in weights
    }
    if not found:
        return {}
    kept: dict[str, list[int]] = {}
    for table in sorted(set.intersection(*(set(by) for by in found.values()))):
        seeds = sorted(set.intersection(*(set(by[table]) for by in found.values())))
        if seeds:
            kept[table] = seeds
    return {
        weight: {
            table: {seed: by_table[table][seed] for seed in seeds}
            for table, seeds in kept.items()
        }
        for weight, by_table in found.items()
    }


def table_means(records: Records) -> dict[float, dict[str, dict[str, float | None]]]:
    """Return the means over seeds, by weight and table."""
    return {
        weight: {table: seed_means(by_seed) for table, by_seed in by_table.items()}
        for weight, by_table in common_scores(records).items()
    }


def defined_tables(found: Mapping[float, Mapping[str, Score]], name: str) -> list[str]:
    """Return the tables on which all weights have a quantity."""
    tables = next(iter(found.values()), {})
    return [
        table
        for table in tables
        if all(by_table[table][name] is not None for by_table in found.values())
    ]


def path_rows(records: Records) -> list[Row]:
    """Return means over tables for each weight, and their change from weight 1.

    Each quantity is over the tables where all weights have it, so that every line of
    a column is of the same tables.
    """
    found = table_means(records)
    rows: list[Row] = []
    for weight, by_table in found.items():
        row: Row = {"weight": weight, "n_tables": len(by_table)}
        for name in _QUANTITIES:
            tables = defined_tables(found, name)
            values = defined(by_table[table][name] for table in tables)
            row[name] = mean(values)
            row[f"{name}_interval"] = bootstrap_interval(values)
            if (
                name in ("accuracy", "asr_1", "strong_1")
                and PLAIN in found
                and weight != PLAIN
            ):
                base = defined(found[PLAIN][table][name] for table in tables)
                moved = [a - b for a, b in zip(values, base, strict=True)]
                row[f"{name}_change"] = mean(moved)
                row[f"{name}_change_interval"] = bootstrap_interval(moved)
        row["n_undefined"] = len(by_table) - len(defined_tables(found, "asr_1"))
        rows.append(row)
    return rows


def quartile_tables(records: Records) -> list[str]:
    """Return the tables at the quartiles of how attack success changes, 1 to 0.

    From the largest fall to the largest rise, each once: five, or as many as there are.
    """
    found = table_means(records)
    if PLAIN not in found or 0.0 not in found:
        return []
    changes = sorted(
        (new - old, table)
        for table in found[PLAIN]
        if (new := found[0.0][table]["asr_1"]) is not None
        and (old := found[PLAIN][table]["asr_1"]) is not None
    )
    last = len(changes) - 1
    places = dict.fromkeys(round(share * last / 4) for share in range(5))
    return [changes[place][1] for place in places if changes]
