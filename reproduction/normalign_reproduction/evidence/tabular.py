"""RFM and RFAM on tables, from their runs: per table, and in pairs.

Everywhere here a table's number is its mean over seeds first; means, medians and tests
are then over tables, each of which counts once, however many rows it has.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files

from normalign_reproduction.spec import Record, Records

__all__ = [
    "METHODS", "METHOD_TITLES", "METRICS", "PROTOCOLS", "ROUNDED", "Metric", "Scores",
    "changes", "defined", "differences", "measured", "pairs", "published_changes",
    "published_means", "scores", "seed_means", "seeds_of",
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


def measured(record: Record) -> dict[str, float | None]:
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
            found.setdefault(record["dataset"], {})[record.run.seed] = measured(record)
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
    return defined(metric.difference(*pair) for pair in both.values())


def defined(values: Iterable[float | None]) -> list[float]:
    """Return what is defined of some numbers.

    Examples
    --------
    >>> defined([1.0, None])
    [1.0]
    """
    return [value for value in values if value is not None]


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
        for line in _lines("table2.csv")
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
        for line in _lines("table3.csv")
    }


def _lines(name: str) -> list[dict[str, str]]:
    path = files("normalign_reproduction").joinpath("published", name)
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
