"""A stack with its timetable: when to evaluate, who has finished, what was recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from normalign._errors import describe, require, require_kind
from normalign.training.history import History
from normalign.training.stack import Measure, Stack

__all__ = ["Group", "Plan", "Record"]

Row = dict[str, float]

# Epochs put on a CUDA stream before the next look: enough to keep the device busy,
# few enough that several stacks take turns and Ctrl-C is heard soon.
_SLICE = 32


@dataclass(frozen=True)
class Plan:
    """How long to train, when to look, and when a network is done.

    Parameters
    ----------
    epochs : int
    evaluate : callable
        Says at which epochs a row is made; the last epoch always makes one.
    until : callable, optional
        ``until(row)`` ends the training of the network whose row it is.
    measure : callable, optional
        Further columns from the stack, one number per network.
    measure_at : callable
        At which of the evaluated epochs to measure; elsewhere the columns are NaN.
    """

    epochs: int
    evaluate: Callable[[int], bool]
    until: Callable[[Row], bool] | None = None
    measure: Measure | None = None
    measure_at: Callable[[int], bool] = lambda epoch: True

    def is_due(self, epoch: int) -> bool:
        """Say whether a row is made at this epoch."""
        return epoch == self.epochs or bool(self.evaluate(epoch))

    def ahead(self, epoch: int, most: int) -> int:
        """Return how many epochs lie before the next row, counting no further."""
        due = (e for e in range(1, most) if self.is_due(epoch + e))
        return next(due, most)


@dataclass
class Record:
    """What is known of one network: its curve, and why and with what it ended."""

    history: History
    stopped: str = ""
    row: Tensor | None = None


class Group:
    """Some networks of an ensemble that share a stack.

    Parameters
    ----------
    stack : Stack
    records : list of Record
        Of all networks of the ensemble.
    plan : Plan
    """

    def __init__(self, stack: Stack, records: list[Record], plan: Plan) -> None:
        self.stack, self.records, self.plan = stack, records, plan
        self._launched = False
        self._due: tuple[list[str], Tensor] | None = None
        self._event: torch.cuda.Event | None = None
        self._columns: list[str] = []

    @property
    def positions(self) -> list[int]:
        """The number in the ensemble of the network in each row of the stack."""
        return self.stack.positions

    @property
    def is_done(self) -> bool:
        """Whether every network of the group has finished."""
        return all(self.records[i].stopped for i in self.positions)

    @property
    def is_idle(self) -> bool:
        """Whether nothing was launched that is not collected yet."""
        return not self._launched

    def launch(self) -> None:
        """Put the work up to the next evaluation, or a slice of it, on the device."""
        stack, plan = self.stack, self.plan
        on_cpu = stack.rows.device.type == "cpu"
        if not (plan.is_due(stack.epoch) and self._recorded() < stack.epoch):
            stack.advance(plan.ahead(stack.epoch, 1 if on_cpu else _SLICE))
        if plan.is_due(stack.epoch):
            self._due = self._evaluated()
        self._launched = True
        if not on_cpu:
            with stack.work():
                self._event = torch.cuda.Event()
                self._event.record()

    def _recorded(self) -> float:
        """Return the last epoch that has a row; -1 if none has."""
        running = (i for i in self.positions if not self.records[i].stopped)
        history = self.records[next(running)].history
        return history["epoch"][-1] if len(history) else -1

    def is_ready(self) -> bool:
        """Whether what was launched is done."""
        return self._event is None or self._event.query()

    def collect(self) -> list[tuple[int, Row]]:
        """Wait for what was launched; record its rows, and who has finished.

        Returns
        -------
        list of (int, dict)
            The number in the ensemble and the new row of each network still in the
            running; empty between evaluations.
        """
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        self._launched = False
        if self._due is None:
            return []
        (names, values), self._due = self._due, None
        table = values.tolist()
        news = []
        for i, numbers in zip(self.positions, table, strict=True):
            record = self.records[i]
            if record.stopped:
                continue
            row = {"epoch": self.stack.epoch, **dict(zip(names, numbers, strict=True))}
            record.history.append(row)
            record.stopped = self._verdict(row)
            news.append((i, row))
        self._let_go()
        return news

    def stop(self, position: int, reason: str) -> None:
        """End the training of one network of the ensemble."""
        if not self.records[position].stopped:
            self.records[position].stopped = reason
            self._let_go()

    def restore(
        self, positions: list[int], state: Mapping[str, Tensor], epoch: int
    ) -> None:
        """Go on from where a checkpoint was written."""
        self.stack.keep([self.positions.index(i) for i in positions])
        self.stack.restore(state, epoch)

    def _verdict(self, row: Row) -> str:
        """Return why a network ends with this row, or nothing."""
        if not math.isfinite(row["train_loss"]):
            return "diverged"
        if self.plan.until is not None and self.plan.until(row):
            return "criterion"
        return "epochs" if row["epoch"] >= self.plan.epochs else ""

    def _evaluated(self) -> tuple[list[str], Tensor]:
        """Return names and values (s, columns) of a row, on the way to the host."""
        names, values = self.stack.score_names(), self.stack.scores()
        with self.stack.work():
            if self.plan.measure is not None:
                extra = self._measured(self.plan.measure, values)
                names = [*names, *extra]
                columns = [column[:, None] for column in extra.values()]
                values = torch.cat([values, *columns], dim=1)
            if values.device.type == "cuda":
                host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
                values = host.copy_(values, non_blocking=True)
        return names, values

    def _measured(self, measure: Measure, scores: Tensor) -> dict[str, Tensor]:
        """Return the further columns; NaN at epochs without a measurement."""
        at_this_epoch = self.plan.measure_at(self.stack.epoch)
        if self._columns and not at_this_epoch:
            missing = torch.full_like(scores[:, 0], math.nan)
            return dict.fromkeys(self._columns, missing)
        found = measure(self.stack)
        argument, rule = "what measure returns", "a mapping of names to tensors"
        told = isinstance(found, Mapping)
        require_kind(told, "Ensemble", argument, rule, describe(found))
        for name, value in found.items():
            told, argument = isinstance(name, str), "a name that measure returns"
            require_kind(told, "Ensemble", argument, "a string", describe(name))
            taken = name in ("epoch", *self.stack.score_names())
            rule = "named otherwise than the columns of every row"
            require(not taken, "Ensemble", "what measure returns", rule, repr(name))
            fits = isinstance(value, Tensor) and value.shape == (self.stack.size,)
            rule, argument = f"of shape ({self.stack.size},)", f"measure's {name!r}"
            require(fits, "Ensemble", argument, rule, value)
            real = not value.is_complex()
            require_kind(real, "Ensemble", argument, "of a real dtype", value)
        self._columns = list(found)
        found = {name: value.to(scores) for name, value in found.items()}
        if not at_this_epoch:  # it was asked for its names
            found = {name: torch.full_like(v, math.nan) for name, v in found.items()}
        return found

    def _let_go(self) -> None:
        """Keep the parameters of networks that finished; drop them when it pays.

        Dropping costs new graphs on CUDA, so there half must have finished.
        """
        for k, i in enumerate(self.positions):
            if self.records[i].stopped and self.records[i].row is None:
                self.stack.wait()
                self.records[i].row = self.stack.rows[k].detach().cpu().clone()
        alive = [k for k, i in enumerate(self.positions) if not self.records[i].stopped]
        eager = self.stack.rows.device.type == "cpu"
        few = len(alive) <= (1.0 if eager else 0.5) * len(self.positions)
        if alive and few and len(alive) < len(self.positions):
            self.stack.keep(alive)
