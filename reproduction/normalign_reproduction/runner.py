"""Computing what a plan says: one batch after the other, or spread over processes."""

from __future__ import annotations

import _thread
import math
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Self, TextIO
from uuid import uuid4

import joblib
import torch
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from normalign_reproduction._errors import complaint, require
from normalign_reproduction.plan import Batch, Plan, forget, open_batches
from normalign_reproduction.progress import Board, show_progress
from normalign_reproduction.store import Store
from normalign_reproduction.worker import (
    BatchEnd,
    Workplace,
    compute_batch,
    is_full,
    notes_of,
    store_results,
)

__all__ = [
    "BACKENDS", "Performance", "Stop", "alone", "deaths", "jobs_for", "pool",
    "run_plan",
]  # fmt: skip

_TRIES = 2


@dataclass(frozen=True)
class Performance:
    """What became of a plan.

    Parameters
    ----------
    ended : list of Ended
        The batches that were begun, in the order in which they ended.
    interrupted : bool
        Whether Ctrl-C came.
    """

    ended: list[BatchEnd]
    interrupted: bool = False

    @property
    def failures(self) -> list[BatchEnd]:
        """The batches that failed."""
        return [one for one in self.ended if one.how == "failed"]

    @property
    def full(self) -> BatchEnd | None:
        """The batch that found no space left to write to, if one did."""
        return next((one for one in self.ended if one.how == "full"), None)


def run_plan(
    plan: Plan,
    place: Workplace,
    *,
    jobs: int = 1,
    backend: str = "loky",
    stream: TextIO | None = None,
) -> Performance:
    """Compute what a plan says.

    With one job or one batch all happens in this process; else batches are spread over
    processes by joblib, the longest first. Results are stored batch by batch. A batch
    that raises is noted, and the others go on. A process that dies costs its batch the
    time since its last checkpoint; a batch whose process dies twice is given up. One
    that finds a GPU's memory taken by the others is tried again alone. Ctrl-C lets
    running batches write their checkpoints, a second one does not wait. When no space
    is left, nothing more is begun.

    Parameters
    ----------
    jobs : int
        Processes at a time.
    backend : {"loky", "dask", "ray"}
        See :func:`normalign_reproduction.runner.pool`.
    stream : text stream, optional
        Where to show progress.

    Raises
    ------
    ValueError
        If another process computes in the same folder.
    ModuleNotFoundError
        If the backend's package is not installed.
    """
    batches = plan.batches
    if not batches:
        return Performance([])
    place = replace(place, session=uuid4().hex)
    here = jobs == 1 or len(batches) == 1
    # Dask's and Ray's processes are not ours to interrupt.
    stop = Stop(passes_on=not here and backend == "loky")
    board, ended = Board(batches, plan.seconds), []
    with alone(place.work), ExitStack() as stack:
        _tidy(place)
        each = _listening(() if here else batches, place, board, stop)
        try:
            stack.enter_context(stop)
            stack.enter_context(show_progress(board, stream=stream, each=each))
            if here:
                source = _one_by_one(batches, place, board)
            else:
                there = stack.enter_context(pool(backend, place, jobs=jobs))
                source = _spread(batches, there, jobs, backend, lambda: stop.came)
            for one in source:
                ended.append(one)
                if one.how in ("done", "failed"):
                    board.end(one.batch.key, failed=one.how == "failed")
                stop.full |= one.how == "full"
                stop.came |= one.how in ("interrupted", "full")
        except KeyboardInterrupt:
            stop.came = True
    return Performance(ended, interrupted=stop.came and not stop.full)


def _tidy(place: Workplace) -> None:
    """Forget batches whose results were stored just before their process was killed."""
    store = Store(place.results)
    for batch in open_batches(place.work):
        if all(store.has(run) for run in batch.runs):
            forget(batch, place.work)


def _listening(
    batches: Sequence[Batch], place: Workplace, board: Board, stop: Stop
) -> Callable[[], None]:
    """Return what hears of the processes, and passes Ctrl-C on to them."""

    def each() -> None:
        processes = set()
        for batch in batches:
            note = notes_of(batch.key, place.work) if board.awaits(batch.key) else None
            if note is None or note["session"] != place.session:
                continue
            if note["pid"] is not None:
                processes.add(note["pid"])
                board.hear(batch.key, note["share"], note["words"])
        stop.attend(processes)

    return each


def _one_by_one(
    batches: Sequence[Batch], place: Workplace, board: Board
) -> Iterator[BatchEnd]:
    """Compute in this process, until a batch finds a reason to stop."""
    for batch in batches:

        def hear(share: float, words: str, key: str = batch.key) -> None:
            board.hear(key, share, words)

        one = compute_batch(batch, place, progress=hear)
        yield one
        if one.how in ("interrupted", "full"):
            return


def _spread(
    batches: Sequence[Batch],
    place: Workplace,
    jobs: int,
    backend: str,
    asked_to_stop: Callable[[], bool],
) -> Iterator[BatchEnd]:
    """Compute in other processes; whose process dies is tried once more, alone.

    When one process dies, joblib ends the others, too. Which batch was to blame shows
    when each that was running is tried by itself. A batch that found no memory left on
    a GPU beside the others is tried by itself, too, when they have ended.
    """
    # The longest last would leave the others idle; what nobody knows may be long.
    waiting = deque(sorted(batches, key=lambda batch: -(batch.seconds or math.inf)))
    suspects: deque[Batch] = deque()
    strikes: Counter[str] = Counter()
    while (waiting or suspects) and not asked_to_stop():
        queue = deque([suspects.popleft()]) if suspects else waiting
        running: dict[str, Batch] = {}
        try:
            for one in _parallel(queue, running, place, jobs, backend, asked_to_stop):
                running.pop(one.batch.key, None)
                key = one.batch.key
                if one.out_of_memory and not strikes[key]:
                    strikes[key] += 1
                    suspects.append(one.batch)
                    continue
                yield one if one.results is None else _store_results(one, place)
        except deaths(backend) as error:
            if asked_to_stop():
                return
            for batch in running.values():
                strikes[batch.key] += 1
                if strikes[batch.key] < _TRIES:
                    suspects.append(batch)
                else:
                    line = f"its process died {_TRIES} times: {type(error).__name__}"
                    yield BatchEnd(batch, "failed", error=line, trace=str(error))


def _parallel(
    queue: deque[Batch],
    running: dict[str, Batch],
    place: Workplace,
    jobs: int,
    backend: str,
    asked_to_stop: Callable[[], bool],
) -> Iterator[BatchEnd]:
    """Yield how batches of a queue end, in the order in which they do."""

    def tasks() -> Iterator[Any]:
        while queue and not asked_to_stop():
            batch = queue.popleft()
            running[batch.key] = batch
            yield joblib.delayed(compute_batch)(batch, place)

    settings: dict[str, Any] = {"n_jobs": jobs, "batch_size": 1}
    if backend == "ray":  # it gives nothing back before all it was given has ended
        given = tasks()
        while wave := list(islice(given, jobs)):
            yield from joblib.Parallel(**settings)(wave)  # pyright: ignore
        return
    settings |= {"pre_dispatch": "n_jobs", "return_as": "generator_unordered"}
    parallel: Any = joblib.Parallel(**settings)
    yield from parallel(tasks())


def _store_results(one: BatchEnd, place: Workplace) -> BatchEnd:
    """Store what came back from another process."""
    try:
        store_results(one.batch, one.results or [], one.made or {}, place)
    except OSError as error:
        how = "full" if is_full(error) else "failed"
        return BatchEnd(one.batch, how, error=f"{type(error).__name__}: {error}")
    return replace(one, results=None)


try:
    import fcntl
except ModuleNotFoundError:  # not on every system
    fcntl = None


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other processes from working in a folder while the block runs.

    The system lets go of it when this process ends, however it does.

    Raises
    ------
    ValueError
        If another process works there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free = True
            except BlockingIOError:
                free = False
            require(
                free, "normalign_reproduction", "the folder", "free to work in",
                f"{folder}, in which another process computes",
                "Wait for it, or name another folder.",
            )  # fmt: skip
        yield


class Stop:
    """Ctrl-C as a flag, passed on once to the processes that compute.

    The first Ctrl-C lets them write their checkpoints; a second one, or some seconds,
    ends the wait.

    Parameters
    ----------
    passes_on : bool
        Whether there are processes to pass it on to. Otherwise nothing is changed, and
        Ctrl-C interrupts as ever.
    grace : float
        Seconds that the processes have.
    """

    def __init__(self, *, passes_on: bool, grace: float = 8.0) -> None:
        self.passes_on, self.grace = passes_on, grace
        self.came, self.full = False, False
        self._told: set[int] = set()
        self._since: float | None = None
        self._previous: object = None

    def __enter__(self) -> Self:
        main = threading.current_thread() is threading.main_thread()
        heard = main and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        if self.passes_on and heard:
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *reason: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)  # type: ignore[arg-type]

    def attend(self, processes: set[int]) -> None:
        """Tell the processes that have not been told yet, and mind the time.

        Called twice a second, from another thread.
        """
        if not (self.came and self.passes_on):
            return
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        for process in processes - self._told:
            self._told.add(process)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGINT)
        if now - self._since > self.grace:
            self._since = now
            _thread.interrupt_main()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.came:
            raise KeyboardInterrupt
        self.came = True


BACKENDS = ("loky", "dask", "ray")


def jobs_for(asked: int | None, *, device: str) -> tuple[int, int | None]:
    """Return how many batches to compute at a time, and the threads of each.

    A GPU computes one batch after the other unless more are asked for, which pays where
    batches are many and small. Processors are shared out: networks as small as the
    paper's gain more from a process each than from threads. The threads
    do not depend on how much there is to do, so that neither do the last digits; they
    are no more than torch takes by itself, for which see ``OMP_NUM_THREADS``.

    Parameters
    ----------
    asked : int, optional
        By default one on a GPU, else as many as there are processors.
    device : {"cpu", "cuda"}

    Examples
    --------
    >>> jobs_for(None, device="cuda")
    (1, None)
    """
    if device == "cuda" and asked in (None, 1):
        return 1, None
    cores = joblib.cpu_count()
    jobs = cores if asked is None else asked
    return jobs, max(1, min(cores // jobs, torch.get_num_threads()))


@contextmanager
def pool(backend: str, place: Workplace, *, jobs: int) -> Iterator[Workplace]:
    """Have joblib spread over a backend's processes, and yield where they work.

    Parameters
    ----------
    backend : {"loky", "dask", "ray"}
        Processes of this machine store their results themselves, and end with this
        one. Those of the other two may be elsewhere, where our disk is not: results
        come back and are stored here. Dask's are those of the scheduler that its
        configuration names (``DASK_SCHEDULER_ADDRESS``), else new ones on this machine.

    Raises
    ------
    ModuleNotFoundError
        If the backend's package is not installed.
    """
    rule = " or ".join(map(repr, BACKENDS))
    require(
        backend in BACKENDS, "normalign_reproduction", "backend", rule, repr(backend)
    )
    afar = replace(place, writes=False, parent=None)
    if backend == "loky":
        threads = place.threads or 1
        with joblib.parallel_config("loky", inner_max_num_threads=threads):
            try:
                yield replace(place, writes=True, parent=os.getpid())
            finally:  # they have nothing left to say; to ask them takes seconds
                executor = get_reusable_executor(kill_workers=True)
                executor.shutdown(wait=False, kill_workers=True)
    elif backend == "dask":
        distributed = _package("distributed", backend)
        address = import_module("dask").config.get("scheduler-address", None)
        here = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
        client = distributed.Client(address, **({} if address else here))
        with client, joblib.parallel_config("dask"):
            yield afar
    else:
        _package("ray.util.joblib", backend).register_ray()
        with joblib.parallel_config("ray"):
            yield afar


def deaths(backend: str) -> tuple[type[BaseException], ...]:
    """Return what is raised when a process of a backend dies."""
    if backend == "dask":
        return (_package("distributed", backend).KilledWorker,)
    if backend == "ray":
        return (_package("ray.exceptions", backend).RayError,)
    return (TerminatedWorkerError,)


def _package(name: str, backend: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        text = complaint(
            "normalign_reproduction", "backend", "one whose package is installed",
            repr(backend), f"Install {name.partition('.')[0]}, or take 'loky'.",
        )  # fmt: skip
        raise ModuleNotFoundError(text) from error
