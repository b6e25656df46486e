"""Jobs side by side: through joblib, within the machine's cores, memory and time.

A job is given everything by value (numpy arrays in, numpy arrays out) and draws from a
seed of its own, so its result does not depend on which worker runs it, or when.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock, local
from typing import Any

import joblib
import torch
from joblib.parallel import get_active_backend
from threadpoolctl import threadpool_limits

from normalign.kernels._memory import SMALL_BYTES, available_bytes


@dataclass(frozen=True)
class Clock:
    """When a job has to end, and how many others run beside it.

    Parameters
    ----------
    deadline : float or None
        In seconds of ``time.monotonic()``. The processes of a machine share that clock;
        on another machine a clock goes on with the seconds that were left when it was
        pickled.
    n_jobs : int
        How many run at one time.
    """

    deadline: float | None = None
    n_jobs: int = 1

    @classmethod
    def within(cls, seconds: float | None) -> Clock:
        """A clock for one job that begins now; None is no limit."""
        return cls(None if seconds is None else time.monotonic() + float(seconds))

    def budget(self) -> float:
        """Seconds that are left; infinitely many without a deadline."""
        if self.deadline is None:
            return float("inf")
        return max(self.deadline - time.monotonic(), 0.0)

    def __reduce__(self) -> tuple[Any, ...]:
        """With the seconds left, and the machine whose clock the deadline is of."""
        if self.deadline is None:
            return Clock, (None, self.n_jobs)
        state = self.deadline, self.n_jobs, self.budget(), _machine()
        return _restore_clock, state


def _restore_clock(deadline: float, n_jobs: int, left: float, machine: str) -> Clock:
    """Return an unpickled clock, adapted to the monotonic clock of this machine."""
    return Clock(deadline if machine == _machine() else time.monotonic() + left, n_jobs)


@cache
def _machine() -> str:
    """Return an identifier of this machine since its last boot."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text() if boot.exists() else platform.node()


class Pace:
    """How long iterations take, and whether another one would end in time.

    Parameters
    ----------
    budget : float
        Seconds, from now on.
    """

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self.slowest, self.started = 0.0, self._now()
        self.before = self.started

    def another(self) -> bool:
        """Count an iteration; whether one more, as long as the longest, has time."""
        now = self._now()
        self.slowest, self.before = max(self.slowest, now - self.before), now
        return now - self.started + self.slowest <= self.budget

    def _now(self) -> float:
        return time.monotonic()


def memory_share(
    limit: int | None, n_jobs: int, device: torch.device | str
) -> int | None:
    """Bytes for each of the workers at one time, of a limit or of what is free now.

    What is free is divided before they begin: a later one would see only what the
    others have left.

    Examples
    --------
    >>> memory_share(1000, 4, "cpu"), memory_share(None, 1, "cpu")
    (250, None)
    """
    if n_jobs == 1:
        return limit
    if limit is None:
        return max(available_bytes(torch.device(device)) // n_jobs, SMALL_BYTES)
    return max(limit // n_jobs, 1)


def jobs_at_once(n_jobs: int | None) -> int:
    """How many jobs the active backend runs at one time, one at least.

    A cluster whose workers have not come yet says 0.
    """
    effective: Callable[..., int] = joblib.effective_n_jobs
    return max(int(effective(_plain(n_jobs))), 1)


def _plain(n_jobs: int | None) -> int | None:
    """A number of any library as Python's, which bytes can be multiplied by."""
    return None if n_jobs is None else int(n_jobs)


def parallel(
    call: Callable[[Any], Any], jobs: list[Any], n_jobs: int | None
) -> Iterator[Any]:
    """Targets in the order of the jobs, as they come where the backend can do that."""
    backend, _ = get_active_backend()
    alone = jobs_at_once(n_jobs) == 1
    lazily = alone or getattr(backend, "supports_return_generator", False)
    # One job at a time: each takes seconds.
    options: dict[str, Any] = {"n_jobs": _plain(n_jobs), "batch_size": 1}
    pool = joblib.Parallel(**options, return_as="generator" if lazily else "list")
    return iter(pool(joblib.delayed(call)(job) for job in jobs) or ())


class _Threads:
    """The limit on threads that several jobs of one process hold combine.

    What was before is asked of the first, whose thread is as it was: jobs of a
    threading backend overlap, and one must not take for the original what another has
    set. torch remembers a number for each thread and one for threads to come, so every
    job sets its own thread and puts it back.
    """

    def __init__(self) -> None:
        self.lock, self.holders = Lock(), 0
        self.before, self.pools = 0, None
        self.here = local()

    def hold(self, threads: int) -> None:
        with self.lock:
            self.holders += 1
            if self.holders == 1:
                self.before = torch.get_num_threads()
                self.pools = threadpool_limits(min(threads, self.before))
            self.here.holds = getattr(self.here, "holds", 0) + 1
            if self.here.holds == 1:
                torch.set_num_threads(min(threads, self.before))

    def release(self) -> None:
        with self.lock:
            self.holders -= 1
            if self.holders == 0 and self.pools is not None:
                self.pools.restore_original_limits()
            self.here.holds -= 1
            if self.here.holds == 0:
                torch.set_num_threads(self.before)


_THREADS = _Threads()


@contextmanager
def shared_threads(n_jobs: int) -> Iterator[None]:
    """Keep ``n_jobs`` workers of this machine to its cores combine."""
    if n_jobs == 1:
        yield
        return
    # those that the process may use: fewer in a container, or in a batch job
    _THREADS.hold(max(joblib.cpu_count() // n_jobs, 1))
    try:
        yield
    finally:
        _THREADS.release()


# Targets may be that large: coefficients are larger by the size of 1 / ridge.
_LARGEST_TARGET = 1e250
