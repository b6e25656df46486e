"""One batch in one process: computed, heard, kept, and survived.

What a process leaves behind when it is killed is a description of its batch and the
batch's last checkpoint; results are stored when all of a batch are there.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from normalign.training import CheckpointRefused
from normalign_reproduction._errors import complaint, require
from normalign_reproduction.context import Context, experiment_named
from normalign_reproduction.files import read_checked, write_checked
from normalign_reproduction.plan import Batch, checkpoints, forget, remember
from normalign_reproduction.store import Store

__all__ = [
    "BatchEnd", "Workplace", "compute_batch", "is_full", "notes_of", "store_results",
]  # fmt: skip

# What an experiment may raise. Anything else is a fault of this program.
FAILURES = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError,
    MemoryError, NameError, OSError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_EVERY = 0.5  # seconds between two notes of progress

Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Workplace:
    """Where a batch is computed and kept.

    Parameters
    ----------
    results : Path
        The folder of the :class:`~normalign_reproduction.store.Store`.
    work : Path
        For checkpoints and notes of progress.
    device : str
    threads : int, optional
        How many threads a process may take; by default as it finds them.
    made : mapping
        What goes with every result: commit, versions, machine.
    writes : bool
        Whether the process stores its results itself, or hands them back to be stored,
        as one on another machine must.
    parent : int, optional
        The process without which this one ends.
    session : str
        A word that tells notes of these processes from those that others left.
    checkpoint_seconds : float
    """

    results: Path
    work: Path
    device: str = "cpu"
    threads: int | None = None
    made: Mapping[str, Any] | None = None
    writes: bool = True
    parent: int | None = None
    session: str = ""
    checkpoint_seconds: float = 15.0


@dataclass(frozen=True)
class BatchEnd:
    """How the computation of a batch ended.

    Parameters
    ----------
    batch : Batch
    how : {"done", "failed", "interrupted", "full"}
        ``"full"``: there was no space left to write to.
    error : str
        What was raised, in a line.
    trace : str
    results : list of dict, optional
        To be stored, where the process did not do it.
    made : dict
        What goes with the results.
    """

    batch: Batch
    how: str
    error: str = ""
    trace: str = ""
    results: list[dict[str, Any]] | None = None
    made: Mapping[str, Any] | None = None

    @property
    def out_of_memory(self) -> bool:
        """Whether a GPU had no memory left for it."""
        return self.how == "failed" and self.error.startswith("OutOfMemoryError")


def compute_batch(
    batch: Batch, place: Workplace, *, progress: Progress | None = None
) -> BatchEnd:
    """Compute a batch, from its checkpoint if there is one, and keep what came out.

    A checkpoint that is refused when it is read, for it is damaged or of other
    settings, costs a new start. Any other failure keeps the checkpoint.

    Parameters
    ----------
    progress : callable, optional
        ``progress(share, words)``, beside the notes in the work folder.
    """
    if place.parent is not None:
        _settle(place.parent)
    try:
        work = _work_folder(place.work)
    except PermissionError as error:
        return BatchEnd(batch, "failed", error=str(error), trace=traceback.format_exc())
    notes = Notes(work / f"{batch.key}.progress", place.session, progress)
    try:
        if place.writes and _is_stored(batch, place):
            forget(batch, work)
            return BatchEnd(batch, "done")
        resumed = bool(checkpoints(batch, work))
        notes(notes.share if resumed else 0.0, "begins")
        remember(batch, work)
        try:
            results = _results(batch, place, work, notes)
        except ValueError as error:
            if not (resumed and _is_refusal(error, batch, work)):
                raise
            forget(batch, work)
            remember(batch, work)
            results = _results(batch, place, work, notes)
        made = _provenance(batch, place, notes.seconds)
        if not place.writes:
            return BatchEnd(batch, "done", results=results, made=made)
        store_results(batch, results, made, place)
        return BatchEnd(batch, "done")
    except KeyboardInterrupt:
        return BatchEnd(batch, "interrupted")
    except FAILURES as error:
        line = f"{type(error).__name__}: {error}".splitlines()[0]
        if is_full(error):
            return BatchEnd(batch, "full", error=line)
        trace = traceback.format_exc()
        with suppress(OSError):
            (work / f"{batch.key}.error").write_text(trace, encoding="utf-8")
        return BatchEnd(batch, "failed", error=line, trace=trace)
    finally:
        notes.leave()


def store_results(
    batch: Batch,
    results: list[dict[str, Any]],
    made: Mapping[str, Any],
    place: Workplace,
) -> None:
    """Store the results of a batch, and then forget its checkpoints.

    What is stored already stays as it is.
    """
    store = Store(place.results)
    for run, result in zip(batch.runs, results, strict=True):
        if not store.has(run):
            store.write(run, result, dict(made))
    forget(batch, place.work)


def notes_of(key: str, work: Path) -> dict[str, Any] | None:
    """Return the last note of a batch, or ``None`` if there is none.

    It has ``share``, ``words``, ``seconds``, ``session`` and ``pid``, which is ``None``
    when the batch was left in order.
    """
    try:
        return read_checked(work / f"{key}.progress")
    except (OSError, ValueError):
        return None


class Notes:
    """Notes of progress in a file, at most two a second; and how long it took in all.

    A note that cannot be written is none: the disk may be full, and the batch will
    find out itself.
    """

    def __init__(self, path: Path, session: str, told: Progress | None) -> None:
        self.path, self.session, self.told = path, session, told
        before = notes_of(path.stem, path.parent) or {}
        self.earlier = float(before.get("seconds", 0.0))
        self.begun, self.last = time.perf_counter(), -_EVERY
        self.share, self.words = float(before.get("share", 0.0)), "begins"

    @property
    def seconds(self) -> float:
        """How long the batch has taken, in this process and those before."""
        return self.earlier + time.perf_counter() - self.begun

    def __call__(self, share: float, words: str) -> None:
        self.share, self.words = share, words
        now = time.perf_counter() - self.begun
        if self.told is not None:
            self.told(share, words)
        if now - self.last >= _EVERY:
            self.last = now
            self._write(os.getpid())

    def leave(self) -> None:
        """Say that no process is at it any more, if the batch is not forgotten."""
        if self.path.exists():
            self._write(None)

    def _write(self, pid: int | None) -> None:
        note = {
            "share": self.share, "words": self.words, "seconds": self.seconds,
            "session": self.session, "pid": pid,
        }  # fmt: skip
        with suppress(OSError):
            write_checked(self.path, note)


def _results(
    batch: Batch, place: Workplace, work: Path, notes: Notes
) -> list[dict[str, Any]]:
    context = Context(
        torch.device(place.device), work / batch.key, place.checkpoint_seconds, notes
    )
    with _threads(place.threads):
        results = experiment_named(batch.experiment).compute(batch.runs, context)
    callee, rule = f"{batch.experiment}.compute", f"{len(batch.runs)} results"
    fits = len(results) == len(batch.runs)
    require(fits, callee, "what it returns", rule, f"{len(results)}")
    json.dumps(results, allow_nan=False)  # all can be stored, or none is
    return results


def _is_refusal(error: ValueError, batch: Batch, work: Path) -> bool:
    """Whether an error is that a checkpoint of the batch cannot be gone on from."""
    if isinstance(error, json.JSONDecodeError):  # of a file that the batch has kept
        kept = (path.read_bytes() for path in checkpoints(batch, work))
        return error.doc.encode() in kept
    return isinstance(error, CheckpointRefused)


def _provenance(batch: Batch, place: Workplace, seconds: float) -> dict[str, Any]:
    return {
        **(place.made or {}),
        "threads": place.threads or torch.get_num_threads(),
        "device_kind": batch.device,
        "seconds": round(seconds, 3),
        "n_runs": len(batch.runs),
        "batch": batch.key,
    }


def _is_stored(batch: Batch, place: Workplace) -> bool:
    store = Store(place.results)
    return all(store.path(run).is_file() and store.has(run) for run in batch.runs)


def is_full(error: BaseException | None) -> bool:
    """Whether an error, or one that it came of, is that no space is left."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            return True
        error = error.__cause__ or error.__context__
    return False


def _work_folder(wanted: Path) -> Path:
    """Return the work folder, or one of this user where that one cannot be.

    Raises
    ------
    PermissionError
        If that one belongs to somebody else, is a link, or is open to others.
    """
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except PermissionError:
        return private_folder(Path(tempfile.gettempdir()), "normalign-work")
    return wanted


def private_folder(parent: Path, name: str) -> Path:
    """Return a folder of this user below one that everybody can write to.

    Anybody can make a folder or a link of the same name first, and put files there that
    we would read: only a folder of our own that nobody else can enter is taken.
    """
    # No user numbers on Windows, whose temporary folders are each user's own.
    user = os.getuid() if hasattr(os, "getuid") else None
    path = parent / (name if user is None else f"{name}-{user}")
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if user is None:
        return path
    found = path.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        got = "a link" if stat.S_ISLNK(found.st_mode) else "a file"
    elif found.st_uid != user:
        got = f"one of user {found.st_uid}"
    else:
        got = "" if mode & 0o077 == 0 else f"one of mode {mode:o}"
    if got:
        rule = f"a folder of user {user} and of mode 700"
        remedy = "Remove it, or name another folder by TMPDIR."
        text = complaint("normalign_reproduction", f"{path}", rule, got, remedy)
        raise PermissionError(text)
    return path


@contextmanager
def _threads(n: int | None) -> Iterator[None]:
    """Limit the threads of torch and of the linear algebra below numpy."""
    if n is None:
        yield
        return
    before = torch.get_num_threads()
    try:
        with threadpool_limits(n):
            torch.set_num_threads(n)
            yield
    finally:
        torch.set_num_threads(before)


def _settle(parent: int) -> None:
    """Make this process one that ends with its parent, and that Ctrl-C spares.

    Ctrl-C in a terminal reaches all processes of its group; here the parent alone is
    to hear it, and passes it on once.
    """
    if any(thread.name == "parent" for thread in threading.enumerate()):
        return
    # Its own lock is a semaphore of the system, which a killed process leaves behind.
    tqdm.set_lock(threading.RLock())
    with suppress(AttributeError, OSError):  # not on every system
        os.setpgid(0, 0)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_EVERY)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
