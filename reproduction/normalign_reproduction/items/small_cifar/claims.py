"""Whether GrokAlign pays with few images: questions, and the rules that answer them.

None of them is the paper's. A question that the seeds do not settle stays open.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from normalign_reproduction.items.small_cifar.rows import (
    CHOICES,
    CONTROL,
    QUANTITIES,
    Difference,
    difference,
    ratio,
)
from normalign_reproduction.spec import Cell, Claim, Records

__all__ = ["CLAIMS"]

_SILENT = "not asked"
_NO_PAIR = "no size has both methods"
_FULL = ("full",)  # the quick size is too small for an answer


def _raises(name: str) -> Callable[[Records], list[Cell]]:
    """Return the rule that GrokAlign raises a quantity over its control."""
    quantity = QUANTITIES[name]

    def judge(found: Difference) -> tuple[bool | None, str]:
        if found.interval is None:
            return None, "one seed is no interval"
        low, high = found.interval
        holds = True if low > 0 else False if high < quantity.worth else None
        return holds, f"above 0 asked; else, all below {quantity.worth:g} is a no"

    return _each_choice(CONTROL, name, judge)


def _reaches(name: str) -> Callable[[Records], list[Cell]]:
    """Return the rule that GrokAlign is not behind PGD training by more than a bit."""
    quantity = QUANTITIES[name]

    def judge(found: Difference) -> tuple[bool | None, str]:
        if found.interval is None:
            return None, "one seed is no interval"
        low, high = found.interval
        slack = -quantity.worth
        holds = True if low > slack else False if high < slack else None
        return holds, f"above {slack:g} asked; all below is a no"

    return _each_choice("pgd", name, judge)


def _each_choice(
    reference: str,
    name: str,
    judge: Callable[[Difference], tuple[bool | None, str]],
) -> Callable[[Records], list[Cell]]:
    quantity = QUANTITIES[name]

    def check(records: Records) -> list[Cell]:
        verdicts = []
        for by in CHOICES:
            cell = f"{quantity.title}, weight chosen by {by}"
            found = difference(records, "grokalign", reference, name, by=by)
            if found.mean is None:
                verdicts.append(Cell(cell, _SILENT, "-", None, _NO_PAIR))
                continue
            holds, rule = judge(found)
            ours = _format(found, quantity.form)
            verdicts.append(Cell(cell, _SILENT, ours, holds, _why(found, rule)))
        return verdicts

    return check


def _cheaper(records: Records) -> list[Cell]:
    """Say whether GrokAlign costs less than PGD training, once and with its tuning."""
    verdicts = []
    for cell, tuning in (("one training each", False), ("with all of its grid", True)):
        found = ratio(records, "grokalign", "pgd", tuning=tuning)
        if found.mean is None:
            verdicts.append(Cell(cell, _SILENT, "-", None, _NO_PAIR))
            continue
        holds = None
        if found.interval is not None:
            low, high = found.interval
            holds = True if high < 0 else False if low > 0 else None
        rule = "below 1 asked; all above is a no"
        verdicts.append(Cell(cell, _SILENT, _times(found), holds, _why(found, rule)))
    return verdicts


def _why(found: Difference, rule: str) -> str:
    sizes = "1 size" if len(found.sizes) == 1 else f"{len(found.sizes)} sizes"
    text = f"95 % interval of the mean over {sizes}, {found.n_pairs} pairs: {rule}"
    return text if found.interval else f"{text}; two seeds are needed"


def _format(found: Difference, form: str) -> str:
    text = form.format(found.mean)
    if found.interval is None:
        return text
    low, high = (form.format(end) for end in found.interval)
    return f"{text} [{low}, {high}]"


def _times(found: Difference) -> str:
    """Return a ratio of seconds with its interval."""
    text = f"{math.exp(found.mean or 0.0):.2g}x"
    if found.interval is None:
        return text
    low, high = (f"{math.exp(end):.2g}" for end in found.interval)
    return f"{text} [{low}, {high}]"


def _rise(name: str, words: str) -> Claim:
    quantity = QUANTITIES[name]
    worth = f"{quantity.worth:g} {quantity.unit}".rstrip()
    return Claim(
        f"Does GrokAlign raise {words} over its control?",
        "The 95 % interval of the paired difference, mean over sizes, lies above 0; "
        f"if not, and all of it is below {worth}, it does not.",
        _raises(name), sizes=_FULL,
    )  # fmt: skip


CLAIMS = (
    _rise("normal_alignment", "alignment"),
    _rise("test_accuracy", "accuracy"),
    _rise("nearby_accuracy", "robust accuracy at 2/255"),
    _rise("robust_accuracy", "robust accuracy at 8/255"),
    Claim(
        "Does GrokAlign reach the robust accuracy of PGD training?",
        "The 95 % interval of the paired difference, mean over sizes, lies above "
        f"{-QUANTITIES['robust_accuracy'].worth:g} points; it does not if all of it "
        "lies below.",
        _reaches("robust_accuracy"), sizes=_FULL,
    ),
    Claim(
        "Does GrokAlign cost less time than PGD training?",
        "The 95 % interval of the ratio of the seconds, geometric mean over sizes, "
        "lies below 1; it does not if all of it lies above.",
        _cheaper, sizes=_FULL,
    ),
)  # fmt: skip
