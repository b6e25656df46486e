"""Which targets are classes, and which predictions of them are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Answers", "answers_of", "answers_of_sets", "right_answers"]


class Answers(NamedTuple):
    """How targets name classes, and where one output decides between two.

    Parameters
    ----------
    kind : {"classes", "rows", "signs", "bits"}
        Class numbers (n,); one-hot rows (n, k); for one output -1 and 1, or 0 and 1.
    threshold : float, default=0
        For 0 and 1: outputs above it predict 1.
    """

    kind: str
    threshold: float = 0.0


def answers_of(
    targets: Sequence[Tensor], k: int, *, threshold: float = 0.0
) -> Answers | None:
    """Return how some targets name classes together, or ``None`` for quantities.

    Parameters
    ----------
    targets : sequence of Tensor of shape (n, ...)
    k : int
        Number of outputs.
    threshold : float, default=0
        Where one output decides between 0 and 1.

    Examples
    --------
    >>> answers_of([torch.tensor([0.0, 1.0])], 1, threshold=0.5)
    Answers(kind='bits', threshold=0.5)
    >>> answers_of([torch.tensor([0.3, -1.0])], 1) is None
    True
    """
    if k == 1:
        whole = all(target.numel() == len(target) for target in targets)
        for kind, low in (("signs", -1), ("bits", 0)):
            if whole and all(_among(target, low, 1) for target in targets):
                return Answers(kind, threshold if kind == "bits" else 0.0)
        return None
    if all(target.ndim == 1 and _is_whole(target) for target in targets):
        return Answers("classes")
    one_hot = all(_is_one_hot(target, k) for target in targets)
    return Answers("rows") if one_hot else None


def answers_of_sets(
    sets: Mapping[str, Sequence[Tensor]], k: int, *, threshold: float = 0.0
) -> dict[str, Answers | None]:
    """Return how the targets of each set name classes; ``None`` where they do not.

    With one output, training and test targets say together whether they are -1 and 1 or
    0 and 1: a set that holds ones only does not. Further sets are counted if they
    follow.

    Parameters
    ----------
    sets : mapping of str to sequence of Tensor
        The targets of all members, by the name of the set; ``"train"`` is one.
    """
    # Members often share one tensor, which need not be read again for each.
    once = {
        name: list({id(target): target for target in targets}.values())
        for name, targets in sets.items()
    }
    if k > 1:
        return {name: answers_of(targets, k) for name, targets in once.items()}
    shared = [*once["train"], *once.get("test", ())]
    common = answers_of(shared, k, threshold=threshold)
    return {
        name: common
        if answers_of([*shared, *targets], k, threshold=threshold) == common
        else None
        for name, targets in once.items()
    }


def right_answers(output: Tensor, target: Tensor, answers: Answers) -> Tensor:
    """Return whether each prediction is right, (...) for outputs (..., k).

    Several outputs predict by the largest. An output that is not a number is wrong; so
    is one of exactly 0 where the targets are -1 and 1.

    Examples
    --------
    >>> output = torch.tensor([[0.3], [0.7]])
    >>> right_answers(output, torch.tensor([0, 0]), Answers("bits", 0.5))
    tensor([ True, False])
    """
    kind, threshold = answers
    if kind in ("signs", "bits"):
        value, high = output[..., 0], target.reshape(output.shape[:-1]) > 0
        low = value <= threshold if kind == "bits" else value < threshold
        return torch.where(high, value > threshold, low)
    classes = target if kind == "classes" else target.argmax(-1)
    return output.argmax(-1) == classes


def _is_whole(target: Tensor) -> bool:
    return not (target.is_floating_point() or target.is_complex())


def _among(target: Tensor, low: int, high: int) -> bool:
    return bool(((target == low) | (target == high)).all())


def _is_one_hot(target: Tensor, k: int) -> bool:
    fits = target.shape == (len(target), k) and _among(target, 0, 1)
    return fits and bool((target.sum(1) == 1).all())
