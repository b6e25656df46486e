"""How much of a plan is done, how long the rest may take, and a line that shows it."""

from __future__ import annotations

import math
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from normalign_reproduction.files import load_cache
from normalign_reproduction.plan import Batch, expected_seconds

__all__ = ["Progress", "duration", "show_progress"]

_REFRESH_SECONDS, _LOG_SECONDS = 0.5, 20.0  # in a terminal, in a log
_SMOOTHING_SECONDS = 20.0
_TRUST = 0.1  # the share of the plan after which measured times outweigh expected ones


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


class Progress:
    """The share of some batches that is done, and a steady estimate of the time left.

    It is computed from the progress files in the work folder, and the number of batches
    at a time.
    """

    def __init__(
        self,
        batches: Sequence[Batch],
        work: Path,
        *,
        jobs: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work, self._jobs, self._clock = work, jobs, clock
        self._expected = expected_seconds(batches, jobs)
        is_known = self._expected is not None
        # in seconds of one process, or in runs
        self._size = {
            b.key: (is_known and b.seconds) or float(len(b.runs)) for b in batches
        }
        self._share = dict.fromkeys(self._size, 0.0)
        self._running: dict[str, tuple[Batch, str]] = {}
        self._lock = threading.Lock()
        self._n_finished = self._n_failed = 0
        self._resumed = 0.0  # work that was done in earlier processes
        self._start = self._shown_at = clock()
        self._shown = self._expected

    def start(self, batch: Batch) -> None:
        """Note that a batch has begun."""
        earlier = load_cache(self._work / f"{batch.key}.progress") or {}
        self._share[batch.key] = earlier.get("share", 0.0)
        self._resumed += self._size[batch.key] * self._share[batch.key]
        self._running[batch.key] = batch, "starting"

    def finish(self, batch: Batch, *, failed: bool = False) -> None:
        """Note that a batch has ended."""
        with self._lock:
            self._running.pop(batch.key, None)
            self._share[batch.key] = 1.0
        self._n_finished += 1
        self._n_failed += failed

    def update(self) -> None:
        """Read the progress files of the running batches."""
        for key, (batch, _) in list(self._running.items()):
            state = load_cache(self._work / f"{key}.progress")
            with self._lock:  # it may have ended meanwhile
                if state is not None and key in self._running:
                    self._share[key] = min(1.0, state["share"])
                    self._running[key] = batch, state["words"]

    @property
    def share(self) -> float:
        """The share that is done, from 0 to 1."""
        total = sum(self._size.values())
        return 1 - self._work_left() / total if total else 1.0

    def seconds_left(self) -> float | None:
        """Return how long the rest may take, ``None`` if unknown.

        The value counts down like a clock and is corrected slowly towards the present
        estimate, so that a short batch or a long step does not make it jump.
        """
        now, estimate = self._clock(), self._estimate()
        if self._shown is None or estimate is None:
            self._shown = estimate
        else:
            passed = now - self._shown_at
            clock = max(0.0, self._shown - passed)
            correction = 1 - math.exp(-passed / _SMOOTHING_SECONDS)
            self._shown = clock + correction * (estimate - clock)
        self._shown_at = now
        return self._shown

    def _estimate(self) -> float | None:
        """Return the expected time of the rest, scaled by the measured pace."""
        total, left = sum(self._size.values()), self._work_left()
        done, elapsed = total - left - self._resumed, self._clock() - self._start
        if self._expected is None:
            return elapsed * left / done if done > 0.02 * total else None
        prior = _TRUST * total / self._jobs
        pace = (elapsed + prior) / (max(done, 0.0) / self._jobs + prior)
        longest = max(self._size[key] * (1 - self._share[key]) for key in self._size)
        return pace * max(left / self._jobs, longest)

    def _work_left(self) -> float:
        return sum(size * (1 - self._share[key]) for key, size in self._size.items())

    def line(self) -> str:
        """Return the present state in one line."""
        left = self.seconds_left()
        parts = [
            f"{100 * self.share:3.0f}% done",
            "time left unknown" if left is None else f"{duration(left)} left",
            f"{self._n_finished} of {len(self._size)} batches",
        ]
        if self._n_failed:
            parts.append(f"{self._n_failed} failed")
        running = list(self._running.values())
        if running:
            batch, words = running[0]
            others = f" (and {len(running) - 1} more)" if len(running) > 1 else ""
            parts.append(f"{batch.item}: {words}{others}")
        return ", ".join(parts)


@contextmanager
def show_progress(progress: Progress, stream: TextIO | None) -> Iterator[None]:
    """Show progress while the block runs: a changing line in a terminal, else a log."""
    if stream is None:
        yield
        return
    ended, in_terminal = threading.Event(), stream.isatty()

    def show() -> None:
        while not ended.wait(_REFRESH_SECONDS if in_terminal else _LOG_SECONDS):
            progress.update()
            if in_terminal:
                width = shutil.get_terminal_size().columns
                stream.write(f"\r\033[K{progress.line()[: width - 1]}")
            else:
                stream.write(f"{progress.line()}\n")
            stream.flush()

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if in_terminal:
            stream.write("\r\033[K")
            stream.flush()
