"""Losses of many networks at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from normalign._errors import require, require_kind

__all__ = ["LOSSES", "StackedLoss", "prepared_target", "stacked_loss", "threshold_of"]

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
