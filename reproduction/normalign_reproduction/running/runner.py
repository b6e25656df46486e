"""Computing what a plan says: one batch after the other, or spread over processes."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TextIO
from uuid import uuid4

import joblib

from normalign_reproduction.results import Store
from normalign_reproduction.running.guards import Stop, alone
from normalign_reproduction.running.plan import Batch, Plan, forget, opened
from normalign_reproduction.running.pools import deaths, pool
from normalign_reproduction.running.progress import Board, shown
from normalign_reproduction.running.workers import (
    Ended,
    Workplace,
    computed,
    is_full,
    keep,
    notes_of,
)

__all__ = ["Performance", "carried_out"]

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

    ended: list[Ended]
    interrupted: bool = False

    @property
    def failures(self) -> list[Ended]:
        """The batches that failed."""
        return [one for one in self.ended if one.how == "failed"]

    @property
    def full(self) -> Ended | None:
        """The batch that found no space left to write to, if one did."""
        return next((one for one in self.ended if one.how == "full"), None)


def carried_out(
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
        See :func:`normalign_reproduction.running.pools.pool`.
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
            stack.enter_context(shown(board, stream=stream, each=each))
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
    for batch in opened(place.work):
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
) -> Iterator[Ended]:
    """Compute in this process, until a batch finds a reason to stop."""
    for batch in batches:

        def hear(share: float, words: str, key: str = batch.key) -> None:
            board.hear(key, share, words)

        one = computed(batch, place, progress=hear)
        yield one
        if one.how in ("interrupted", "full"):
            return


def _spread(
    batches: Sequence[Batch],
    place: Workplace,
    jobs: int,
    backend: str,
    asked_to_stop: Callable[[], bool],
) -> Iterator[Ended]:
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
                yield one if one.results is None else _kept(one, place)
        except deaths(backend) as error:
            if asked_to_stop():
                return
            for batch in running.values():
                strikes[batch.key] += 1
                if strikes[batch.key] < _TRIES:
                    suspects.append(batch)
                else:
                    line = f"its process died {_TRIES} times: {type(error).__name__}"
                    yield Ended(batch, "failed", error=line, trace=str(error))


def _parallel(
    queue: deque[Batch],
    running: dict[str, Batch],
    place: Workplace,
    jobs: int,
    backend: str,
    asked_to_stop: Callable[[], bool],
) -> Iterator[Ended]:
    """Yield how batches of a queue end, in the order in which they do."""

    def tasks() -> Iterator[Any]:
        while queue and not asked_to_stop():
            batch = queue.popleft()
            running[batch.key] = batch
            yield joblib.delayed(computed)(batch, place)

    settings: dict[str, Any] = {"n_jobs": jobs, "batch_size": 1}
    if backend == "ray":  # it gives nothing back before all it was given has ended
        given = tasks()
        while wave := list(islice(given, jobs)):
            yield from joblib.Parallel(**settings)(wave)  # pyright: ignore
        return
    settings |= {"pre_dispatch": "n_jobs", "return_as": "generator_unordered"}
    parallel: Any = joblib.Parallel(**settings)
    yield from parallel(tasks())


def _kept(one: Ended, place: Workplace) -> Ended:
    """Store what came back from another process."""
    try:
        keep(one.batch, one.results or [], one.made or {}, place)
    except OSError as error:
        how = "full" if is_full(error) else "failed"
        return Ended(one.batch, how, error=f"{type(error).__name__}: {error}")
    return replace(one, results=None)
