"""RFM and RFAM on tables, from their runs: per table, in pairs, and as rows.

A table's number is its mean over seeds first; means, medians and tests are then over
tables, each of which counts once, however many rows it has.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normalign_reproduction.files import read_csv
from normalign_reproduction.spec import Record, Records, Row
from normalign_reproduction.statistics import (
    bootstrap_interval,
    drop_none,
    mean,
    student_p,
    wilcoxon_p,
)

__all__ = [
    "METHODS", "METHOD_TITLES", "METRICS", "PROTOCOLS", "ROUNDED", "Metric", "Scores",
    "change_rows", "changes", "differences", "is_papers", "leak_rows", "mean_rows",
    "measurements", "pairs", "published_changes", "published_means", "scores",
    "seed_means", "seed_p_values", "seeds_of", "summary", "table_rows",
]  # fmt: skip

# Identity weights, by the names that the paper has for them.
METHODS = {"rfm": 1.0, "rfam": 0.0}
METHOD_TITLES = {"rfm": "RFM", "rfam": "RFAM"}
PROTOCOLS = ("released", "leak-free")
_GEOMETRY = (
    "normal_alignment", "effective_rank", "participation_rank", "alignment_ratio",
)  # fmt: skip

# Results are kept with six digits: means over seeds that are closer are equal.
ROUNDED = 2e-6

Score = Mapping[str, float | None]
# By table, then by seed.
Scores = Mapping[str, Mapping[int, Score]]


@dataclass(frozen=True)
class Metric:
    """One column of the paper's table of changes, or one more.

    Parameters
    ----------
    name, title : str
    quantity : str
        What it is the change of.
    relative : bool
        Whether the change is relative to RFM's, or a difference.
    better : {"greater", "less"}
        The direction that the paper's one-sided test asks for.
    unit, form : str
        What its numbers are, and how they are written.
    """

    name: str
    title: str
    quantity: str
    relative: bool
    better: str
    unit: str
    form: str

    def change(self, rfm: Score, rfam: Score) -> float | None:
        """Return the change from RFM to RFAM; ``None`` where it is not defined."""
        difference, old = self.difference(rfm, rfam), rfm[self.quantity]
        if difference is None or not self.relative:
            return difference
        return difference / old if old else None

    def difference(self, rfm: Score, rfam: Score) -> float | None:
        """Return RFAM's number minus RFM's; ``None`` where one is not defined."""
        old, new = rfm[self.quantity], rfam[self.quantity]
        if old is None or new is None:
            return None
        return 0.0 if math.isclose(old, new, rel_tol=ROUNDED) else new - old


METRICS = (
    Metric("accuracy", "Test accuracy", "accuracy", True, "greater", "relative",
           "{:+.3f}"),
    Metric("normal_alignment", "Normal alignment", "normal_alignment", True, "greater",
           "relative", "{:+.2f}"),
    Metric("attack_success", "Attack success rate, radius 1", "asr_1", False, "less",
           "points", "{:+.2f}"),
    Metric("strong_success", "Success of the strong attack, radius 1", "strong_1",
           False, "less", "points", "{:+.2f}"),
)  # fmt: skip


def measurements(record: Record) -> dict[str, float | None]:
    """Return the numbers of a run: percentages, and local geometry as it is.

    ``accuracy`` and the success rates of the released attack, ``asr_0.1``, ``asr_1``
    and ``asr_2``, and of the strong one, ``strong_0.1`` and so on, are in percent; a
    rate is ``None`` where no row is right to begin with.
    """
    result = record.result
    accuracy = result["accuracy"]
    return {
        "accuracy": None if accuracy is None else 100 * accuracy,
        **{
            f"{name}_{radius:g}": rate
            for name, found in (("asr", "attack_success"), ("strong", "strong_success"))
            for radius, rate in zip(record["radii"], result[found], strict=True)
        },
        **{name: result[name] for name in _GEOMETRY},
    }


def scores(
    records: Records, *, protocol: str, identity_weight: float
) -> dict[str, dict[int, dict[str, float | None]]]:
    """Return the numbers of one method by one protocol: by table, then by seed.

    Tables come by name and seeds by number, in whatever order the records are.
    """
    found: dict[str, dict[int, dict[str, float | None]]] = {}
    for record in records:
        if (
            record["method"] == "rfam"
            and record["protocol"] == protocol
            and record["identity_weight"] == identity_weight
        ):
            found.setdefault(record["dataset"], {})[record.run.seed] = measurements(
                record
            )
    return {
        table: dict(sorted(by_seed.items())) for table, by_seed in sorted(found.items())
    }


def seed_means(by_seed: Mapping[int, Score]) -> dict[str, float | None]:
    """Return the means over seeds, each over those where it is defined.

    Examples
    --------
    >>> seed_means({0: {"accuracy": 80.0}, 1: {"accuracy": 90.0}})
    {'accuracy': 85.0}
    """
    names = next(iter(by_seed.values()))
    means: dict[str, float | None] = {}
    for name in names:
        values = [score[name] for score in by_seed.values()]
        known = [value for value in values if value is not None]
        means[name] = statistics.fmean(known) if known else None
    return means


def pairs(
    rfm: Scores, rfam: Scores, *, seeds: Collection[int] | None = None
) -> dict[str, tuple[dict[str, float | None], dict[str, float | None]]]:
    """Return the means of two methods on each table, over the seeds that both have.

    Parameters
    ----------
    seeds : collection of int, optional
        Over these alone. A table without a common seed is left out.
    """
    found = {}
    for table in rfm:
        common = set(rfm[table]) & set(rfam.get(table, {}))
        kept = sorted(common if seeds is None else common & set(seeds))
        if kept:
            found[table] = (
                seed_means({seed: rfm[table][seed] for seed in kept}),
                seed_means({seed: rfam[table][seed] for seed in kept}),
            )
    return found


def changes(
    records: Records,
    metric: Metric,
    *,
    protocol: str,
    seeds: Collection[int] | None = None,
) -> dict[str, float | None]:
    """Return the change of a metric from RFM to RFAM on each table.

    A table's numbers are averaged over seeds before the change is taken.
    """
    rfm, rfam = (
        scores(records, protocol=protocol, identity_weight=weight)
        for weight in METHODS.values()
    )
    both = pairs(rfm, rfam, seeds=seeds)
    return {table: metric.change(*pair) for table, pair in both.items()}


def differences(
    records: Records,
    metric: Metric,
    *,
    protocol: str,
    seeds: Collection[int] | None = None,
) -> list[float]:
    """Return RFAM's number minus RFM's on each table where both are defined.

    The t-test that their mean is zero is the paired t-test of the raw values.
    """
    rfm, rfam = (
        scores(records, protocol=protocol, identity_weight=weight)
        for weight in METHODS.values()
    )
    both = pairs(rfm, rfam, seeds=seeds)
    return drop_none(metric.difference(*pair) for pair in both.values())


def seeds_of(records: Records, *, protocol: str) -> list[int]:
    """Return the seeds of a protocol's runs, in rising order."""
    return sorted({r.run.seed for r in records if r["protocol"] == protocol})


def published_means() -> dict[str, dict[str, float]]:
    """Return the paper's Table 2, by method.

    Examples
    --------
    >>> published_means()["rfam"]["accuracy"]
    83.2
    """
    return {
        line.pop("method"): {name: float(value) for name, value in line.items()}
        for line in _lines("published.csv")
    }


def published_changes() -> dict[str, dict[str, float | str]]:
    """Return the paper's Table 3, by metric; a bound such as ``"<0.001"`` as text.

    Examples
    --------
    >>> published_changes()["attack_success"]["p"]
    0.007
    """
    return {
        line.pop("metric"): {
            name: value if value.startswith("<") else float(value)
            for name, value in line.items()
        }
        for line in _lines("published_tests.csv")
    }


def _lines(name: str) -> list[dict[str, str]]:
    return read_csv(Path(__file__).with_name(name))


# Of our quantities, the paper's; the paper has radius 1 alone.
_PRINTED = {
    "accuracy": "accuracy", "asr_1": "attack_success",
    "normal_alignment": "normal_alignment",
}  # fmt: skip
_PER_TABLE = ("accuracy", "asr_1", "strong_1", "normal_alignment")


def summary(values: Sequence[float | None]) -> dict[str, Any]:
    """Return mean and median of what is defined, with intervals, and how many are.

    Examples
    --------
    >>> found = summary([1.0, 1.0, 4.0, None])
    >>> found["mean"], found["median"], found["n"], found["n_undefined"]
    (2.0, 1.0, 3, 1)
    """
    known = drop_none(values)
    return {
        "n": len(known),
        "n_undefined": len(values) - len(known),
        "mean": mean(known),
        "mean_interval": bootstrap_interval(known),
        "std": statistics.stdev(known) if len(known) > 1 else None,
        "median": statistics.median(known) if known else None,
        "median_interval": bootstrap_interval(known, statistic="median"),
    }


def is_papers(records: Records) -> bool:
    """Say whether the tables are those of the paper."""
    return {record.run.data for record in records} == {"uci"}


def mean_rows(records: Records) -> list[Row]:
    """Return Table 2: the mean over tables of each quantity, by protocol and method.

    The paper's numbers stand beside runs on the UCI collection by the released
    protocol, and beside no others.
    """
    published, rows = published_means(), []
    for protocol in PROTOCOLS:
        for method, weight in METHODS.items():
            found = scores(records, protocol=protocol, identity_weight=weight)
            if not found:
                continue
            means = [seed_means(by_seed) for by_seed in found.values()]
            row: Row = {
                "protocol": protocol, "method": METHOD_TITLES[method],
                "n_tables": len(means),
                "n_undefined": sum(one["asr_1"] is None for one in means),
            }  # fmt: skip
            for name in means[0]:
                known = drop_none(one[name] for one in means)
                row[name] = mean(known)
                row[f"{name}_interval"] = bootstrap_interval(known)
            if protocol == "released" and is_papers(records):
                row |= {
                    f"published_{name}": published[method][printed]
                    for name, printed in _PRINTED.items()
                }
            rows.append(row)
    return rows


def change_rows(records: Records) -> list[Row]:
    """Return Table 3: how each metric changes from RFM to RFAM, by protocol.

    Tests are one-sided, for the direction that is an improvement. ``p`` is of the
    paired t-test of the raw values, as in the paper's evaluation; ``p_changes`` and
    ``p_wilcoxon`` are of the changes as they are tabulated (for the attack success
    rate, of the same differences).
    """
    published, rows = published_changes(), []
    for metric in METRICS:
        for protocol in PROTOCOLS:
            found = changes(records, metric, protocol=protocol)
            if not found:
                continue
            row = {
                "metric": metric.title, "unit": metric.unit, "protocol": protocol,
                **summary(list(found.values())), **_tests(records, metric, protocol),
            }  # fmt: skip
            if protocol == "released" and is_papers(records):
                printed = published.get(metric.name, {}).items()
                row |= {f"published_{name}": value for name, value in printed}
            rows.append(row)
    return rows


def seed_p_values(records: Records, metric: Metric, *, protocol: str) -> list[float]:
    """Return the p-value of the paired t-test for each seed by itself."""
    found = (
        student_p(
            differences(records, metric, protocol=protocol, seeds=[seed]),
            direction=metric.better,
        )
        for seed in seeds_of(records, protocol=protocol)
    )
    return drop_none(found)


def table_rows(records: Records) -> list[Row]:
    """Return each table by each protocol: both methods, and how much seeds differ."""
    rows = []
    facts = {r["dataset"]: r.result for r in records if r["method"] == "rfam"}
    for protocol in PROTOCOLS:
        rfm, rfam = (
            scores(records, protocol=protocol, identity_weight=weight)
            for weight in METHODS.values()
        )
        for table in sorted({*rfm, *rfam}):
            row: Row = {
                "table": table, "protocol": protocol,
                **{n: facts[table][n] for n in ("n_rows", "n_inputs", "n_classes")},
                "n_seeds": max(len(rfm.get(table, ())), len(rfam.get(table, ()))),
            }  # fmt: skip
            for method, found in (("rfm", rfm), ("rfam", rfam)):
                by_seed = found.get(table, {})
                for name in _PER_TABLE if by_seed else ():
                    known = drop_none(score[name] for score in by_seed.values())
                    row[f"{method}_{name}"] = mean(known)
                    spread = statistics.stdev(known) if len(known) > 1 else None
                    row[f"{method}_{name}_std"] = spread
            rows.append(row)
    return sorted(rows, key=lambda row: row["table"])


def leak_rows(records: Records) -> list[Row]:
    """Return accuracy as released less leak-free, by method.

    A difference per table, over the seeds that both protocols have. Not of the leak
    alone: the protocols also differ in which rows choose, and how many learn a metric.
    """
    rows = []
    for method, weight in METHODS.items():
        released, leak_free = (
            scores(records, protocol=protocol, identity_weight=weight)
            for protocol in PROTOCOLS
        )
        both = [
            (one["accuracy"], other["accuracy"])
            for one, other in pairs(released, leak_free).values()
            if one["accuracy"] is not None and other["accuracy"] is not None
        ]
        if not both:
            continue
        gains = [
            0.0 if math.isclose(one, other, rel_tol=ROUNDED) else one - other
            for one, other in both
        ]
        rows.append(
            {
                "method": METHOD_TITLES[method],
                "released": mean([one for one, _ in both]),
                "leak_free": mean([other for _, other in both]),
                **summary(gains),
                "higher": sum(gain > 0 for gain in gains) / len(gains),
                "p": student_p(gains, direction="greater"),
                "p_wilcoxon": wilcoxon_p(gains, direction="greater"),
            }
        )
    return rows


def _tests(records: Records, metric: Metric, protocol: str) -> dict[str, Any]:
    known = drop_none(changes(records, metric, protocol=protocol).values())
    better = [c > 0 if metric.better == "greater" else c < 0 for c in known]
    raw = differences(records, metric, protocol=protocol)
    by_seed = seed_p_values(records, metric, protocol=protocol)
    return {
        "improved": sum(better) / len(better) if better else None,
        "equal": sum(c == 0 for c in known) / len(known) if known else None,
        "p": student_p(raw, direction=metric.better),
        "p_changes": student_p(known, direction=metric.better),
        "p_wilcoxon": wilcoxon_p(known, direction=metric.better),
        "p_least": min(by_seed, default=None),
        "p_greatest": max(by_seed, default=None),
    }
