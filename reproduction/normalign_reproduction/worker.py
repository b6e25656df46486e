"""Computing one batch in one process, from its checkpoint if there is one.

The names of a batch's files in the work folder begin with its key: its checkpoints,
``KEY.progress`` (written twice a second), ``KEY.error`` (the traceback of a failure),
``KEY.results`` (until all results are in the store).
"""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from normalign.training import CheckpointRefused
from normalign_reproduction.context import Context, experiment_named
from normalign_reproduction.files import load_cache, write_checked
from normalign_reproduction.plan import Batch
from normalign_reproduction.spec import Record

__all__ = ["BatchResult", "ProgressFile", "compute_batch", "remove_files"]

_INTERVAL = 0.5  # seconds
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchResult:
    """The records of a batch, or the error that ended it."""

    batch: Batch
    records: tuple[Record, ...] = ()
    failure: str = ""  # "error", "out of memory" or "disk full"
    error: str = ""  # in one line
    traceback: str = ""


def compute_batch(
    batch: Batch,
    work: Path,
    *,
    threads: int | None = None,
    checkpoint_seconds: float = 15.0,
    parent: int | None = None,
) -> BatchResult:
    """Compute a batch, from its checkpoint if there is one.

    A checkpoint that is damaged or belongs to other settings is removed, and the batch
    starts again. After any other error it is kept. If `parent` is given, this process
    ends when that one does.
    """
    if parent is not None:
        _end_with(parent)
    try:
        work.mkdir(parents=True, exist_ok=True)
    except PermissionError:  # on another machine, whose disk is not ours
        work = Path(tempfile.mkdtemp(prefix="normalign-"))
    progress = ProgressFile(work / f"{batch.key}.progress")
    device = torch.device(batch.device)
    context = Context(device, work / batch.key, checkpoint_seconds, progress)
    try:
        with _limit_threads(threads):
            results = _compute(batch, context)
    except Exception as error:  # noqa: BLE001 - no error of a batch stops the others
        line = f"{type(error).__name__}: {error}".splitlines()[0]
        return BatchResult(batch, (), _kind(error), line, traceback.format_exc())
    finally:
        progress.write()
    made = {
        "threads": threads or torch.get_num_threads(),
        "device_kind": batch.device,
        "seconds": round(progress.seconds, 3),
        "n_runs": len(batch.runs),
        "batch": batch.key,
    }
    pairs = zip(batch.runs, results, strict=True)
    return BatchResult(batch, tuple(Record(run, one, made) for run, one in pairs))


def _compute(batch: Batch, context: Context) -> list[dict[str, Any]]:
    compute = experiment_named(batch.runs[0].experiment).compute
    try:
        results = compute(batch.runs, context)
    except CheckpointRefused as error:
        _log.warning("%s The batch starts again.", error)
        remove_files(batch.key, context.checkpoint.parent)
        results = compute(batch.runs, context)
    if len(results) != len(batch.runs):
        text = f"{batch.runs[0].experiment}.compute must return {len(batch.runs)} "
        raise ValueError(f"{text}results, got {len(results)}.")
    json.dumps(results, allow_nan=False)  # raises for NaN and infinity
    return results


def remove_files(key: str, work: Path) -> None:
    """Remove all files of a batch, the one with its results last."""
    paths = [*work.glob(f"{key}*"), *work.glob(f".{key}*")]  # hidden: half-written
    for path in sorted(paths, key=lambda path: path.suffix == ".results"):
        path.unlink(missing_ok=True)


class ProgressFile:
    """A progress callback that writes to a file, at most twice a second.

    The time that a batch took in earlier processes is read from the file and counted.
    """

    def __init__(self, path: Path) -> None:
        earlier = load_cache(path) or {}
        self.path = path
        self.share, self.words = earlier.get("share", 0.0), "starting"
        self._earlier = earlier.get("seconds", 0.0)
        self._start = time.perf_counter()
        self.write()

    @property
    def seconds(self) -> float:
        """The time that the batch has taken so far, in all processes."""
        return self._earlier + time.perf_counter() - self._start

    def __call__(self, share: float, words: str) -> None:
        """Note the share that is done, and a description."""
        self.share, self.words = share, words
        if time.perf_counter() - self._written >= _INTERVAL:
            self.write()

    def write(self) -> None:
        """Write the present state; a full disk is left to the batch to find."""
        self._written = time.perf_counter()
        state = {"share": self.share, "words": self.words, "seconds": self.seconds}
        with suppress(OSError):
            write_checked(self.path, state)


def _kind(error: BaseException) -> str:
    """Return the `failure` of an error; a full disk may be the cause of another one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return "disk full"
        cause = cause.__cause__ or cause.__context__
    return "out of memory" if isinstance(error, torch.OutOfMemoryError) else "error"


@contextmanager
def _limit_threads(n: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        with threadpool_limits(n):
            torch.set_num_threads(n or before)
            yield
    finally:
        torch.set_num_threads(before)


@cache
def _end_with(parent: int) -> None:
    """Make this process ignore Ctrl-C, and end soon after its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # tqdm's own lock is a semaphore, which a killed process would leave behind
    tqdm.set_lock(threading.RLock())

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_INTERVAL)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
