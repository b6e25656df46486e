"""The processes that batches are spread over: of this machine, of Dask, of Ray."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from types import ModuleType

import joblib
import torch
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from normalign_reproduction._errors import complaint, require
from normalign_reproduction.running.workers import Workplace

__all__ = ["BACKENDS", "deaths", "jobs_for", "pool"]

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
