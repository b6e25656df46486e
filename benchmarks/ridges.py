"""One eigendecomposition against a Cholesky factor per ridge, by number of rows.

    python benchmarks/ridges.py --save results/benchmarks/ridges-cpu.json

How many Cholesky solves (kernel filled, factorised, solved for three outputs, float32)
one float64 eigendecomposition of the same kernel costs. `kernels/_solve.py` shares a
factorisation where there are more ridges than that.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from normalign.kernels import Laplace, Solver, kernel_matrix
from normalign.kernels._solve import solve
from normalign.kernels._system import System
from normalign_reproduction.provenance import commit


def best(work: Callable[[], object], rounds: int) -> float:
    """Seconds of the fastest of some rounds, after one that warms up."""
    work()
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


def row(n: int, rounds: int) -> dict[str, float]:
    """Both times at one size."""
    x = torch.randn(n, 20, generator=torch.Generator().manual_seed(0))
    y = x[:, :3].contiguous()
    system = System(x, Laplace(10.0), torch.eye(20), torch.full((n,), 1e-3))
    matrix = kernel_matrix(x, x, system.kernel).double()
    direct = best(lambda: solve(system, y, Solver("cholesky")), rounds)
    shared = best(lambda: torch.linalg.eigh(matrix), rounds)
    return {"n": n, "cholesky_s": direct, "eigh_s": shared, "ratio": shared / direct}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--commit", default="")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    sizes = (100, 300) if options.quick else (100, 300, 700, 1500, 2500)
    rows = []
    print("    n  Cholesky ms  eigh ms  ratio")
    for n in sizes:
        one = row(n, options.rounds)
        rows.append(one)
        print(
            f"{n:5d}  {1e3 * one['cholesky_s']:11.2f}  {1e3 * one['eigh_s']:7.1f}  "
            f"{one['ratio']:5.1f}"
        )
    outcome = {
        "benchmark": "ridges",
        "commit": options.commit or commit(),
        "device": platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "rows": rows,
    }
    if options.save:
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps(outcome, indent=1) + "\n")
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
