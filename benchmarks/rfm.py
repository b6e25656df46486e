"""Recursive feature machines against xrfm and a plain transcription.

    python benchmarks/rfm.py               (a), (b), (c), (e): half an hour
    python benchmarks/rfm.py --only a,c --rounds 1
    python benchmarks/rfm.py --device cuda      (d), and (e) directly on the GPU
    python benchmarks/rfm.py --only e --against results/benchmarks/rfm-large-h200.json
    python benchmarks/rfm.py --device cuda --only f   ways of factorising, compared
    python benchmarks/rfm.py --device cuda --only h   a million rows
    python benchmarks/rfm.py --quick            little of each: does it run?

(a) Full fits in float32, five metric updates (two at n = 16000), Laplace kernel of
    bandwidth 10, ridge 0.001. Every fit is a process of its own, warmed up on 501 rows;
    the contestants take turns in an order that moves on by one, and the fastest of the
    rounds counts. The outputs of the fitted machines at 500 rows held out are compared
    with those of the plain transcription: the same work is timed.
(b) Peak memory of one cold fit of n = 16000 above what the imports left, data counted.
(c) Small tables in float64 and float32, in one process, by turns, medians: the
    estimator with all its checks, the recursion alone, and its Cholesky factors and
    solves alone by torch's LAPACK. A pause before each turn lets the threads of the one
    before fall asleep, and the first fit of a turn is not timed: it finds the caches
    full of another's.
(d) One iteration (kernel, solve, metric update) on a GPU: the median of what a run of
    four (ten up to n = 10000) takes between its iterations, data and results staying
    there. Up to n = 20000 the contestants take turns three times, each in a process of
    its own, and the fastest run counts: which launches wait for the host differs from
    process to process. The gradients are taken at 20000 rows at most by all of them;
    n = 100000 is ours alone.
(e) 150000 rows of ten columns through `max_leaf_size` on the CPU's cores: seconds, the
    memory of the process and its children together, AUC on 50000 more rows. On CUDA the
    same table by the direct fit, and `--against` compares the two.

(f) Ways of factorising on a GPU (`--variant` names some of them), in one process by
    turns: milliseconds of the kernel, the factor, the solve and the metric's update,
    and the residual |K a + ridge a - y| / |y| of the solve, by float64 products.

(h) A million rows of the same kind, divided as the estimators divide them unless told.

Who the contestants are, and how xrfm is made to do the same work: rfm_peers.py. The
last line is JSON; with --save the file is written anew after every row.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rfm_peers import AGOP_POINTS, relative_difference

from normalign_reproduction.provenance import commit

WORKER = Path(__file__).with_name("rfm_peers.py")
CONTESTANTS = ("ours", "xrfm", "xrfm cholesky", "plain")
# Root mean square, relative: float32 against itself in another order; and where the
# gradients are taken at 20000 rows that each contestant draws its own way.
AGREE, AGREE_SAMPLED = 5e-3, 3e-2
Row = dict[str, Any]


# --- one job, one process ---------------------------------------------------------


def measured(job: str, **settings: Any) -> Row:
    """Run a job by itself; a failure becomes a row that says so."""
    command = [sys.executable, str(WORKER), json.dumps({"job": job, **settings})]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    watch = Watch(child.pid)
    output, complaints = child.communicate()
    highest = watch.highest()
    if child.returncode:
        lines = complaints.strip().splitlines() or [f"exit {child.returncode}"]
        return {"failed": lines[-1]}
    found = json.loads(output.splitlines()[-1])
    if isinstance(found, dict):
        found["tree_megabytes"] = highest / 2**20
    return found


class Watch:
    """The largest memory that a process and its descendants held together.

    Shared pages are counted once (proportional set size), four times a second.
    """

    def __init__(self, pid: int) -> None:
        self.pid, self.seen, self.over = pid, 0, threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self) -> None:
        while not self.over.wait(0.25):
            held = sum(proportional(pid) for pid in family(self.pid))
            self.seen = max(self.seen, held)

    def highest(self) -> int:
        self.over.set()
        self.thread.join()
        return self.seen


def family(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            below = children.read_text().split()
        except OSError:  # it has ended in the meantime
            continue
        for child in below:
            yield from family(int(child))


def proportional(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


# --- the parts --------------------------------------------------------------------


def fits(options: argparse.Namespace) -> Iterator[Row]:
    """(a) Full fits by turns."""
    cases = [(2000, 30, 2, 5), (4000, 30, 2, 5), (8000, 30, 2, 5), (2000, 60, 100, 5),
             (16000, 30, 2, 2)]  # fmt: skip
    if options.quick:
        cases = [(600, 20, 40, 1)]
    header("(a) full fit", CONTESTANTS, "s")
    for n, d, k, n_iter in cases:
        rounds = 1 if options.quick or n >= 16000 else options.rounds or 3
        row: Row = {"n": n, "d": d, "k": k, "n_iter": n_iter, "rounds": rounds}
        turns: dict[str, list[Row]] = {name: [] for name in CONTESTANTS}
        with tempfile.TemporaryDirectory() as folder:
            for turn in range(rounds):
                for name in rotated(CONTESTANTS, turn):
                    turns[name].append(
                        measured(
                            "fit", peer=name, n=n, d=d, k=k, n_iter=n_iter, warm=True,
                            outputs=stored(folder, name),
                        )
                    )  # fmt: skip
            row["seconds"] = {name: least(turns[name]) for name in CONTESTANTS}
            row["each"] = turns
            row |= agreement(folder, CONTESTANTS, "plain")
        show(row, CONTESTANTS)
        yield row


def memories(options: argparse.Namespace) -> Iterator[Row]:
    """(b) Peak memory of one cold fit."""
    n, d, k, n_iter = (800, 20, 2, 1) if options.quick else (16000, 30, 2, 1)
    header("(b) peak above import", CONTESTANTS, "MB")
    row: Row = {"n": n, "d": d, "k": k, "n_iter": n_iter}
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            name: measured(
                "fit", peer=name, n=n, d=d, k=k, n_iter=n_iter, warm=False,
                outputs=stored(folder, name),
            )
            for name in CONTESTANTS
        }  # fmt: skip
        row["megabytes"] = {name: run.get("megabytes") for name, run in runs.items()}
        row["each"] = runs
        row |= agreement(folder, CONTESTANTS, "plain")
    show(row, CONTESTANTS, quantity="megabytes")
    yield row


def small_tables(options: argparse.Namespace) -> Iterator[Row]:
    """(c) Small tables in one process."""
    sizes, rounds = ([100, 300], 2) if options.quick else ([100, 300, 700, 1400], 21)
    names = ("ours", "core", "factors", "plain")
    header("(c) small tables", names, "ms")
    found = measured(
        "small", sizes=sizes, d=20, k=3, n_iter=5, rounds=options.rounds or rounds
    )
    for row in found if isinstance(found, list) else [found]:
        if "failed" not in row:
            agreed = max(row["differs"].values()) < AGREE
            row |= {"agree": agreed, "faster": ratios(row["milliseconds"])}
        show(row, names, quantity="milliseconds")
        yield row


def iterations(options: argparse.Namespace) -> Iterator[Row]:
    """(d) Single iterations on a GPU."""
    names = ("core", "xrfm", "xrfm cholesky")
    sizes = [5000, 10000, 20000, 40000, 100000]
    if options.quick:
        sizes = [2000]
    header("(d) one iteration", names, "s")
    for n in sizes:
        alone = n > 40000
        # what takes milliseconds is taken more often
        n_iter = 1 if alone else 3 if n > 10000 else 9
        rounds = 1 if options.quick or n > 20000 else options.rounds or 3
        row: Row = {"n": n, "d": 30, "k": 2, "n_iter": n_iter, "rounds": rounds}
        present = names[:1] if alone else names
        turns: dict[str, list[Row]] = {name: [] for name in present}
        with tempfile.TemporaryDirectory() as folder:
            for turn in range(rounds):
                for name in rotated(present, turn):
                    turns[name].append(
                        measured(
                            "iteration", peer=name, n=n, d=30, k=2, n_iter=n_iter,
                            device=options.device, outputs=stored(folder, name),
                        )
                    )  # fmt: skip
            row["seconds"] = {name: least(turns[name]) for name in present}
            row["each"] = turns
            limit = AGREE_SAMPLED if n > AGOP_POINTS else AGREE
            row |= agreement(folder, present, "core", limit)
        show(row, present)
        yield row


def large(options: argparse.Namespace) -> Iterator[Row]:
    """(e) The large table, through leaves or directly."""
    cuda = options.device == "cuda"
    n, n_test, leaf = (150_000, 50_000, None if cuda else options.leaf)
    if options.quick:
        n, n_test, leaf = 3000, 2000, None if cuda else 1000
    print(f"\n(e) {n} x 10, {'direct' if cuda else f'leaves of at most {leaf}'}")
    row = fitted_large(options, n, n_test, leaf)
    if "failed" not in row and options.against:
        row["behind"] = behind(options.against, row)
        print(f"    {row['behind']:+.2f} points of AUC behind the direct fit")
    yield row


def million(options: argparse.Namespace) -> Iterator[Row]:
    """(h) A million rows, divided as the estimators divide them unless told."""
    n, n_test = (25_000, 2000) if options.quick else (1_000_000, 50_000)
    print(f"\n(h) {n} x 10, as is usual there")
    yield fitted_large(options, n, n_test, "auto")


def fitted_large(
    options: argparse.Namespace, n: int, n_test: int, leaf: int | str | None
) -> Row:
    row = measured(
        "large", n=n, n_test=n_test, device=options.device, leaf=leaf,
        n_jobs=None if options.device == "cuda" else os.cpu_count(), **LARGE,
    )  # fmt: skip
    if "failed" in row:
        print(f"    {row['failed']}")
        return row
    print(
        f"    fit {row['fit_seconds']:.0f} s, predict {row['predict_seconds']:.1f}"
        f" s, {row['tree_megabytes']:.0f} MB, AUC {100 * row['auc']:.2f} (of the "
        f"best possible {100 * row['best_auc']:.2f})",
        flush=True,
    )
    return row


def factors(options: argparse.Namespace) -> Iterator[Row]:
    """(f) Ways of factorising on a GPU."""
    sizes = [5000, 10000, 20000, 40000]
    if options.quick:
        sizes = [700]
    names = tuple(VARIANTS) if options.variant is None else tuple(options.variant)
    print("\n(f) factorisation, ms: kernel + factor + solve + update = all; residual")
    for n in sizes:
        found = measured(
            "factor", n=n, d=30, k=2, device=options.device, rounds=options.rounds or 4,
            variants={name: VARIANTS[name] for name in names},
        )  # fmt: skip
        for row in found if isinstance(found, list) else [found]:
            if "failed" in row:
                print(f"    {row['failed']}", flush=True)
            else:
                spent = row["milliseconds"]
                steps = " + ".join(f"{spent[step]:8.2f}" for step in spent)
                print(
                    f"n = {n:6} {row['variant']:18} {steps} ="
                    f" {sum(spent.values()):8.2f}   {row['residual']:.1e}",
                    flush=True,
                )
            yield row


# How `normalign.kernels._triangle` is set for each: columns of a panel, rows that the
# device's library factorises at once, whether the next diagonal block is done beside
# the products, rows up to which the square is factorised by one call, and whether
# there are kernels for diagonal blocks and for products in half precision.
VARIANTS = {
    "kernels": {
        "width": 1024, "strip": 1024, "ahead": True, "small": 0, "kernels": True,
    },
    "kernels in turn": {
        "width": 1024, "strip": 1024, "ahead": False, "small": 0, "kernels": True,
    },
    "kernels narrow": {
        "width": 512, "strip": 1024, "ahead": True, "small": 0, "kernels": True,
    },
    "library": {
        "width": 1024, "strip": 1024, "ahead": True, "small": 0, "kernels": False,
    },
    "library nested": {
        "width": 1024, "strip": 256, "ahead": True, "small": 0, "kernels": False,
    },
    "square": {
        "width": 1024, "strip": 1024, "ahead": False, "small": 40000, "kernels": False,
    },
}  # fmt: skip
LARGE = {"bandwidth": 10.0, "ridge": 0.3, "n_iter": 2}


def behind(path: Path, row: Row) -> float:
    """Points of AUC by which a row is worse than the direct fit of a stored run."""
    records = json.loads(path.read_text())["records"]
    same = ("n", "n_test", "bandwidth", "ridge", "n_iter")
    for direct in records.get("e", []):
        if "auc" in direct and all(direct[name] == row[name] for name in same):
            return 100 * (direct["auc"] - row["auc"])
    sys.exit(f"--against must be a stored run of the same table, got {path}")


PARTS = {
    "a": fits,
    "b": memories,
    "c": small_tables,
    "d": iterations,
    "e": large,
    "f": factors,
    "h": million,
}


# --- tables -----------------------------------------------------------------------


def rotated(names: tuple[str, ...], turn: int) -> tuple[str, ...]:
    cut = turn % len(names)
    return names[cut:] + names[:cut]


def stored(folder: str, name: str) -> str:
    return str(Path(folder) / f"{name.replace(' ', '-')}.npy")


def least(runs: list[Row]) -> float | None:
    return min((run["seconds"] for run in runs if "seconds" in run), default=None)


def agreement(
    folder: str, names: tuple[str, ...], reference: str, limit: float = AGREE
) -> Row:
    """How far the outputs of each are from those of one of them."""
    base = stored(folder, reference)
    differs = {
        name: relative_difference(base, stored(folder, name))
        for name in names
        if name != reference and Path(base).exists()
        if Path(stored(folder, name)).exists()
    }
    return {"differs": differs, "agree": all(by < limit for by in differs.values())}


def ratios(values: dict[str, float | None]) -> dict[str, float]:
    """How many times more the others need than the first of them that is ours."""
    own = next((values[name] for name in ("ours", "core") if values.get(name)), None)
    if own is None:
        return {}
    return {
        name: value / own
        for name, value in values.items()
        if value and name not in ("ours", "core", "factors")
    }


def header(title: str, names: tuple[str, ...], unit: str) -> None:
    columns = "".join(f"{f'{name}, {unit}':>20}" for name in names)
    print(f"\n{title:32}{columns}   times ours", flush=True)


def show(row: Row, names: tuple[str, ...], quantity: str = "seconds") -> None:
    if "failed" in row:
        print(f"    {row['failed']}", flush=True)
        return
    row.setdefault("faster", ratios(row[quantity]))
    line = f"n = {row['n']}, d = {row['d']}, k = {row['k']}, {row['n_iter']} updates"
    line = f"{line} {row.get('dtype', '')}".ljust(32)
    for name in names:
        value = row[quantity].get(name)
        line += f"{value:20.4g}" if value is not None else f"{'failed':>20}"
    line += "   " + ", ".join(f"{by:.1f}" for by in row["faster"].values())
    print(line + ("" if row["agree"] else f"   DIFFERENT {row['differs']}"), flush=True)
    for name, run in row.get("each", {}).items():
        for one in run if isinstance(run, list) else [run]:
            if "failed" in one:
                print(f"    {name}: {one['failed']}", flush=True)


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # a folder on PYTHONPATH says nothing of itself
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--quick", action="store_true", help="little of each part")
    parser.add_argument("--rounds", type=int, help="instead of each part's own number")
    parser.add_argument("--against", type=Path, help="a stored run with a direct (e)")
    parser.add_argument("--leaf", type=int, default=8000, help="max_leaf_size of (e)")
    parser.add_argument(
        "--variant", action="append", choices=list(VARIANTS), help="only these of (f)"
    )
    parser.add_argument("--save", type=Path, help="write the JSON to this file too")
    parser.add_argument("--commit", help="what is measured, where git cannot tell")
    options = parser.parse_args()
    usual = "d,e" if options.device == "cuda" else "a,b,c,e"
    parts = (options.only or usual).split(",")
    if not set(parts) <= set(PARTS):
        parser.error(f"--only must be some of {','.join(PARTS)}, got {options.only}")
    cuda = options.device == "cuda"
    records: dict[str, list[Row]] = {}
    result = {
        "benchmark": "rfm", "quick": options.quick,
        "device": torch.cuda.get_device_name() if cuda else platform.machine(),
        "threads": torch.get_num_threads(), "cores": os.cpu_count(),
        "torch": torch.__version__, "python": platform.python_version(),
        "xrfm": installed("xrfm"),
        "commit": options.commit or commit(),
        "agree": AGREE, "records": records,
    }  # fmt: skip
    start = time.perf_counter()
    for part in parts:
        records[part] = []
        for row in PARTS[part](options):
            records[part].append(row)
            result["seconds"] = time.perf_counter() - start
            if options.save:
                options.save.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    if any(broken(row) for rows in records.values() for row in rows):
        sys.exit(1)


def broken(row: Row) -> bool:
    """Whether we failed, or timed other work than the others did."""
    runs = row.get("each", {})
    own = runs.get("ours") or runs.get("core") or []
    failed = any("failed" in run for run in (own if isinstance(own, list) else [own]))
    return failed or "failed" in row or not row.get("agree", True)


if __name__ == "__main__":
    main()
