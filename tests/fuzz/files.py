"""Files that are damaged or truncated, and writers that fail or are killed.

For every format that the library writes and reads again: bits flip, bytes are missing
or appended, a folder replaces a file, the disk is full, a process is killed. Reading
then returns what was written, raises an error that names the file, or, for a file that
can be recomputed, finds nothing. A valid file is never lost.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

from normalign.data import _files as data_files
from normalign.data._files import RemoteFile, Source
from normalign.data._synthetic import xor_clusters
from normalign.nn import mlp
from normalign.training import Ensemble, Member
from normalign.training._checkpoint import read_checkpoint, write_checkpoint
from normalign.training.rules import SGD
from normalign_reproduction.context import Context, RunCache
from normalign_reproduction.files import load_cache
from normalign_reproduction.report.files import sync_files
from normalign_reproduction.robust import Recipe, RobustTrainer
from normalign_reproduction.spec import Record, Run
from normalign_reproduction.store import Store, read_archive, write_archive
from normalign_reproduction.worker import ProgressFile

MISSING = "missing"


def _values(seed: int) -> dict[str, Any]:
    """Return values of all types, different for each seed."""
    rng = np.random.default_rng(seed)
    return {
        "value": float(rng.normal()), "text": "ä" + str(seed), "none": None,
        "history": {"columns": {"epoch": [0, 1], "loss": rng.random(2).tolist()}},
        "rows": [{"a": int(rng.integers(9)), "b": True} for _ in range(2)],
    }  # fmt: skip


def _run(seed: int) -> Run:
    settings = {"rate": 0.1 + seed % 3, "name": "sgd", "sizes": [3, 4]}
    return Run("tiny", 1, "quick", "released", "mnist", settings, seed % 5)


RUN = _run(0)
MADE = {"commit": "abc", "seconds": 1.5, "batch": "f" * 12}


@dataclass(frozen=True)
class Format:
    """How a file is written and read.

    ``write(folder, seed)`` returns the file; ``read(file)`` what it holds, in a form
    that ``==`` compares, ``MISSING``, or raises. ``kept`` says whether a file that
    cannot be read must be unchanged afterwards.
    """

    write: Callable[[Path, int], Path]
    read: Callable[[Path], Any]
    kept: bool = True


def _tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(3, 2, generator=generator),
        "n": torch.randint(9, (4,), generator=generator),
        "h": torch.randn(3, generator=generator).bfloat16(),
    }


def _bits(tensors: dict[str, torch.Tensor]) -> Any:
    return {
        name: (str(v.dtype), list(v.shape), v.reshape(-1).view(torch.uint8).tolist())
        for name, v in tensors.items()
    }


def _write_checkpoint(folder: Path, seed: int) -> Path:
    write_checkpoint(folder / "c", _tensors(seed), _values(seed))
    return folder / "c"


def _read_checkpoint(path: Path) -> Any:
    found = read_checkpoint(path)
    return _bits(found.tensors), found.record


def _write_result(folder: Path, seed: int) -> Path:
    return Store(folder).write(RUN, _values(seed), MADE)


def _read_result(path: Path) -> Any:
    found = Store(path.parents[1]).read(RUN)
    return MISSING if found is None else (found.run, found.result, found.made)


def _records(seed: int) -> list[Record]:
    return [Record(_run(i), _values(seed + i), MADE) for i in range(3)]


def _write_archive(folder: Path, seed: int) -> Path:
    return write_archive(folder / "a.json", _records(seed), item="steady")


def _read_archive(path: Path) -> Any:
    before = _version(path)
    store = Store(path.parent / "own", archives=[path])
    through = [store.read(_run(i)) for i in range(3)]
    found = [(r.run, r.result, r.made) for r in read_archive(path)]
    if before == _version(path):  # not replaced by another process in between
        assert [(r.run, r.result, r.made) for r in through if r] == _in_order(found)
    return found


def _version(path: Path) -> tuple[int, int] | None:
    """Return what changes with every replacement, also by the same content."""
    if not path.is_file():
        return None
    status = path.stat()
    return status.st_ino, status.st_ctime_ns


def _in_order(found: list[Any]) -> list[Any]:
    return sorted(found, key=lambda parts: parts[0].seed)


def _kept_store(folder: Path) -> RunCache:
    return RunCache(Context(torch.device("cpu"), folder / "batch"))


def _write_kept_store(folder: Path, seed: int) -> Path:
    kept = _kept_store(folder)
    kept.put(RUN, _values(seed))
    return kept._path(RUN)


def _read_kept_store(path: Path) -> Any:
    found = _kept_store(path.parent).get(RUN)
    return MISSING if found is None else found


def _write_progress(folder: Path, seed: int) -> Path:
    with mock.patch.object(ProgressFile, "write"):
        progress = ProgressFile(folder / "0123456789ab.progress")
    progress._earlier, progress._written = 100.0 + seed, -1e9
    progress._start = 0.0
    with mock.patch("time.perf_counter", return_value=0.0):
        progress(_values(seed)["value"], "words")
    return progress.path


def _read_progress(path: Path) -> Any:
    found = load_cache(path)
    return MISSING if found is None else found


def _content(seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(300)


SOURCE_SEED = 77


def _source() -> Source:
    content = _content(SOURCE_SEED)
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    file = RemoteFile("set/data.bin", size=len(content), md5=digest)
    return Source("set", "a set", (file,), ("http://mirror",), "none", "nobody")


def _write_download(folder: Path, seed: int) -> Path:
    path = folder / "set" / "data.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_content(SOURCE_SEED))
    return path


def _read_download(path: Path) -> Any:
    """Fetch again: undamaged files stay, damaged ones are downloaded."""

    def download(file, urls, target, **options):
        target.write_bytes(_content(SOURCE_SEED))

    with mock.patch.object(data_files, "download", download):
        folder = data_files.fetch(_source(), data_dir=path.parents[1])
    return (folder / "set" / "data.bin").read_bytes()


def _write_list(folder: Path, seed: int) -> Path:
    (folder / "mine.txt").write_text("of somebody else")
    sync_files(folder, {f"{seed}.txt": "first", "both.txt": "1"}, list_name="list.json")
    return folder / "list.json"


def _read_list(path: Path) -> Any:
    """Write again: apart from one old file the result does not depend on the list."""
    sync_files(path.parent, {"both.txt": "2"}, list_name="list.json")
    assert (path.parent / "both.txt").read_text() == "2"
    assert (path.parent / "mine.txt").read_text() == "of somebody else"
    return MISSING


def _state(seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    return mlp([3, 4, 2], generator=generator)


@functools.cache
def _train_and_interrupt(kind: str) -> tuple[bytes, Any]:
    """Return a checkpoint from the middle of a run, and how the run ends."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run")
        with contextlib.suppress(ZeroDivisionError):
            TRAIN[kind](path, True)
        return path.read_bytes(), TRAIN[kind](None, False)


def _train_ensemble(path: Path | None, stop: bool) -> Any:
    task = xor_clusters(n_train=8, n_test=8, n_inputs=4)
    networks = [
        mlp([4, 3, 1], generator=torch.Generator().manual_seed(i)) for i in (0, 1)
    ]
    these = [Member(i, SGD(0.1, momentum=0.5)) for i in (0, 1)]
    ensemble = Ensemble(networks, task, these, loss="squared_error", epochs=3)

    def callback(i, row):
        if stop and row["epoch"] == 2:
            raise ZeroDivisionError

    trained = ensemble.train(checkpoint=path, checkpoint_seconds=0, callback=callback)
    return [(_bits(one.weights), repr(one.history.columns)) for one in trained]


def _train_robust(path: Path | None, stop: bool) -> Any:
    generator = torch.Generator().manual_seed(0)
    network = nn.Sequential(nn.Flatten(), _state(0))
    x = torch.rand(6, 1, 1, 3, generator=generator)
    recipe = Recipe("pgd", epochs=2, batch_size=3, n_steps=1, augment="none")
    trainer = RobustTrainer(network, x, torch.tensor([0, 1] * 3), recipe, seed=0)

    def progress(epoch, row):
        if stop and epoch == 2:
            raise ZeroDivisionError

    history = trainer.train(checkpoint=path, checkpoint_seconds=0, progress=progress)
    return _bits(trainer.network.state_dict()), history["epoch"], history["loss"]


TRAIN = {"ensemble": _train_ensemble, "robust": _train_robust}


def _trainer(kind: str) -> Format:
    def write(folder: Path, seed: int) -> Path:
        (folder / "run").write_bytes(_train_and_interrupt(kind)[0])
        return folder / "run"

    return Format(write, lambda path: TRAIN[kind](path, False))


FORMATS = {
    "checkpoint": Format(_write_checkpoint, _read_checkpoint),
    "result": Format(_write_result, _read_result),
    "archive": Format(_write_archive, _read_archive),
    "kept": Format(_write_kept_store, _read_kept_store),
    "progress": Format(_write_progress, _read_progress),
    "download": Format(_write_download, _read_download, kept=False),
    "list": Format(_write_list, _read_list, kept=False),
    "ensemble": _trainer("ensemble"),
    "robust": _trainer("robust"),
}
# Formats written by our own code only: a fault is reported or has no effect.
WRITTEN = ["checkpoint", "result", "archive", "kept"]
QUIET = ["progress"]  # an error while it is written is ignored
KILLED = ["checkpoint", "result", "archive", "kept"]


def draw(rng: np.random.Generator) -> dict:
    kind = str(rng.choice(["damage", "fault", "kill"], p=[0.74, 0.25, 0.01]))
    case: dict[str, Any] = {"kind": kind, "seed": int(rng.integers(1000))}
    if kind == "kill":
        case |= {
            "format": str(rng.choice(KILLED)), "wait": float(rng.uniform(0.01, 0.3)),
            "both": bool(rng.integers(2)),
        }  # fmt: skip
    elif kind == "fault":
        case |= {
            "format": str(rng.choice([*WRITTEN, *QUIET])),
            "at": int(rng.integers(7)), "old": bool(rng.integers(2)),
            "error": str(rng.choice(["ENOSPC", "EIO", "EDQUOT"])),
            "stays": bool(rng.integers(2)), "short": bool(rng.integers(2)),
        }  # fmt: skip
    else:
        slow = ["ensemble", "robust"]
        names = [name for name in FORMATS if name not in slow]
        case["format"] = str(rng.choice(slow if rng.random() < 0.05 else names))
        how = [
            "flip",
            "flip",
            "flip",
            "cut",
            "append",
            "empty",
            "folder",
            "json",
        ]
        case["how"] = str(rng.choice(how))
        # As shares of the length, which a change of the format may change.
        case["places"] = rng.random(2 if case["format"] in slow else 10).tolist()
        case["text"] = str(
            rng.choice(["deep", "NaN", "{}", "[]", "null", "\x00", "1e999", "huge"])
        )
    return case


def check(case: dict) -> None:
    with tempfile.TemporaryDirectory() as folder:
        CHECKS[case["kind"]](case, FORMATS[case["format"]], Path(folder))


def _damage(case: dict, content: bytes) -> bytes:
    how, places = case["how"], case["places"]
    if how == "flip":  # one bit, or several
        other = bytearray(content)
        for place in places:
            bit = int(place * 8 * len(other))
            other[bit // 8] ^= 1 << bit % 8
        return bytes(other)
    if how == "cut":
        return content[: int(places[0] * len(content))]
    if how == "append":
        more = hashlib.sha256(repr(places).encode()).digest()
        return content + [more, b"\n", b"}", content, b" "][int(places[0] * 5)]
    if how == "json":
        deep = "[" * 50_000 + "]" * 50_000
        text = {"deep": deep, "huge": "9" * 5000}.get(case["text"], case["text"])
        whole = [
            text,
            '{"a": %s}',
            '{"format": 1, "records": %s, "made": {}, "run": {}}',
            '{"format": 1, "key": 0, "run": {}, "result": %s, "made": {}}',
        ]
        shape = whole[int(places[0] * 4)]
        return (shape % text if "%s" in shape else shape).encode()
    assert how == "empty"
    return b""


def _outcome(form: Format, path: Path) -> tuple[Any, Exception | None]:
    try:
        return form.read(path), None
    except (ValueError, OSError) as error:
        return None, error


def _check_damage(case: dict, form: Format, folder: Path) -> None:
    several = [case["places"]]
    if case["how"] == "flip":  # most change one bit, the smallest possible damage
        several = [[place] for place in case["places"][1:]] + [case["places"]]
    for i, places in enumerate(several):
        inner = folder / str(i)
        inner.mkdir()
        _check_one_damage({**case, "places": places}, form, inner)


def _check_one_damage(case: dict, form: Format, folder: Path) -> None:
    path = form.write(folder, case["seed"])
    expected = (
        _train_and_interrupt(case["format"])[1] if case["format"] in TRAIN else None
    )
    if expected is None:
        expected = form.read(path)
    path = form.write(folder, case["seed"])  # reading may have changed it
    before = path.read_bytes()
    if case["how"] == "folder":
        path.unlink()
        path.mkdir()
        content = None
    else:
        content = _damage(case, before)
        path.write_bytes(content)
    found, error = _outcome(form, path)
    if error is None:
        assert found in (MISSING, expected), (found, expected)
    else:
        words = f"{error} {getattr(error, 'filename', '')}"
        assert path.name in words, f"the refusal does not name the file: {error!r}"
    if error is None and found == expected != MISSING:
        return
    if form.kept and content is not None:
        left = [p.read_bytes() for p in path.parent.iterdir() if p.is_file()]
        assert content in left, "the damaged file is gone"
    if case["how"] != "folder" and case["format"] not in TRAIN:
        # What is made again is stored and read again.
        path = form.write(folder, case["seed"])
        if form.kept:
            assert form.read(path) == expected


class _Faulty:
    """Makes the n-th file or system call fail, and all later ones if ``stays``."""

    def __init__(self, at: int, number: int, *, stays: bool, short: bool) -> None:
        self.at, self.number, self.stays, self.short = at, number, stays, short
        self.n, self.fired = 0, False

    def count(self) -> bool:
        self.n += 1
        fails = self.n == self.at + 1 or (self.stays and self.n > self.at)
        self.fired |= fails
        return fails

    def raise_error(self) -> None:
        raise OSError(self.number, os.strerror(self.number))

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        real_open, faulty = io.open, self

        class File:
            def __init__(self, file: Any) -> None:
                self._file = file

            def __getattr__(self, name: str) -> Any:
                return getattr(self._file, name)

            def __enter__(self) -> Any:
                return self

            def __exit__(self, *reason: object) -> None:
                self._file.close()

            def write(self, data: Any) -> int:
                if faulty.count():
                    if faulty.short:  # as much as there was space for
                        self._file.write(data[: len(data) // 2])
                        self._file.flush()
                    faulty.raise_error()
                return self._file.write(data)

        def opening(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            opened_file = real_open(file, mode, *arguments, **options)
            return File(opened_file) if set(mode) & set("wxa+") else opened_file

        def failing(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                if faulty.count():
                    faulty.raise_error()
                return real(*arguments, **options)

            return call

        with contextlib.ExitStack() as stack:
            patch = lambda *words: stack.enter_context(mock.patch(*words))  # noqa: E731
            patch("io.open", opening)
            patch("builtins.open", opening)
            for name in ("fsync", "replace", "write", "rename", "link", "chmod"):
                patch(f"os.{name}", failing(getattr(os, name)))
            yield


@contextlib.contextmanager
def _only(number: int) -> Iterator[None]:
    """Ignore one error of the system; others are raised."""
    try:
        yield
    except OSError as error:
        if error.errno != number:
            raise


def _check_fault(case: dict, form: Format, folder: Path) -> None:
    expected = []
    for seed in (case["seed"], case["seed"] + 1):
        with tempfile.TemporaryDirectory() as elsewhere:
            expected.append(form.read(form.write(Path(elsewhere), seed)))
    old, new = expected
    path = form.write(folder, case["seed"]) if case["old"] else None
    before = set(folder.rglob("*"))
    number = getattr(errno, case["error"])
    faulty = _Faulty(case["at"], number, stays=case["stays"], short=case["short"])
    written: Path | None = None
    with faulty.active(), _only(number):
        written = form.write(folder, case["seed"] + 1)
    quiet = case["format"] in QUIET
    if not faulty.fired:
        assert written is not None, "it failed without a fault"
    if path is None and written is None:
        left = [p for p in folder.rglob("*") if p.is_file()]
        # A fault after the replacement, of the folder's fsync, leaves the whole file.
        for file in left:
            assert form.read(file) == new, "a part of a file under its name"
        return
    file = path or written
    assert file is not None
    found = form.read(file) if file.exists() else MISSING
    allowed = [new] if written is not None and not quiet else [old, new]
    if quiet and path is None:
        allowed.append(MISSING)
    assert found in allowed, "neither the old file nor the new one"
    after = {p for p in folder.rglob("*") if p.is_file()} - {file}
    if not case["stays"]:  # a disk that fails for good cannot be tidied up
        assert after <= before, f"left behind: {after - before}"


def _check_kill(case: dict, form: Format, folder: Path) -> None:
    """Two processes write the same file until one or both are killed."""
    seeds = [case["seed"], case["seed"] + 1]
    expected = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as elsewhere:
            expected.append(form.read(form.write(Path(elsewhere), seed)))
    path = form.write(folder, seeds[0])
    children = []
    for seed in seeds:
        child = os.fork()
        if child == 0:
            try:
                while True:
                    form.write(folder, seed)
            finally:
                os._exit(1)
        children.append(child)
    try:
        end = time.monotonic() + case["wait"]
        while time.monotonic() < end:
            assert form.read(path) in expected, "read while it is written"
        os.kill(children[0], signal.SIGKILL)
        if not case["both"]:
            for _ in range(5):
                assert form.read(path) in expected, "read beside the other writer"
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    assert form.read(path) in expected
    assert form.read(form.write(folder, seeds[1])) == expected[1]


CHECKS = {"damage": _check_damage, "fault": _check_fault, "kill": _check_kill}
