"""A part of the data held out, class by class."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normalign.training.answers import answers_of

__all__ = ["Halves", "class_numbers", "held_out"]


@dataclass(frozen=True, eq=False)
class Halves:
    """Data to train on, and the held-out part under the names of a test set."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor, held: Tensor) -> Halves:
        """Return samples in two halves: those where ``held`` is False, and the rest."""
        halves = [index.nonzero()[:, 0] for index in (~held, held)]
        parts = [value[i.to(value.device)] for i in halves for value in (x, y)]
        return cls(*parts)


def held_out(classes: Tensor, fraction: float, *, generator: torch.Generator) -> Tensor:
    """Return which samples to hold out: of every class its share, drawn at random.

    As many are held out of each class in every draw. One sample at least of each class
    is left, so that all are trained on; with classes of one sample only, nothing is
    held out.

    Parameters
    ----------
    classes : integer Tensor of shape (n,)
    fraction : float in (0, 1)
        Of all samples; rounded, and at least one.

    Returns
    -------
    bool Tensor of shape (n,), on the CPU

    Examples
    --------
    >>> classes = torch.tensor([5, 5, 5, 5, 7])
    >>> classes[held_out(classes, 0.4, generator=torch.Generator())]
    tensor([5, 5])
    """
    n = len(classes)
    kinds, sizes = classes.cpu().unique(return_inverse=True, return_counts=True)[1:]
    order = torch.randperm(n, generator=generator)
    held = torch.zeros(n, dtype=torch.bool)
    counts = _shares(sizes.tolist(), max(1, round(fraction * n)))
    for kind, count in enumerate(counts):
        held[order[kinds[order] == kind][:count]] = True
    return held


def _shares(sizes: list[int], wanted: int) -> list[int]:
    """Return how many of each class to hold out: in proportion, and never the last."""
    wanted = min(wanted, sum(sizes) - len(sizes))
    exact = [size * wanted / sum(sizes) for size in sizes]
    counts = [min(int(e), size - 1) for e, size in zip(exact, sizes, strict=True)]
    while sum(counts) < wanted:  # one more from whom most is owed and who has it
        able = [c for c, size in enumerate(sizes) if counts[c] < size - 1]
        counts[max(able, key=lambda c: exact[c] - counts[c])] += 1
    return counts


def class_numbers(target: Tensor, k: int) -> Tensor | None:
    """Return the class of each sample, or ``None`` where targets are quantities.

    Classes are what :func:`normalign.training.accuracy` can count for a model of k
    outputs: for one output the numbers -1 and 1, or 0 and 1; for several integers (n,)
    or one-hot rows (n, k).

    Examples
    --------
    >>> class_numbers(torch.tensor([1.0, -1.0]), 1)
    tensor([1, 0])
    >>> class_numbers(torch.tensor([0.3, -1.0]), 1) is None
    True
    """
    answers = answers_of([target], k)
    if answers is None:
        return None
    if answers.kind == "classes":
        return target.long()
    if answers.kind == "rows":
        return target.long().argmax(1)
    return (target.reshape(-1) > 0).long()
