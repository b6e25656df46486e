"""Computing batches, in this process or in several, and storing their results."""

from __future__ import annotations

import errno
import math
import os
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import joblib
import torch
from filelock import FileLock, Timeout
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from normalign_reproduction.plan import Batch
from normalign_reproduction.progress import Progress, show_progress
from normalign_reproduction.spec import Record
from normalign_reproduction.store import Store, read_archive, write_archive
from normalign_reproduction.worker import BatchResult, compute_batch, remove_files

__all__ = ["choose_jobs", "exclusive", "run_batches", "store_pending"]

Compute = Callable[[Batch], BatchResult]
Results = Generator[BatchResult, None, None]


def choose_jobs(jobs: int | None, *, device: str) -> tuple[int, int | None]:
    """Return the number of batches to compute at a time, and the threads of each.

    The default is one on a GPU and one per core on a CPU: small networks gain more from
    processes than from threads. There are at most as many threads as torch uses by
    itself (``OMP_NUM_THREADS``), and no more where there are few batches, because the
    number may change the last digits of a result.

    Examples
    --------
    >>> choose_jobs(None, device="cuda")
    (1, None)
    """
    if device == "cuda" and jobs in (None, 1):
        return 1, None
    n_cores = joblib.cpu_count()
    jobs = jobs or n_cores
    return jobs, max(1, min(n_cores // jobs, torch.get_num_threads()))


@contextmanager
def exclusive(work: Path) -> Iterator[None]:
    """Lock a work folder while the block runs; the lock ends with this process."""
    work.mkdir(parents=True, exist_ok=True)
    lock = FileLock(work / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        text = f"normalign reproduce: another process computes in {work.parent}."
        raise ValueError(f"{text} Wait for it, or choose another --out.") from error
    try:
        yield
    finally:
        lock.release()


def run_batches(
    batches: Sequence[Batch],
    store: Store,
    work: Path,
    *,
    made: Mapping[str, Any] | None = None,
    jobs: int = 1,
    backend: str = "loky",
    threads: int | None = None,
    checkpoint_seconds: float = 15.0,
    stream: TextIO | None = None,
) -> list[BatchResult]:
    """Compute batches and store their results; return those that failed.

    With one job or one batch this process computes; otherwise joblib distributes the
    batches over processes, the longest first. The results of a batch are stored
    together, by this process. A batch that raises does not stop the others. One whose
    process dies, or that runs out of GPU memory beside others, is computed again alone,
    once. A full disk ends the work with an ``OSError``.

    Parameters
    ----------
    made : mapping, optional
        Stored with every result: commit, versions, machine.
    backend : {"loky", "dask", "ray"}
        Processes of this machine; of the dask cluster that the dask configuration names
        (``DASK_SCHEDULER_ADDRESS``), or a new local one; of a ray cluster.
    stream : text stream, optional
        Where to show progress.
    """
    if not batches:
        return []
    in_process = jobs == 1 or len(batches) == 1
    compute = partial(
        compute_batch, work=work, threads=threads, checkpoint_seconds=checkpoint_seconds
    )
    progress = Progress(batches, work, jobs=1 if in_process else jobs)
    if in_process:
        results = _in_this_process(batches, compute, progress)
    else:
        results = _in_processes(batches, compute, progress, jobs, backend)
    failed = []
    with show_progress(progress, stream), closing(results):
        for result in results:
            key = result.batch.key
            if result.failure == "disk full":
                raise OSError(errno.ENOSPC, result.error)
            if result.failure:
                failed.append(result)
                with suppress(OSError):
                    (work / f"{key}.error").write_text(result.traceback, "utf-8")
            else:
                records = [
                    Record(one.run, one.result, {**(made or {}), **one.made})
                    for one in result.records
                ]
                # First all in one step: results that are stored in part would leave
                # another batch, for which the checkpoint is useless.
                _store(write_archive(work / f"{key}.results", records), store)
            progress.finish(result.batch, failed=bool(result.failure))
    return failed


def store_pending(work: Path, store: Store) -> None:
    """Store the results of batches whose process was killed while it stored them."""
    for path in sorted(work.glob("*.results")):
        _store(path, store)


def _store(path: Path, store: Store) -> None:
    for record in read_archive(path):
        store.write(record.run, record.result, record.made)
    remove_files(path.stem, path.parent)


def _in_this_process(
    batches: Sequence[Batch], compute: Compute, progress: Progress
) -> Results:
    for batch in batches:
        progress.start(batch)
        yield compute(batch)


def _in_processes(
    batches: Sequence[Batch],
    compute: Compute,
    progress: Progress,
    jobs: int,
    backend: str,
) -> Results:
    """Yield results in the order in which batches end; some are computed twice.

    When one process dies, joblib ends the others, too. Which batch was the cause is
    found by computing each of them alone.
    """
    # The longest would leave the other processes idle if it came last.
    waiting = sorted(batches, key=lambda batch: -(batch.seconds or math.inf))
    running: dict[str, Batch] = {}
    again: list[Batch] = []

    def tasks() -> Iterator[Any]:
        while waiting:
            batch = waiting.pop(0)
            running[batch.key] = batch
            progress.start(batch)
            yield joblib.delayed(compute)(batch)

    with _use_backend(backend, jobs) as (worker_died, options):
        compute = partial(compute, **options)
        while waiting:
            try:
                for result in _parallel(tasks(), jobs, backend):
                    del running[result.batch.key]
                    if result.failure == "out of memory":
                        again.append(result.batch)
                    else:
                        yield result
            except worker_died:
                again += running.values()
                running.clear()
        for batch in again:
            waiting.append(batch)
            try:
                yield from _parallel(tasks(), jobs, backend)
            except worker_died as error:
                line = f"its process died twice: {type(error).__name__}"
                yield BatchResult(batch, (), "error", line, str(error))


def _parallel(tasks: Iterator[Any], jobs: int, backend: str) -> Results:
    options: dict[str, Any] = {"n_jobs": jobs, "batch_size": 1}
    if backend == "ray":  # it returns no result before all tasks have ended
        while wave := list(islice(tasks, jobs)):
            yield from joblib.Parallel(**options)(wave)  # pyright: ignore
        return
    options |= {"pre_dispatch": "n_jobs", "return_as": "generator_unordered"}
    try:
        yield from joblib.Parallel(**options)(tasks)  # pyright: ignore
    finally:
        if backend == "loky":
            # Without waiting: after Ctrl-C they would go on, and idle ones keep their
            # GPU memory from a batch that is computed alone.
            executor = get_reusable_executor(kill_workers=True)
            executor.shutdown(wait=True, kill_workers=True)


@contextmanager
def _use_backend(
    backend: str, jobs: int
) -> Iterator[tuple[type[BaseException], dict[str, Any]]]:
    """Let joblib use a backend; yield its error for a dead process, and options."""
    if backend == "loky":
        # about a worker that joblib replaces because its memory grew
        warnings.filterwarnings("ignore", "A worker stopped while some jobs were given")
        with joblib.parallel_config("loky"):
            yield TerminatedWorkerError, {"parent": os.getpid()}
    elif backend == "dask":
        distributed = _package("distributed", backend)
        address = import_module("dask").config.get("scheduler-address", None)
        local = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
        client = distributed.Client(address, **({} if address else local))
        with client, joblib.parallel_config("dask"):
            yield distributed.KilledWorker, {}
    else:
        _package("ray.util.joblib", backend).register_ray()
        with joblib.parallel_config("ray"):
            yield _package("ray.exceptions", backend).RayError, {}


def _package(name: str, backend: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        text = f"normalign reproduce: --backend {backend} needs the package {package}."
        text += f" Install it: pip install {package}."
        raise ModuleNotFoundError(text) from error
