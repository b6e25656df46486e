"""What Tables 2 and 3 show, and the rules by which ours agree with the paper's."""

from __future__ import annotations

import statistics
from typing import Any

from normalign_reproduction.items.table2.rows import (
    METRICS,
    PROTOCOLS,
    Metric,
    changes,
    differences,
    is_papers,
    mean_rows,
    published_changes,
)
from normalign_reproduction.spec import Cell, Claim, Records
from normalign_reproduction.statistics import (
    bootstrap_interval,
    drop_none,
    mean,
    student_p,
    wilcoxon_p,
)

__all__ = ["CLAIMS"]

# How far a mean may be from the paper's.
NEAR = {"accuracy": 0.7, "asr_1": 3.0, "normal_alignment": 0.03}
_TITLES = {
    "accuracy": "test accuracy (%)", "asr_1": "attack success rate (%)",
    "normal_alignment": "normal alignment",
}  # fmt: skip
_FORMS = {"accuracy": "{:.1f}", "asr_1": "{:.1f}", "normal_alignment": "{:.2f}"}
ACCURACY, ALIGNMENT, ATTACK, STRONG = METRICS
# What the paper finds, which for accuracy is not what its one-sided test asks for.
_FOUND = {ACCURACY: "less", ALIGNMENT: "greater", ATTACK: "less", STRONG: "less"}
_WORDS = {"less": "lower", "greater": "higher"}
ENOUGH = 20  # tables for a test, or for a mean to be believed without its interval


def _near(records: Records) -> list[Cell]:
    """Each mean of Table 2 is close to the paper's."""
    verdicts = []
    for row in mean_rows(records):
        for name, near in NEAR.items():
            theirs, ours = row.get(f"published_{name}"), row[name]
            if theirs is None:
                continue
            form, cell = _FORMS[name], f"{row['method']}, {_TITLES[name]}"
            if ours is None:
                why = "not defined on any table"
                verdicts.append(Cell(cell, form.format(theirs), "-", None, why))
                continue
            # A hair of slack: the paper's numbers are decimals, ours are binary.
            holds = abs(ours - theirs) <= near + 1e-9
            why = f"{ours - theirs:+.3g}, at most {near:g} either way; "
            missing = row["n_undefined"] if name == "asr_1" else 0
            why += f"{row['n_tables'] - missing} tables"
            verdicts.append(
                Cell(cell, form.format(theirs), form.format(ours), holds, why)
            )
    return verdicts


def _same_sign(records: Records, metric: Metric, protocol: str) -> Cell:
    """Say whether the mean change has the sign that the paper's has."""
    found, word = _FOUND[metric], _WORDS[_FOUND[metric]]
    cell = f"{metric.title}, {protocol}: {word}"
    known = drop_none(changes(records, metric, protocol=protocol).values())
    middle, reach = mean(known), bootstrap_interval(known)
    printed = _published_text(metric, protocol) if is_papers(records) else word
    if middle is None:
        why = "no table has both methods"
        return Cell(cell, printed, "-", None, why)
    holds: bool | None = middle < 0 if found == "less" else middle > 0
    why = f"mean change over {len(known)} tables"
    if reach is not None:
        ends = " to ".join(metric.form.format(end) for end in reach)
        why += f", 95 % interval {ends}"
    if len(known) < ENOUGH and (reach is None or reach[0] <= 0 <= reach[1]):
        holds, why = None, f"{why}: too few tables to tell"
    return Cell(cell, printed, _format(metric, middle), holds, why)


def _surely(records: Records, metric: Metric, protocol: str, *, level: float) -> Cell:
    """Say whether the paper's one-sided test finds the change that the paper finds.

    It is the paired t-test of the raw values of both methods: so the authors' released
    evaluation computes the p-values that Table 3 prints beside relative changes (1.0,
    1.8e-7 and 0.0067 in its logs; printed are 1.0, < 0.001 and 0.007).
    """
    found = _FOUND[metric]
    cell = f"{metric.title}, {protocol}: {_WORDS[found]}, p < {level:g}"
    raw = differences(records, metric, protocol=protocol)
    known = drop_none(changes(records, metric, protocol=protocol).values())
    p = student_p(raw, direction=found)
    shown = "-" if p is None else f"{p:.2g}"
    why = f"one-sided paired t-test of the raw values of {len(raw)} tables"
    ranks = wilcoxon_p(known, direction=found)
    if ranks is not None:
        # A mean of ratios depends on single tables; ranks and the median do not.
        average, median = (
            _format(metric, of(known)) for of in (statistics.fmean, statistics.median)
        )
        why += f"; mean change {average}, median {median}"
        if metric.relative:
            changed = student_p(known, direction=found)
            why += "" if changed is None else f"; t-test of the changes: {changed:.2g}"
        why += f"; Wilcoxon's test of the changes: {ranks:.2g}"
    if p is None or len(raw) < ENOUGH:
        return Cell(cell, f"p < {level:g}", shown, None, f"{why}: too few to tell")
    return Cell(cell, f"p < {level:g}", shown, p < level, why)


def _published_text(metric: Metric, protocol: str) -> str:
    """Return the paper's change; of a protocol or attack that it lacks, its sign."""
    printed = published_changes().get(metric.name)
    if protocol != "released" or printed is None:
        return _WORDS[_FOUND[metric]]
    return _format(metric, float(printed["mean"]))


def _format(metric: Metric, value: float) -> str:
    return f"{metric.form.format(value)} {metric.unit}"


def _accuracy(records: Records) -> list[Cell]:
    return [
        _same_sign(records, ACCURACY, "released"),
        _surely(records, ACCURACY, "released", level=0.01),
    ]


def _attack(records: Records) -> list[Cell]:
    return [
        _same_sign(records, ATTACK, "released"),
        _surely(records, ATTACK, "released", level=0.05),
        _surely(records, ATTACK, "released", level=0.01),
    ]


def _alignment(records: Records) -> list[Cell]:
    return [
        _same_sign(records, ALIGNMENT, "released"),
        _surely(records, ALIGNMENT, "released", level=0.01),
    ]


def _leak_free(records: Records) -> list[Cell]:
    return [
        *(_same_sign(records, m, "leak-free") for m in (ACCURACY, ALIGNMENT, ATTACK)),
        _surely(records, ATTACK, "leak-free", level=0.05),
        _surely(records, ALIGNMENT, "leak-free", level=0.01),
    ]


def _strong(records: Records) -> list[Cell]:
    return [
        verdict
        for protocol in PROTOCOLS
        for verdict in (
            _same_sign(records, STRONG, protocol),
            _surely(records, STRONG, protocol, level=0.05),
        )
    ]


_RELEASED: dict[str, Any] = {"presets": ("released",)}
_FEW = (
    "; p is that of the paired t-test of raw values, as in the paper's evaluation; of "
    f"fewer than {ENOUGH} tables no test is read, and no mean whose bootstrap "
    "interval holds 0"
)

CLAIMS = (
    Claim(
        "The means of Table 2",
        "released protocol: mean accuracy within 0.7 points, attack success rate at "
        "radius 1 within 3 points, alignment within 0.03 of the paper's",
        _near, sizes=("full",), **_RELEASED,
    ),
    Claim(
        "RFAM is less accurate",
        "released protocol: the mean relative change of accuracy is below 0, and "
        f"one-sided p < 0.01 for a loss{_FEW}",
        _accuracy, **_RELEASED,
    ),
    Claim(
        "RFAM is more robust",
        "released protocol: the mean change of the attack success rate at radius 1 is "
        "below 0; one-sided p < 0.05; and p < 0.01, which is the paper's level"
        f"{_FEW}",
        _attack, **_RELEASED,
    ),
    Claim(
        "RFAM is more aligned",
        "released protocol: the mean relative change of alignment is above 0, and "
        f"one-sided p < 0.01{_FEW}",
        _alignment, **_RELEASED,
    ),
    Claim(
        "The same without the leak",
        "leak-free protocol: accuracy lower, alignment higher, attack success lower on "
        "average; one-sided p < 0.05 for the attack success, p < 0.01 for the "
        f"alignment{_FEW}",
        _leak_free, **_RELEASED,
    ),
    Claim(
        "The same against a strong attack",
        "by both protocols: the mean change of the strong attack's success rate at "
        f"radius 1 is below 0; one-sided p < 0.05{_FEW}",
        _strong, **_RELEASED,
    ),
)  # fmt: skip
