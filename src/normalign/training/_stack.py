"""One stack of networks that train in lockstep by the same kind of update."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from normalign._errors import require
from normalign.regularizers import PenaltyForm
from normalign.training._networks import Networks, Objective
from normalign.training._targets import ClassEncoding, StackedLoss, is_correct
from normalign.training.randomness import (
    BATCHES,
    PROBES,
    SHUFFLE,
    normal,
    permutations,
    streams,
)
from normalign.training.rules import StackedRule

__all__ = ["Measure", "Points", "Prepare", "Replay", "Stack", "no_collection"]


@dataclass(frozen=True)
class Points:
    """Inputs and targets of every network, or the same ones for all.

    Parameters
    ----------
    x, y : Tensor of shape (s, n, ...), or (1, n, ...) where all networks share it
    encoding : ClassEncoding, optional
        How the targets name classes; ``None`` where they do not.
    """

    x: Tensor
    y: Tensor
    encoding: ClassEncoding | None = None

    def __len__(self) -> int:
        return self.x.shape[1]

    def all_of(self, s: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets for s networks, without copying shared ones."""
        return self.x.expand(s, *self.x.shape[1:]), self.y.expand(s, *self.y.shape[1:])

    def at(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples whose numbers stand in ``index`` of shape (s, b)."""
        return _pick(self.x, index), _pick(self.y, index)

    def keep(self, index: Tensor) -> Points:
        """Return the points of the networks at the given positions."""
        x, y = (v if len(v) == 1 else v[index] for v in (self.x, self.y))
        return Points(x, y, self.encoding)


def _pick(value: Tensor, index: Tensor) -> Tensor:
    if len(value) == 1:
        return value[0][index]
    return value[torch.arange(len(index), device=index.device)[:, None], index]


class Stack:
    """Networks, their data, their update rule, and how far they have come.

    On a CUDA device the work is put on a stream of the stack's own, and from the second
    epoch on a whole epoch is one captured graph. Nothing here waits for the device but
    :meth:`keep` and reading the tensors that :meth:`scores` returns.

    Parameters
    ----------
    networks : Networks
    rows : Tensor of shape (s, p)
        Parameters of each network; updated in place from here on.
    rule : StackedRule
    seeds : int64 Tensor of shape (s,)
        Decide the order of the samples and the probes of the penalty.
    data : dict of str to Points
        ``"train"``, and what to evaluate on besides.
    loss : callable
        From outputs (s, n, k) and targets to one number for each network, (s,).
    batch_size : int
        As many as there are samples, or more, is full batch.
    form, weight
        Of the penalty, and its weight for each network, (s,).
    positions : sequence of int
        The number of each network in the ensemble it belongs to.
    prepare : callable, optional
        What is done to each training batch before its step; see :data:`Prepare`.
    """

    def __init__(  # noqa: PLR0913  (what a training run is made of)
        self,
        networks: Networks,
        rows: Tensor,
        *,
        rule: StackedRule,
        seeds: Tensor,
        data: Mapping[str, Points],
        loss: StackedLoss,
        batch_size: int,
        form: PenaltyForm | None,
        weight: Tensor,
        positions: Sequence[int],
        prepare: Prepare | None = None,
    ) -> None:
        self.networks, self.rows, self.rule = networks, rows, rule
        self.positions = list(positions)
        self.seeds, self.data, self.loss = seeds, dict(data), loss
        self.form, self.weight, self.prepare = form, weight, prepare
        n = len(self.data["train"])
        self._bounds = list(pairwise([*range(0, n, batch_size), n]))
        self.epoch = 0
        self._count = torch.zeros((), dtype=torch.int64, device=rows.device)
        self.penalty = rows.new_zeros(len(rows))
        self._gradients = torch.empty_like(rows)
        self._noise_shape: tuple[int, ...] | None = None
        on_cuda = rows.device.type == "cuda"
        self._stream = torch.cuda.Stream(rows.device) if on_cuda else None
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(rows.device))
        self._epoch = Replay(self._run_epoch, self._stream)
        self._scores = Replay(self._all_scores, self._stream)

    @property
    def size(self) -> int:
        """How many networks there are."""
        return len(self.rows)

    def advance(self, epochs: int) -> None:
        """Train for some epochs; on CUDA, put that work on the stack's stream."""
        with self.work():
            for _ in range(epochs):
                self._epoch()
        self.epoch += epochs

    def scores(self) -> Tensor:
        """Return losses and accuracies on all sets, and the penalty: (s, columns).

        The columns are those of :meth:`score_names`. On CUDA the result is not ready
        before the stack's stream is, and the next call overwrites it.
        """
        with self.work():
            return self._scores()

    def score_names(self) -> list[str]:
        """Return the names of the columns of :meth:`scores`."""
        names = [f"{name}_{kind}" for name in self.data for kind in _KINDS]
        return [*names, "penalty"]

    def keep(self, index: Sequence[int]) -> None:
        """Drop all networks but those at the given positions."""
        with self.work():
            places = torch.tensor(index, device=self.rows.device)
            self._forget()
            self.positions = [self.positions[k] for k in index]
            self.rows = self.rows[places]
            self.seeds, self.weight = self.seeds[places], self.weight[places]
            self.penalty = self.penalty[places]
            self._gradients = torch.empty_like(self.rows)
            self.rule.keep(places)
            self.data = {
                name: points.keep(places) for name, points in self.data.items()
            }

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a later run needs to go on from here."""
        self.wait()
        return {
            "rows": self.rows,
            "penalty": self.penalty,
            **{f"rule.{name}": value for name, value in self.rule.state.items()},
        }

    def restore(self, state: Mapping[str, Tensor], epoch: int) -> None:
        """Go on from a :meth:`state` that was taken at an epoch."""
        with self.work():
            self._forget()
            self.rows = state["rows"].to(self.rows)
            self.penalty = state["penalty"].to(self.penalty)
            self.rule.state = {
                name.removeprefix("rule."): value.to(self.rows.device, copy=True)
                for name, value in state.items()
                if name.startswith("rule.")
            }
            self._count.fill_(epoch)
        self.epoch = epoch

    def wait(self) -> None:
        """Wait until all work put on the stack's stream is done."""
        if self._stream is not None:
            self._stream.synchronize()

    @contextmanager
    def work(self) -> Iterator[None]:
        """Run what is inside on the stack's stream, where it has one."""
        stream = self._stream
        with torch.cuda.stream(stream) if stream is not None else nullcontext():
            yield

    def _run_epoch(self) -> None:
        """Take one optimizer step per batch, in place."""
        train, s = self.data["train"], self.size
        self._count += 1
        order = None
        if len(self._bounds) > 1:
            keys = streams(self.seeds, SHUFFLE, self._count)
            order = permutations(keys, len(train))
        noise = self._noise()
        objective = Objective(self.loss, self.form, self.weight)
        self.rule.begin(len(self._bounds))
        self.penalty.zero_()
        for step, (start, stop) in enumerate(self._bounds):
            if order is None:
                x, y = train.all_of(s)
            else:
                x, y = train.at(order[:, start:stop])
            if self.prepare is not None:
                x = self._prepare(self.prepare, x, y, step)
            gradients, penalty = self.networks.gradients(
                self.rows, x, y, objective, out=self._gradients,
                noise=None if noise is None else noise[:, :, start:stop],
            )  # fmt: skip
            self.penalty.add_(penalty, alpha=1 / len(self._bounds))
            self.rule.update(self.rows, gradients, step)

    @torch.no_grad()
    def _prepare(self, prepare: Prepare, x: Tensor, y: Tensor, step: int) -> Tensor:
        """Return a batch as the networks are to see it, with keys of its own."""
        count = self._count * len(self._bounds) + step
        changed = prepare(self, x, y, streams(self.seeds, BATCHES, count))
        same = isinstance(changed, Tensor) and changed.shape == x.shape
        rule = f"of the shape {tuple(x.shape)} of the batch"
        require(same, "Ensemble", "what prepare returns", rule, changed)
        return changed.to(x.dtype)

    def _noise(self) -> Tensor | None:
        """Return the standard normal numbers of one epoch, (s, n_probes, n, ...)."""
        if self.form is None:
            return None
        if self._noise_shape is None:
            x = self.data["train"].x[0]
            k = self._output_size()
            self._noise_shape = self.networks.noise_shape(self.form, x, k)
        if not self._noise_shape:  # an exact norm has no probes
            return None
        keys = streams(self.seeds, PROBES, self._count)
        return normal(keys, self._noise_shape, dtype=self.rows.dtype)

    def _output_size(self) -> int:
        """Return the number of outputs, found by sending one sample through."""
        x = self.data["train"].all_of(self.size)[0][:, :1]
        with torch.no_grad():
            return self.networks.outputs(self.networks.split(self.rows), x).shape[2]

    def _forget(self) -> None:
        """Let captured graphs go: they hold the tensors that were there."""
        self.wait()
        self._epoch.forget()
        self._scores.forget()

    @torch.no_grad()
    def _all_scores(self) -> Tensor:
        parameters = self.networks.split(self.rows)
        columns: list[Tensor] = []
        for points in self.data.values():
            columns += self._score(parameters, points)
        columns.append(self.penalty)
        return torch.stack([column.to(torch.float64) for column in columns], dim=1)

    def _score(self, parameters: list[Tensor], points: Points) -> list[Tensor]:
        """Return loss and accuracy of each network, in pieces that fit the cache.

        The accuracy is NaN where targets are not classes.
        """
        x, y = points.all_of(self.size)
        loss = self.rows.new_zeros(self.size)
        right = torch.zeros_like(self.seeds)
        for start, stop in pairwise([*range(0, len(points), 1024), len(points)]):
            output = self.networks.outputs(parameters, x[:, start:stop])
            share = (stop - start) / len(points)
            target = y[:, start:stop]
            loss = loss + share * self.loss(output, target)
            if points.encoding is not None:
                right = right + is_correct(output, target, points.encoding).sum(1)
        accuracy = right.double() / len(points)
        if points.encoding is None:
            accuracy = torch.full_like(accuracy, torch.nan)
        return [loss, accuracy]


_KINDS = ("loss", "accuracy")

Measure = Callable[[Stack], Mapping[str, Tensor]]

# ``prepare(stack, x, y, keys)`` returns the inputs in place of ``x``, (s, b, ...); see
# ``_attack``.
Prepare = Callable[[Stack, Tensor, Tensor, Tensor], Tensor]


class Replay:
    """A function that is captured on its second call, and replayed from then on.

    The first call runs as it stands: it makes what is made lazily (moments, averages),
    and chooses kernels. From the second on, the function reads and writes the very
    tensors that it did then, and what it returned then is what every call returns,
    overwritten in place. Without a stream the function is simply called.

    Parameters
    ----------
    function : callable without arguments
        Touches only tensors that stay where they are, and waits for nothing.
    stream : torch.cuda.Stream or None
        On which the calls are made.

    Examples
    --------
    >>> Replay(lambda: 3, None)()
    3
    """

    def __init__(
        self, function: Callable[[], Any], stream: torch.cuda.Stream | None
    ) -> None:
        self._function, self._stream = function, stream
        self.forget()

    def __call__(self) -> Any:
        """Do the work once, on the current stream."""
        if self._stream is None:
            return self._function()
        if not self._warm:
            self._warm = True
            return self._function()
        if self._graph is None:
            self._stream.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with no_collection(), torch.cuda.graph(self._graph, stream=self._stream):
                self._result = self._function()
        self._graph.replay()
        return self._result

    def forget(self) -> None:
        """Start again: the tensors have changed places."""
        self._warm = False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Any = None


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep Python's cyclic garbage where it is.

    There may be a graph in it, and CUDA gives up a capture during which another graph
    is destroyed. Torch before 2.9 collected garbage at the start of each capture; later
    ones leave it to chance (pytorch#161037).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
