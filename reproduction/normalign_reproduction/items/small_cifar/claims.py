"""Whether GrokAlign pays with few images: questions, and the rules that answer them.

None of them is the paper's. A question that the seeds do not settle stays open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from normalign_reproduction.items.capacity.rows import source_sentence
from normalign_reproduction.items.small_cifar.rows import (
    CHOICES,
    CONTROL,
    QUANTITIES,
    Difference,
    chosen,
    difference,
    ratio,
)
from normalign_reproduction.spec import Claim, Records, Verdict

__all__ = ["CLAIMS", "finding"]

_SILENT = "not asked"
_NO_PAIR = "no size has both methods"
_FULL = ("full",)  # the quick size is too small for an answer


def _raises(name: str) -> Callable[[Records], list[Verdict]]:
    """Return the rule that GrokAlign raises a quantity over its control."""
    quantity = QUANTITIES[name]

    def judge(found: Difference) -> tuple[bool | None, str]:
        if found.interval is None:
            return None, "one seed is no interval"
        low, high = found.interval
        holds = True if low > 0 else False if high < quantity.worth else None
        return holds, f"above 0 asked; else, all below {quantity.worth:g} is a no"

    return _each_choice(CONTROL, name, judge)


def _reaches(name: str) -> Callable[[Records], list[Verdict]]:
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
) -> Callable[[Records], list[Verdict]]:
    quantity = QUANTITIES[name]

    def check(records: Records) -> list[Verdict]:
        verdicts = []
        for by in CHOICES:
            cell = f"{quantity.title}, weight chosen by {by}"
            found = difference(records, "grokalign", reference, name, by=by)
            if found.mean is None:
                verdicts.append(Verdict(cell, _SILENT, "-", None, _NO_PAIR))
                continue
            holds, rule = judge(found)
            ours = _written(found, quantity.form)
            verdicts.append(Verdict(cell, _SILENT, ours, holds, _why(found, rule)))
        return verdicts

    return check


def _cheaper(records: Records) -> list[Verdict]:
    """Say whether GrokAlign costs less than PGD training, once and with its tuning."""
    verdicts = []
    for cell, tuning in (("one training each", False), ("with all of its grid", True)):
        found = ratio(records, "grokalign", "pgd", tuning=tuning)
        if found.mean is None:
            verdicts.append(Verdict(cell, _SILENT, "-", None, _NO_PAIR))
            continue
        holds = None
        if found.interval is not None:
            low, high = found.interval
            holds = True if high < 0 else False if low > 0 else None
        rule = "below 1 asked; all above is a no"
        verdicts.append(Verdict(cell, _SILENT, _times(found), holds, _why(found, rule)))
    return verdicts


def _why(found: Difference, rule: str) -> str:
    sizes = "1 size" if len(found.sizes) == 1 else f"{len(found.sizes)} sizes"
    text = f"95 % interval of the mean over {sizes}, {found.n_pairs} pairs: {rule}"
    return text if found.interval else f"{text}; two seeds are needed"


def _written(found: Difference, form: str) -> str:
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


def finding(records: Records) -> str:
    """Return what GrokAlign and PGD training change against the control, at what cost.

    The answer in words is about GrokAlign.
    """
    by = next(iter(CHOICES))
    ours = {
        name: difference(records, "grokalign", CONTROL, name, by=by)
        for name in ("normal_alignment", "test_accuracy", "nearby_accuracy",
                     "robust_accuracy")
    }  # fmt: skip
    if ours["test_accuracy"].mean is None:
        return "No number of images has both GrokAlign and its control."
    told = [_moved(name, one) for name, one in ours.items() if one.mean is not None]
    text = (
        f"Over {_listed(_sizes(records))} images, GrokAlign with a weight chosen by "
        f"validation accuracy changes {_listed(told)} against the same weight decay "
        f"alone{_longer(ratio(records, 'grokalign', CONTROL))}: "
        f"{_answer(ours['test_accuracy'], ours['nearby_accuracy'])}."
    )
    pgd = difference(records, "pgd", CONTROL, "robust_accuracy", by=by)
    if pgd.mean is not None:
        text += f" PGD training changes {_moved('robust_accuracy', pgd)} against it"
        text += f"{_longer(ratio(records, 'pgd', CONTROL))}."
    return text + source_sentence(records)


def _longer(cost: Difference) -> str:
    return "" if cost.mean is None else f", and takes {_times(cost)} the time"


def _moved(name: str, found: Difference) -> str:
    quantity = QUANTITIES[name]
    text = f"{quantity.words} by {_written(found, quantity.form)}"
    return f"{text} {quantity.unit}" if quantity.unit else text


def _sizes(records: Records) -> list[str]:
    return [f"{size}" for size in chosen(records, next(iter(CHOICES)))]


def _listed(words: Sequence[str]) -> str:
    *rest, last = words
    return f"{', '.join(rest)} and {last}" if rest else last


def _answer(accuracy: Difference, robust: Difference) -> str:
    """Return what two intervals say."""
    signs = []
    for found in (accuracy, robust):
        if found.interval is None:
            return "one seed does not tell whether it pays"
        low, high = found.interval
        signs.append(1 if low > 0 else -1 if high < 0 else 0)
    return {
        (1, 1): "it pays in both accuracies",
        (1, 0): "it pays in accuracy, and robustness does not change surely",
        (0, 1): "it pays in robustness, and accuracy does not change surely",
        (1, -1): "it trades robustness for accuracy",
        (-1, 1): "it trades accuracy for robustness",
        (0, 0): "neither accuracy changes by more than the seeds do",
    }.get((signs[0], signs[1]), "it does not pay")


def _rise(name: str, words: str) -> Claim:
    quantity = QUANTITIES[name]
    worth = f"{quantity.worth:g} {quantity.unit}".rstrip()
    return Claim(
        f"Does GrokAlign raise {words} over its control?",
        "The 95 % interval of the paired difference, mean over sizes, lies above 0; "
        f"if not, and all of it is below {worth}, it does not.",
        _raises(name), _FULL,
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
        _reaches("robust_accuracy"), _FULL,
    ),
    Claim(
        "Does GrokAlign cost less time than PGD training?",
        "The 95 % interval of the ratio of the seconds, geometric mean over sizes, "
        "lies below 1; it does not if all of it lies above.",
        _cheaper, _FULL,
    ),
)  # fmt: skip
