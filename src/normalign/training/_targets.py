"""Targets: which are classes, which predictions are correct, and losses of stacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from normalign._errors import require, require_kind

__all__ = [
    "LOSSES",
    "ClassEncoding",
    "StackedLoss",
    "class_encoding",
    "class_encodings",
    "is_correct",
    "prepared_target",
    "stacked_loss",
    "threshold_of",
]


class ClassEncoding(NamedTuple):
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


def class_encoding(
    targets: Sequence[Tensor], k: int, *, threshold: float = 0.0
) -> ClassEncoding | None:
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
    >>> class_encoding([torch.tensor([0.0, 1.0])], 1, threshold=0.5)
    ClassEncoding(kind='bits', threshold=0.5)
    >>> class_encoding([torch.tensor([0.3, -1.0])], 1) is None
    True
    """
    if k == 1:
        whole = all(target.numel() == len(target) for target in targets)
        for kind, low in (("signs", -1), ("bits", 0)):
            if whole and all(_among(target, low, 1) for target in targets):
                return ClassEncoding(kind, threshold if kind == "bits" else 0.0)
        return None
    if all(target.ndim == 1 and _is_whole(target) for target in targets):
        return ClassEncoding("classes")
    one_hot = all(_is_one_hot(target, k) for target in targets)
    return ClassEncoding("rows") if one_hot else None


def class_encodings(
    sets: Mapping[str, Sequence[Tensor]], k: int, *, threshold: float = 0.0
) -> dict[str, ClassEncoding | None]:
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
        return {name: class_encoding(targets, k) for name, targets in once.items()}
    shared = [*once["train"], *once.get("test", ())]
    common = class_encoding(shared, k, threshold=threshold)
    return {
        name: common
        if class_encoding([*shared, *targets], k, threshold=threshold) == common
        else None
        for name, targets in once.items()
    }


def is_correct(output: Tensor, target: Tensor, encoding: ClassEncoding) -> Tensor:
    """Return whether each prediction is right, (...) for outputs (..., k).

    Several outputs predict by the largest. An output that is not a number is wrong; so
    is one of exactly 0 where the targets are -1 and 1.

    Examples
    --------
    >>> output = torch.tensor([[0.3], [0.7]])
    >>> is_correct(output, torch.tensor([0, 0]), ClassEncoding("bits", 0.5))
    tensor([ True, False])
    """
    kind, threshold = encoding
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


# Outputs (s, n, k) and targets (s, n, ...) to the mean over n, of shape (s,).
StackedLoss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    r"""Return the mean cross-entropy of each network, for class numbers (s, n).

    .. math:: -\frac1n \sum_i \log \mathrm{softmax}(f(x_i))_{y_i}
    """
    s, n, _ = output.shape
    each = functional.cross_entropy(
        output.flatten(0, 1), target.flatten(0, 1), reduction="none"
    )
    return each.view(s, n).mean(1)


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    r"""Return the mean over samples and outputs of the squared error, for each network.

    .. math:: \frac{1}{nk} \sum_{i, j} (f(x_i)_j - y_{ij})^2
    """
    return (output - target).square().mean((1, 2))


LOSSES: dict[str, StackedLoss] = {
    "cross_entropy": cross_entropy,
    "squared_error": squared_error,
}


def stacked_loss(loss: str | Callable[[Tensor, Tensor], Tensor]) -> StackedLoss:
    """Return the loss of a name, or a user's ``loss(output, target)`` for each network.

    Raises
    ------
    ValueError
        If there is no such name.
    TypeError
        If it is neither a name nor a function.
    """
    if callable(loss):
        return vmap(loss)
    rule = f"{' or '.join(map(repr, LOSSES))}, or a function of output and target"
    require_kind(isinstance(loss, str), "Ensemble", "loss", rule, loss)
    require(loss in LOSSES, "Ensemble", "loss", rule, repr(loss))
    return LOSSES[loss]


def prepared_target(
    target: Tensor, loss: str | Callable[[Tensor, Tensor], Tensor], k: int
) -> Tensor:
    """Return targets in the form in which the loss takes them.

    For the squared error class numbers become one-hot rows and other numbers a column;
    done once, so that no step has to. The targets of a user's own loss stay as they
    are.

    Parameters
    ----------
    target : Tensor of shape (n,) or (n, k)
    k : int
        Number of outputs.

    Raises
    ------
    ValueError
        If the loss could not compare them with k outputs.

    Examples
    --------
    >>> prepared_target(torch.tensor([1, 0]), "squared_error", 2)
    tensor([[0., 1.],
            [1., 0.]])
    """
    if not isinstance(loss, str):
        return target
    able, rule = k > 1 or loss != "cross_entropy", "one for networks of one output"
    remedy = (
        "Its softmax is always 1: build networks of 2 outputs or more, or give "
        "'squared_error', or a function such as binary_cross_entropy_with_logits."
    )
    require(able, "Ensemble", "loss", rule, repr(loss), remedy)
    numbers = target.is_floating_point()
    if target.ndim == 1 and not numbers and (k > 1 or loss == "cross_entropy"):
        classes = target.long()
        least, most = int(classes.min()), int(classes.max())
        rule, got = f"class numbers from 0 to {k - 1}", f"{least} to {most}"
        legal = least >= 0 and most < k
        require(legal, "Ensemble", "targets", rule, got)
        if loss == "cross_entropy":
            return classes
        return functional.one_hot(classes, k).to(torch.get_default_dtype())
    rows = target.reshape(len(target), -1)
    if loss == "cross_entropy":
        rule = f"class numbers (n,) of an integer dtype, or probabilities (n, {k})"
        fits, remedy = numbers and target.shape == (len(target), k), "Call y.long()."
    else:
        rule = f"numbers of shape (n, {k}), or class numbers (n,)"
        fits, remedy = rows.shape[1] == k, ""
    require(fits, "Ensemble", "targets", rule, target, remedy)
    return rows if numbers else rows.to(torch.get_default_dtype())


def threshold_of(loss: str | Callable[[Tensor, Tensor], Tensor]) -> float:
    """Return the output between targets of 0 and 1, for networks of one output.

    Halfway for the squared error; 0 for a loss of one's own, which is taken to be one
    of logits.
    """
    return 0.5 if loss == "squared_error" else 0.0
