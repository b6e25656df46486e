"""A plain training loop for one network, with everything it did in a History."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normalign._errors import require
from normalign.training._targets import class_encoding, is_correct
from normalign.training.history import History

__all__ = ["Split", "accuracy", "evaluation_mode", "is_evaluated", "train"]

Row = dict[str, float]


class Split(Protocol):
    """Anything that holds training and test data as tensors, samples first."""

    @property
    def x_train(self) -> Tensor:
        """Training inputs, (n, ...)."""
        ...

    @property
    def y_train(self) -> Tensor:
        """Training targets, (n,) or (n, k)."""
        ...

    @property
    def x_test(self) -> Tensor:
        """Test inputs, (m, ...)."""
        ...

    @property
    def y_test(self) -> Tensor:
        """Test targets, (m,) or (m, k)."""
        ...


def is_evaluated(epoch: int) -> bool:
    """Say whether the released experiments evaluate at this epoch.

    Every epoch below 100, every tenth below 1000, every hundredth below 10000, then
    every thousandth: dense while things change fast, even on a logarithmic axis.

    Examples
    --------
    >>> [epoch for epoch in range(98, 125) if is_evaluated(epoch)]
    [98, 99, 100, 110, 120]
    """
    for limit, step in ((100, 1), (1000, 10), (10_000, 100)):
        if epoch < limit:
            return epoch % step == 0
    return epoch % 1000 == 0


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Return the share of samples whose prediction is their target, as a scalar.

    One output per sample predicts by its sign, against targets of -1 and 1 or of 0 and
    1 (it is taken for a logit); several predict by the largest, against class numbers
    (n,) or one-hot rows (n, k). NaN where the targets are not classes.

    Examples
    --------
    >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    tensor(0.5000)
    """
    rows = output.reshape(len(output), -1)
    encoding = class_encoding([target], rows.shape[1])
    if encoding is None:
        return torch.full((), torch.nan, device=output.device)
    right = is_correct(rows, target, encoding)
    return right.to(torch.get_default_dtype()).mean()


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into ``eval`` mode and give every submodule its own mode back.

    ``model.train()`` afterwards would also wake the layers that the caller had put
    into ``eval`` mode on purpose.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def train(  # noqa: PLR0913  (what a training run is made of)
    model: nn.Module,
    data: Split,
    *,
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: Optimizer,
    epochs: int,
    batch_size: int,
    seed: int,
    penalty: Callable[[nn.Module, Tensor], tuple[Tensor, Tensor]] | None = None,
    evaluate: Callable[[int], bool] = is_evaluated,
    measure: Callable[[nn.Module], Mapping[str, float]] | None = None,
    callback: Callable[[int, Row | None], bool | None] | None = None,
) -> History:
    """Train a model in place and return what was measured on the way.

    Epoch 0 is the untouched model, epoch ``e`` the model after ``e`` passes through
    the training set. A row has the columns ``epoch``, ``train_loss``,
    ``train_accuracy``, ``test_loss``, ``test_accuracy``, ``penalty`` (mean value over
    the steps of the epoch, already weighted; 0 without a penalty) and those of
    ``measure``. Evaluation does not change the model's course: it runs in ``eval``
    mode without gradients, and the shuffling has a generator of its own.

    Ctrl-C ends training between two operations: the history so far comes back with
    ``interrupted`` set, and the model stays as it is.

    Parameters
    ----------
    data : Split
        Four tensors ``x_train, y_train, x_test, y_test`` on the model's device.
    loss : callable
        ``loss(output, target)`` is the mean over the batch.
    batch_size : int
        The last batch of an epoch may be smaller.
    seed : int
        Of the order in which the samples come.
    penalty : callable, optional
        ``output, value = penalty(model, x)``; ``value`` is added to the loss.
    evaluate : callable
        Says at which epochs a row is made; the last epoch always makes one.
    measure : callable, optional
        Further columns, from the model in ``eval`` mode.
    callback : callable, optional
        Called after each epoch with the epoch and its row, or ``None`` where no row
        was made; returning ``True`` ends the training there, with no row for that
        epoch if it was not evaluated.

    Returns
    -------
    History

    Raises
    ------
    ValueError
        If ``epochs`` or ``batch_size`` is too small, or the loss is not finite.
    """
    n = len(data.x_train)
    require(epochs >= 0, "train", "epochs", "at least 0", epochs)
    require(batch_size >= 1, "train", "batch_size", "at least 1", batch_size)
    require(n >= 1, "train", "data.x_train", "non-empty", data.x_train)
    shuffle = torch.Generator().manual_seed(seed)
    history, start = History(), time.perf_counter()
    mean_penalty = 0.0
    try:
        for epoch in range(epochs + 1):
            if epoch > 0:
                order = torch.randperm(n, generator=shuffle).to(data.x_train.device)
                batches = (
                    (data.x_train[index], data.y_train[index])
                    for index in order.split(batch_size)
                )
                mean_penalty = _pass(model, batches, loss, optimizer, penalty)
            row = None
            if evaluate(epoch) or epoch == epochs:
                row = {"epoch": epoch, **_scores(model, data, loss)}
                row["penalty"] = mean_penalty
                if measure is not None:
                    with evaluation_mode(model):
                        row.update(measure(model))
                history.append(row)
            if callback is not None and callback(epoch, row):
                break
    except KeyboardInterrupt:
        history.interrupted = True
    history.seconds = time.perf_counter() - start
    return history


def _pass(
    model: nn.Module,
    batches: Iterator[tuple[Tensor, Tensor]],
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: Optimizer,
    penalty: Callable[[nn.Module, Tensor], tuple[Tensor, Tensor]] | None,
) -> float:
    """Take one optimizer step per batch and return the mean penalty."""
    penalties = []
    for x, y in batches:
        if penalty is None:
            output, extra = model(x), x.new_zeros(())
        else:
            output, extra = penalty(model, x)
        total = loss(output, y) + extra
        value = total.detach()
        rule, remedy = "finite on every batch", "Lower the learning rate or the weight."
        finite, got = bool(value.isfinite()), f"{float(value)}"
        require(finite, "train", "loss + penalty", rule, got, remedy)
        optimizer.zero_grad(set_to_none=True)
        total.backward()
        optimizer.step()
        penalties.append(extra.detach())
    return float(torch.stack(penalties).mean())


def _scores(
    model: nn.Module, data: Split, loss: Callable[[Tensor, Tensor], Tensor]
) -> Row:
    """Return loss and accuracy on both halves of the data."""
    scores: Row = {}
    with evaluation_mode(model), torch.no_grad():
        for half, x, y in (
            ("train", data.x_train, data.y_train),
            ("test", data.x_test, data.y_test),
        ):
            output = torch.cat([model(part) for part in x.split(1024)])
            scores[f"{half}_loss"] = float(loss(output, y))
            scores[f"{half}_accuracy"] = float(accuracy(output, y))
    return scores
