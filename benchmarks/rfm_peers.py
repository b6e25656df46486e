"""One measurement of `benchmarks/rfm.py`, in a process that does nothing else.

The contestants fit the same machine: Laplace kernel, full metric, identity at the
start, trace d after every update, the paper's Algorithm 1.

``ours``           `normalign.estimators.RFMRegressor`, with all its checks
``core``           `normalign.kernels.recursions` alone, tensors in and out
``xrfm``           the RFM of the package xrfm, its default solver (LU)
``xrfm cholesky``  the same with its Cholesky option
``plain``          the transcription of the algorithm that the tests have as oracle

xrfm divides the metric by its largest entry; here it is scaled to trace d instead (two
d x d products an update), or its bandwidth would mean something else. Its early
stopping and its choice of the best iteration are off: every contestant does all of the
updates. It scores each iteration on validation rows, of which it gets eight.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

BANDWIDTH, RIDGE = 10.0, 1e-3
HELD_OUT = 500
AGOP_POINTS = 20_000
# Seconds of idling before a turn on a small table: threads of the one before look for
# more work for a while, and would take a core from those of the next.
SETTLE = 0.02

Predict = Callable[[Tensor], Tensor]
Tick = Callable[[], None]
Fit = Callable[[Tensor, Tensor, int, Tick], Predict]


# --- tables -----------------------------------------------------------------------


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def table(n: int, d: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Normal inputs, one-hot classes that a few directions decide, rows held out."""
    x = torch.randn(n + HELD_OUT, d, generator=seeded(0))
    hidden = torch.tanh(x @ torch.randn(d, 6, generator=seeded(1)) / d**0.5)
    hidden = torch.cat([hidden, hidden[:, :3] * hidden[:, 3:]], dim=1)
    scores = hidden @ torch.randn(9, k, generator=seeded(2))
    y = torch.nn.functional.one_hot(scores.argmax(1), k).to(x.dtype)
    return x[:n], y[:n], x[n:]


def large_table(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ten columns, two noisy classes: features, labels, and P(y = 1 | x).

    A ring, a product, a wave and a step in rotated and skewed columns of different
    kinds; two columns carry nothing. The best possible AUC is that of P itself.
    """
    rng = np.random.default_rng(4)
    z = rng.standard_normal((n, 10))
    ring = np.hypot(z[:, 0], z[:, 1]) - 1.2
    product = z[:, 2] * z[:, 3]
    wave = np.sin(2.0 * z[:, 4] + z[:, 0])
    step = (z[:, 5] + 0.5 * z[:, 6] > 0.3) - 0.5
    slope = 0.4 * z[:, 7]
    logit = 1.6 * (1.3 * ring + product + wave + 1.5 * step + slope)
    chance = 1 / (1 + np.exp(-logit))
    y = (rng.random(n) < chance).astype(np.int64)
    mixing = np.eye(10)
    mixing[:8, :8] += 0.25 * rng.standard_normal((8, 8))
    x = z @ mixing
    x[:, 1] = np.exp(0.3 * x[:, 1])
    x[:, 6] = np.round(2 * x[:, 6])
    x = (x - x.mean(0)) / x.std(0)
    return x.astype(np.float32), y, chance


# --- contestants ------------------------------------------------------------------


def ours() -> Fit:
    from normalign.estimators import RFMRegressor

    def fit(x: Tensor, y: Tensor, n_iter: int, tick: Tick) -> Predict:
        dtype = str(x.dtype).removeprefix("torch.")
        machine = RFMRegressor(
            bandwidth=BANDWIDTH, ridge=RIDGE, n_iter=n_iter, center=False,
            dtype=dtype, device=x.device.type, random_state=0,
        )  # fmt: skip
        machine.fit(x.numpy(), y.numpy())
        return lambda z: torch.as_tensor(machine.predict(z.numpy()))

    return fit


def core() -> Fit:
    from normalign.kernels import Laplace, initial_metric, recursions

    def fit(x: Tensor, y: Tensor, n_iter: int, tick: Tick) -> Predict:
        machine: Any = None
        for iteration in recursions(
            x, y, kernel=Laplace(bandwidth=BANDWIDTH), ridge=RIDGE, n_iter=n_iter,
            metric=initial_metric(x, identity_weight=1.0), agop_samples=AGOP_POINTS,
            generator=seeded(0),
        ):  # fmt: skip
            tick()
            machine = iteration.machine
            del iteration  # the buffers behind it are used again
        return machine

    return fit


def xrfm(solver: str = "solve") -> Fit:
    from xrfm.rfm_src import RFM

    class SameScale(RFM):
        """xrfm's machine with the metric at trace d."""

        def fit_M(self, samples: Tensor, *given: Any, **options: Any) -> None:
            super().fit_M(samples, *given, **options)
            scale = len(self.M) / self.M.trace()
            self.M, self.sqrtM = self.M * scale, self.sqrtM * scale.sqrt()

    def fit(x: Tensor, y: Tensor, n_iter: int, tick: Tick) -> Predict:
        machine = SameScale(
            "l2", iters=n_iter, bandwidth=BANDWIDTH, device=x.device.type,
            verbose=False, solver=solver,
        )  # fmt: skip
        # Above 20000 rows all contestants take the gradients at 20000; xrfm takes one
        # batch more than it is told.
        few = len(x) > AGOP_POINTS
        machine.fit(
            (x, y), (x[:8], y[:8]), reg=RIDGE, iters=n_iter, verbose=False,
            early_stop_rfm=False, return_best_params=False, tuning_metric="mse",
            M_batch_size=AGOP_POINTS // 2 if few else None,
            total_points_to_sample=AGOP_POINTS // 2 if few else None,
            callback=lambda iteration: tick(),
        )  # fmt: skip
        return machine.predict

    return fit


def plain() -> Fit:
    # One copy of the plain algorithm: the oracle that stands with the tests.
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kernels"))
    import transcription

    def fit(x: Tensor, y: Tensor, n_iter: int, tick: Tick) -> Predict:
        machines = transcription.rfm(
            x, y, ridge=RIDGE, n_iter=n_iter, bandwidth=BANDWIDTH
        )
        metric, coef = machines[-1]
        return lambda z: transcription.outputs(z, x, coef, metric, bandwidth=BANDWIDTH)

    return fit


PEERS: dict[str, Callable[[], Fit]] = {
    "ours": ours,
    "core": core,
    "xrfm": xrfm,
    "xrfm cholesky": lambda: xrfm("cholesky"),
    "plain": plain,
}


# --- jobs -------------------------------------------------------------------------


def memory(row: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(row))
    return 1024 * int(line.split()[1])


def nothing() -> None:
    """The tick of who does not look at the clock between iterations."""


def fit_job(
    *, peer: str, n: int, d: int, k: int, n_iter: int, warm: bool, outputs: str
) -> dict[str, Any]:
    """A full fit: seconds, and peak memory above what the imports left."""
    fit = PEERS[peer]()
    torch.zeros(64, 64) @ torch.zeros(64, 64)  # the threads and buffers of any user
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports
    held = memory("VmRSS")
    x, y, z = table(n, d, k)
    first = time.perf_counter()
    if warm:
        fit(x[: HELD_OUT + 1], y[: HELD_OUT + 1], 1, nothing)
    start = time.perf_counter()
    predict = fit(x, y, n_iter, nothing)
    seconds = time.perf_counter() - start
    peak = memory("VmHWM") - held
    np.save(outputs, predict(z).numpy())
    return {
        "seconds": seconds,
        "first_call_seconds": start - first,
        "megabytes": peak / 2**20,
    }


def regularised(x: Tensor) -> Tensor:
    """The kernel of a table's rows with the ridge, as at the start of every fit."""
    kernel = torch.exp(-torch.cdist(x, x) / BANDWIDTH)
    kernel.diagonal().add_(RIDGE)
    return kernel


def factorised(kernel: Tensor, y: Tensor, n_iter: int) -> None:
    """LAPACK's Cholesky factors and solves of a fit, and nothing else of it."""
    for _ in range(n_iter + 1):
        torch.cholesky_solve(y, torch.linalg.cholesky_ex(kernel)[0])


def idle(seconds: float) -> None:
    """Wait without falling asleep, from which a processor needs time to wake."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def small_job(
    *, sizes: list[int], d: int, k: int, n_iter: int, rounds: int
) -> list[dict[str, Any]]:
    """Fits of small tables, the contestants by turns, medians in milliseconds.

    Beside them, as ``factors``, what no direct solver does without.
    """
    names = ("plain", "ours", "core")
    fits = {name: PEERS[name]() for name in names}
    rows = []
    for dtype in (torch.float64, torch.float32):
        for n in sizes:
            x, y, z = (part.to(dtype) for part in table(n, d, k))
            found = {name: fits[name](x, y, n_iter, nothing)(z) for name in names}
            work = {name: partial(fits[name], x, y, n_iter, nothing) for name in names}
            work["factors"] = partial(factorised, regularised(x), y, n_iter)
            spent: dict[str, list[float]] = {name: [] for name in work}
            for turn in range(rounds):
                order, first = list(work), turn % len(work)
                for name in order[first:] + order[:first]:
                    idle(SETTLE)
                    work[name]()  # whose caches are not the last one's
                    start = time.perf_counter()
                    work[name]()
                    spent[name].append(1e3 * (time.perf_counter() - start))
            size = found["plain"].square().mean().sqrt()
            rows.append({
                "n": n, "d": d, "k": k, "n_iter": n_iter,
                "dtype": str(dtype).removeprefix("torch."),
                "milliseconds": {m: statistics.median(spent[m]) for m in work},
                "differs": {
                    m: float((found[m] - found["plain"]).square().mean().sqrt() / size)
                    for m in names[1:]
                },
            })  # fmt: skip
    return rows


def iteration_job(
    *, peer: str, n: int, d: int, k: int, n_iter: int, device: str, outputs: str
) -> dict[str, Any]:
    """Seconds of single iterations, kernel and solve and metric update."""
    fit = PEERS[peer]()
    x, y, z = (part.to(device) for part in table(n, d, k))
    wait = torch.cuda.synchronize if device == "cuda" else nothing
    ticks: list[float] = []

    def tick() -> None:
        wait()
        ticks.append(time.perf_counter())

    fit(x[:2000], y[:2000], 1, tick)  # cuBLAS, cuSOLVER, compiled kernels
    ticks.clear()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    predict = fit(x, y, n_iter, tick)
    wait()
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None
    np.save(outputs, predict(z).cpu().numpy())
    spent = [b - a for a, b in itertools.pairwise(ticks)]
    return {"seconds": statistics.median(spent), "each": spent, "megabytes": peak}


def factor_job(
    *, n: int, d: int, k: int, device: str, rounds: int,
    variants: dict[str, dict[str, Any]],
) -> list[dict[str, Any]]:  # fmt: skip
    """Milliseconds of the parts of an iteration, for each way of factorising."""
    from normalign.kernels import Laplace, _precision, _triangle, cuda

    x, y, _ = (part.to(device) for part in table(n, d, k))
    rows: dict[str, dict[str, Any]] = {}
    spent: dict[str, list[list[float]]] = {name: [] for name in variants}
    for turn in range(rounds + 1):
        for name, setting in variants.items():
            _triangle._DEVICE_WIDTH = setting["width"]
            _triangle._DEVICE_STRIP = setting["strip"]
            _triangle._DEVICE_AHEAD = setting["ahead"]
            _triangle._DEVICE_SMALL = setting["small"]
            _triangle.kernels_for = _precision.kernels_for = (
                cuda.kernels_for if setting["kernels"] else lambda tensor: None
            )
            times, coef = one_iteration(x, y, Laplace(bandwidth=BANDWIDTH))
            if turn:  # the first is for handles, workspaces, the allocator
                spent[name].append(times)
            else:
                rows[name] = {"n": n, "variant": name, **setting}
                rows[name]["residual"] = residual(x, y, coef)
    for name, row in rows.items():
        row["milliseconds"] = {
            step: 1e3 * statistics.median(times)
            for step, times in zip(
                ("kernel", "factor", "solve", "update"),
                zip(*spent[name], strict=True),
                strict=True,
            )
        }
    return list(rows.values())


def one_iteration(x: Tensor, y: Tensor, kernel: Any) -> tuple[list[float], Tensor]:
    """Seconds of the four steps, and the coefficients."""
    from normalign.kernels import System, _solve
    from normalign.kernels._agop import centred_agop
    from normalign.kernels._precision import full_precision
    from normalign.kernels._sides import middle

    wait = torch.cuda.synchronize if x.device.type == "cuda" else nothing
    points = x - middle(x)
    metric = torch.eye(x.shape[1], device=x.device)
    system = System(points, kernel, metric, torch.full_like(x[:, 0], RIDGE))
    held = _solve._allocate(system, 1 << 60)
    ticks = []

    def tick() -> None:
        wait()
        ticks.append(time.perf_counter())

    with full_precision(x.device):
        tick()
        _solve.fill_(held, system)
        held.add_diagonal_(system.ridges)
        tick()
        if not held.factorise_():
            sys.exit("the matrix is not definite")
        tick()
        coef = held.solve_(y.clone())
        tick()
        some = slice(0, AGOP_POINTS)
        sides = system.sides
        centred_agop(
            points[some], points, coef, kernel, (sides[some], sides), metric=metric,
            weights=None, diagonal=False,
        )  # fmt: skip
        tick()
    return [b - a for a, b in itertools.pairwise(ticks)], coef


def residual(x: Tensor, y: Tensor, coef: Tensor) -> float:
    """How far the solution is from solving the system, in float64 products."""
    from normalign.kernels import Laplace, expansion

    x, coef = x.double(), coef.double()
    found = expansion(x, x, coef, Laplace(bandwidth=BANDWIDTH)) + RIDGE * coef
    return float((found - y).norm() / y.norm())


def large_job(
    *, n: int, n_test: int, device: str, leaf: int | str | None, n_jobs: int | None,
    bandwidth: float, ridge: float, n_iter: int,
) -> dict[str, Any]:  # fmt: skip
    """The large table through leaves, or directly when `leaf` is None."""
    from sklearn.metrics import roc_auc_score

    from normalign.estimators import RFMClassifier

    x, y, chance = large_table(n + n_test)
    machine = RFMClassifier(
        bandwidth=bandwidth, ridge=ridge, n_iter=n_iter, max_leaf_size=leaf,
        device=device, n_jobs=n_jobs, random_state=0,
    )  # fmt: skip
    start = time.perf_counter()
    machine.fit(x[:n], y[:n])
    fitted = time.perf_counter()
    score = machine.decision_function(x[n:])
    done = time.perf_counter()
    return {
        "n": n, "n_test": n_test, "max_leaf_size": leaf, "device": device,
        "bandwidth": bandwidth, "ridge": ridge, "n_iter": n_iter,
        "fit_seconds": fitted - start, "predict_seconds": done - fitted,
        "auc": roc_auc_score(y[n:], score),
        "best_auc": roc_auc_score(y[n:], chance[n:]),
        "gpu_megabytes": torch.cuda.max_memory_allocated() / 2**20
        if device == "cuda" else None,
        "report": str(getattr(machine, "solver_", "")),
    }  # fmt: skip


JOBS: dict[str, Callable[..., Any]] = {
    "fit": fit_job,
    "small": small_job,
    "iteration": iteration_job,
    "factor": factor_job,
    "large": large_job,
}


def relative_difference(one: str, other: str) -> float:
    """Root mean square of the difference of two stored outputs over that of one."""
    a, b = np.load(one).astype(np.float64), np.load(other).astype(np.float64)
    return math.sqrt(((a - b) ** 2).mean() / (a**2).mean())


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    print(json.dumps(JOBS[job.pop("job")](**job)))
