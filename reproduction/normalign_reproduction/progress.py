"""How far the work is: a board that hears of batches, and two ways to show it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

from normalign_reproduction.plan import Batch

__all__ = ["Board", "Running", "duration", "show_progress"]

_LINE_SECONDS = 20.0
_REFRESH_SECONDS = 0.5


def duration(seconds: float | None) -> str:
    """Return a time in words, coarser the longer it is.

    Examples
    --------
    >>> duration(42.3), duration(200), duration(9000), duration(None)
    ('42 s', '3.3 min', '2.5 h', 'unknown')
    """
    if seconds is None:
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@dataclass
class Running:
    """A batch at work.

    Parameters
    ----------
    label : str
    weight : float
        Its share of the whole, in units of its own.
    first : float
        How much of it was done when it was first heard of.
    since : float
        When that was.
    share : float
    words : str
    """

    label: str
    weight: float
    first: float
    since: float
    share: float
    words: str

    def left(self, now: float) -> float | None:
        """Return the seconds left, at the pace so far."""
        gained = self.share - self.first
        if gained <= 0.01:
            return None
        return (now - self.since) * (1 - self.share) / gained


class Board:
    """What is done, what is running, and how long the rest may take.

    Parameters
    ----------
    batches : sequence of Batch
    seconds : float, optional
        How long the plan takes all to be; believed until there is something to see.
    clock : callable
        Seconds that only grow.

    Examples
    --------
    >>> Board([], None).share
    1.0
    """

    def __init__(
        self,
        batches: Sequence[Batch],
        seconds: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        guessed = all(batch.seconds for batch in batches)
        self.weights = {
            batch.key: float((guessed and batch.seconds) or batch.missing)
            for batch in batches
        }
        self.labels = {b.key: b.item or b.experiment for b in batches}
        self.planned, self.clock, self.start = seconds, clock, clock()
        self.running: dict[str, Running] = {}
        self.n_done, self.n_failed = 0, 0
        self._ended: set[str] = set()
        self._done, self._gained = 0.0, 0.0
        self._lock = threading.Lock()

    @property
    def n_batches(self) -> int:
        """How many batches there are in all."""
        return len(self.weights)

    def hear(self, key: str, share: float, words: str) -> None:
        """Note how much of a batch is done, and at what it is."""
        with self._lock:
            if key in self._ended:
                return
            if key not in self.running:
                weight, label = self.weights[key], self.labels[key]
                self.running[key] = Running(
                    label, weight, share, self.clock(), share, words
                )
            self.running[key].share = min(1.0, max(0.0, share))
            self.running[key].words = words

    def awaits(self, key: str) -> bool:
        """Whether a batch has not ended yet."""
        return key not in self._ended

    def end(self, key: str, *, failed: bool = False) -> None:
        """Note that a batch has ended."""
        with self._lock:
            before = self.running.pop(key, None)
            self._ended.add(key)
            self.n_done, self.n_failed = self.n_done + 1, self.n_failed + failed
            self._done += self.weights[key]
            first = 0.0 if before is None else before.first
            self._gained += self.weights[key] * (1 - first)

    def now(self) -> dict[str, Running]:
        """Return the batches at work, as they stand, by their keys."""
        with self._lock:
            return dict(self.running)

    @property
    def share(self) -> float:
        """How much of all is done, from 0 to 1."""
        total = sum(self.weights.values())
        done = self._done + sum(one.weight * one.share for one in self.now().values())
        return done / total if total else 1.0

    def left(self) -> float | None:
        """Return how many seconds the rest may take, or ``None`` if nobody knows."""
        total, at_work = sum(self.weights.values()), self.now()
        gained = self._gained + sum(
            one.weight * (one.share - one.first) for one in at_work.values()
        )
        elapsed, rest = self.clock() - self.start, 1 - self.share
        if total and gained / total > 0.03 and elapsed > 3:
            return elapsed * rest / (gained / total)
        return None if self.planned is None else self.planned * rest


class _View(Protocol):
    """Something that can show a board."""

    seconds: float

    def show(self, board: Board) -> None: ...

    def close(self) -> None: ...


class Silence:
    """Nothing, for a caller who asks no questions."""

    seconds = math.inf

    def show(self, board: Board) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Do nothing."""


class Lines:
    """A line now and then, for a log."""

    seconds = _LINE_SECONDS

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def show(self, board: Board) -> None:
        """Write a line."""
        running = list(board.now().values())
        words = f"{running[0].label}: {running[0].words}" if running else "begins"
        more = f" and {len(running) - 1} more" if len(running) > 1 else ""
        self.stream.write(
            f"{100 * board.share:.0f} % done, {duration(board.left())} left; "
            f"{board.n_done} of {board.n_batches} batches; {words}{more}\n"
        )
        self.stream.flush()

    def close(self) -> None:
        """Do nothing: lines stay."""


class Bars:
    """A bar for the whole and a line for each running batch, in a terminal."""

    seconds = _REFRESH_SECONDS

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[left]:>8}", markup=False),
            TextColumn("{task.fields[words]}", markup=False),
            console=Console(file=stream), transient=True, auto_refresh=False,
        )  # fmt: skip
        self.whole = self.bars.add_task("all", total=1.0, left="", words="")
        self.tasks: dict[str, Any] = {}
        self.bars.start()

    def show(self, board: Board) -> None:
        """Draw what there is."""
        words = f"{board.n_done} of {board.n_batches} batches"
        words += f", {board.n_failed} failed" if board.n_failed else ""
        left = duration(board.left())
        update = self.bars.update
        update(self.whole, completed=board.share, left=left, words=words)
        running = board.now()
        for key in set(self.tasks) - set(running):
            self.bars.remove_task(self.tasks.pop(key))
        for key, one in running.items():
            if key not in self.tasks:
                self.tasks[key] = self.bars.add_task(
                    f"  {one.label}", total=1.0, left="", words=""
                )
            remains = one.left(board.clock())
            left = "" if remains is None else duration(remains)
            update(self.tasks[key], completed=one.share, left=left, words=one.words)
        self.bars.refresh()

    def close(self) -> None:
        """Take the bars away."""
        self.bars.stop()


@contextmanager
def show_progress(
    board: Board,
    *,
    stream: TextIO | None = None,
    each: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Show a board while the block runs, from a thread of its own.

    Parameters
    ----------
    stream : text stream, optional
        Bars if it is a terminal, else a line every 20 seconds; by default nothing.
    each : callable
        Called twice a second, before the board is shown.
    """
    view: _View = Silence()
    if stream is not None:
        view = Bars(stream) if stream.isatty() else Lines(stream)
    ended = threading.Event()

    def follow() -> None:
        last = time.monotonic()
        while not ended.wait(_REFRESH_SECONDS):
            each()
            if time.monotonic() - last >= view.seconds:
                last = time.monotonic()
                view.show(board)

    thread = threading.Thread(target=follow, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        view.close()
