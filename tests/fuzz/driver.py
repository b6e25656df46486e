"""Run random cases of each family in worker processes and store those that fail."""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import multiprocessing
import os
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

import numpy as np

CORPUS = Path(__file__).with_name("corpus")
PACKAGE = __name__.rpartition(".")[0]
# Most cases of each family in a run. Shorter runs keep the ratio.
QUOTAS = {
    "kernel_machines": 6000,
    "tables": 6000,
    "geometry": 6000,
    "resume": 1000,
    "files": 3000,
}
CASE_LIMIT_S = 120.0


@dataclass
class Failure:
    """A case that the library got wrong; ``case`` is None if drawing it failed."""

    family: str
    seed: int
    index: int
    case: dict | None
    error: str
    traceback: str = ""

    def save(self, corpus: Path) -> Path:
        """Write the case to the corpus, named by a hash of its content.

        The traceback is left out: it names folders of this machine.
        """
        content = {
            name: part for name, part in vars(self).items() if name != "traceback"
        }
        digest = hashlib.sha256(json.dumps(self.case, sort_keys=True).encode())
        path = corpus / f"{self.family}-{digest.hexdigest()[:12]}.json"
        corpus.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        return path


@dataclass
class Summary:
    """The number of cases of each family, the failures, and the seconds of a run."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0


def draw_case(package: str, family: str, seed: int, index: int) -> dict:
    """The ``index``-th case of a family, as it comes back from JSON."""
    name = int.from_bytes(hashlib.sha256(family.encode()).digest()[:4])
    rng = np.random.default_rng([seed, name, index])
    case = importlib.import_module(f"{package}.{family}").draw(rng)
    return json.loads(json.dumps(case))


def check_case(package: str, family: str, case: dict) -> None:
    """Raise if the library gets this case wrong."""
    importlib.import_module(f"{package}.{family}").check(case)


def _work(connection: Connection, package: str) -> None:
    # Receives (family, seed, index); sends None, or the case and its error.
    import torch

    logging.getLogger().addHandler(logging.NullHandler())  # discard log output
    torch.set_num_threads(1)
    while (task := connection.recv()) is not None:
        case = None
        try:
            case = draw_case(package, *task)
            check_case(package, task[0], case)
            connection.send(None)
        except KeyboardInterrupt:
            return
        except BaseException as error:  # noqa: BLE001  # SystemExit is a failure, too
            name = "".join(traceback.format_exception_only(error)).rstrip()
            connection.send((case, name, traceback.format_exc()))


class _Worker:
    """A process, the case it is working on, and since when."""

    def __init__(self, package: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other, package))
        self.process.start()
        other.close()
        self.task: tuple[str, int, int] | None = None
        self.start = 0.0

    def give(self, task: tuple[str, int, int]) -> None:
        self.task, self.start = task, time.monotonic()
        self.connection.send(task)

    def overdue(self, limit_s: float) -> bool:
        return self.task is not None and time.monotonic() - self.start > limit_s

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _next_family(counts: Counter[str], quotas: Mapping[str, int]) -> str | None:
    # The family furthest behind its quota, or None if all quotas are complete.
    name = min(quotas, key=lambda family: counts[family] / quotas[family])
    return name if counts[name] < quotas[name] else None


def run(
    quotas: Mapping[str, int],
    *,
    seconds: float,
    seed: int,
    n_workers: int = 2,
    corpus: Path = CORPUS,
    package: str = PACKAGE,
    case_limit_s: float = CASE_LIMIT_S,
    report=print,
) -> Summary:
    """Run cases until all quotas are complete; start none after ``seconds``.

    A worker that dies, or that works on one case for more than ``case_limit_s``
    seconds, counts as a failure of that case and is replaced.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # read by the workers
    summary, given = Summary(), Counter()
    start = time.monotonic()
    workers = [_Worker(package) for _ in range(n_workers)]

    def finish(worker: _Worker, outcome: tuple[dict | None, str, str] | None) -> None:
        family, _, index = worker.task
        worker.task = None
        summary.counts[family] += 1
        if outcome is not None:
            failure = Failure(family, seed, index, *outcome)
            summary.failures.append(failure)
            path = failure.save(corpus)
            report(f"FAILED {family}, seed {seed}, case {index}: stored in {path}")
            report(failure.traceback.rstrip() or failure.error)

    def replace(worker: _Worker, reason: str) -> None:
        family, _, index = worker.task
        worker.stop()
        workers[workers.index(worker)] = _Worker(package)
        finish(worker, (draw_case(package, family, seed, index), reason, ""))

    try:
        while True:
            for worker in workers:
                if worker.task is None and time.monotonic() - start < seconds:
                    family = _next_family(given, quotas)
                    if family is not None:
                        worker.give((family, seed, given[family]))
                        given[family] += 1
            busy = {worker.connection: worker for worker in workers if worker.task}
            if not busy:
                break
            for connection in wait(list(busy), timeout=1.0):
                worker = busy[connection]
                try:
                    outcome = connection.recv()
                except (EOFError, ConnectionResetError):
                    worker.process.join()
                    code = worker.process.exitcode
                    replace(worker, f"The process died with exit code {code}.")
                else:
                    finish(worker, outcome)
            for worker in list(workers):
                if worker.overdue(case_limit_s):
                    replace(worker, f"No result after {case_limit_s:g} s.")
    finally:
        for worker in workers:
            worker.stop()
        summary.seconds = time.monotonic() - start
    return summary
