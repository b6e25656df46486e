r"""What an attack raises, and which answers are right.

Every step has length one, whatever the size of the gradient, so a loss is asked for its
slope in the outputs only up to a positive factor for each row. Cross-entropy uses this
freedom: with :math:`p` the softmax, its gradient is :math:`p - e_y`, and

.. math:: \frac{p - e_y}{1 - p_y} = \mathrm{softmax}(z_{\ne y}) - e_y

is the same direction, and does not vanish where the softmax saturates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import one_hot, softplus

from normalign._errors import describe, require
from normalign.geometry._margin import check_labels

__all__ = ["LOSSES", "Aim", "Loss", "aim_at", "check_loss"]

LOSSES = ("cross_entropy", "squared_error", "margin")

Loss = str | Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Aim:
    """The labels of some rows, and the loss that an attack raises there.

    Parameters
    ----------
    loss : str or callable
    y : Tensor of shape (n,)
        As the user gave them.
    target : Tensor of shape (n,)
        Class indices, or -1 and 1 where a model has one output.
    """

    loss: Loss
    y: Tensor
    target: Tensor

    def rows(self, index: slice | Tensor) -> Aim:
        """Return the same for some of the rows."""
        return replace(self, y=self.y[index], target=self.target[index])

    def right(self, outputs: Tensor) -> Tensor:
        """Return whether each answer is right, (n,); what is not a number is wrong."""
        target = self.target.to(outputs.device)
        if outputs.shape[1] == 1:
            return outputs[:, 0] * target > 0
        return (outputs.argmax(1) == target) & ~outputs.isnan().any(1)

    def losses(self, outputs: Tensor) -> Tensor:
        """Return the loss at each row, (n,)."""
        outputs = _single_at_least(outputs)
        if not isinstance(self.loss, str):
            return self._by_caller(outputs)
        if self.loss == "squared_error":
            return (outputs - self._encode_labels(outputs)).square().sum(1)
        own, others = self._split(outputs)
        if self.loss == "margin":
            return others.amax(1) - own
        return softplus(others.logsumexp(1) - own, threshold=80)

    def slope(self, outputs: Tensor) -> Tensor:
        """Return the loss's gradient in the outputs, (n, k), but for its length."""
        wide = _single_at_least(outputs)
        if not isinstance(self.loss, str):
            slope = self._slope_by_caller(wide)
        elif self.loss == "squared_error":
            slope = 2 * (wide - self._encode_labels(wide))
        elif wide.shape[1] == 1:
            slope = -self._encode_labels(wide)
        else:
            _, others = self._split(wide)
            up = others.softmax(1) if self.loss == "cross_entropy" else _leader(others)
            slope = up - self._encode_labels(wide)
        return slope.to(outputs.dtype)

    def _encode_labels(self, outputs: Tensor) -> Tensor:
        """One-hot rows, or a column of -1 and 1."""
        target, k = self.target.to(outputs.device), outputs.shape[1]
        return (target[:, None] if k == 1 else one_hot(target, k)).to(outputs.dtype)

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The right output, (n,), and the others, (n, k), minus infinity at it."""
        if outputs.shape[1] == 1:  # the output is by how much one class leads
            ahead = outputs * self._encode_labels(outputs)
            return ahead[:, 0], torch.zeros_like(ahead)
        target = self.target.to(outputs.device)[:, None]
        own = outputs.take_along_dim(target, 1)[:, 0]
        return own, outputs.scatter(1, target, -torch.inf)

    def _by_caller(self, outputs: Tensor) -> Tensor:
        assert not isinstance(self.loss, str)
        values = self.loss(outputs, self.y.to(outputs.device))
        require(
            isinstance(values, Tensor) and values.shape == (len(outputs),),
            "pgd",
            "loss",
            f"one that gives a number for each row, of shape ({len(outputs)},)",
            describe(values),
            "Ask for reduction='none'.",
        )
        return values

    def _slope_by_caller(self, outputs: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = outputs.detach().clone().requires_grad_()
            total = self._by_caller(leaf).sum()
        return torch.autograd.grad(total, leaf)[0]


def check_loss(callee: str, loss: Loss) -> None:
    """Refuse a loss that is neither known nor a function."""
    if not callable(loss):
        rule = f"one of {', '.join(map(repr, LOSSES))} or a function"
        require(loss in LOSSES, callee, "loss", rule, loss if loss else repr(loss))


def aim_at(callee: str, loss: Loss, y: Tensor, outputs: Tensor) -> Aim:
    """Return the aim at rows with outputs (n, k); refuse labels that do not fit."""
    n, k = outputs.shape
    y = y.to(outputs.device)
    if k > 1:
        check_labels(callee, y, (n,), k)
        return Aim(loss, y.detach(), y.detach().long())
    require(
        y.shape in ((n,), (n, 1)), callee, "y", f"of shape ({n},), one per sample", y
    )
    flat = y.detach().reshape(n)
    signs, bits = (((flat == low) | (flat == 1)).all() for low in (-1, 0))
    require(
        bool(signs | bits),
        callee,
        "y",
        "-1 and 1, or 0 and 1, for a model with one output",
        y,
    )
    return Aim(loss, flat, torch.where(flat > 0, 1, -1))


def _single_at_least(outputs: Tensor) -> Tensor:
    half = outputs.dtype in (torch.float16, torch.bfloat16)
    return outputs.float() if half else outputs


def _leader(others: Tensor) -> Tensor:
    return one_hot(others.argmax(1), others.shape[1]).to(others.dtype)
