"""Memory told beforehand: it bounds what is taken, and grows as it should."""

import os
import subprocess
import sys

import pytest
import torch

from normalign.kernels import estimate_memory
from normalign.kernels.memory import available_bytes

MEASURE = """
import torch
from normalign.kernels import Laplace, recursions
n, d, k = 6000, 20, 2
x, y = torch.randn(n, d), torch.randn(n, k)
small = slice(0, 2000)
def fit(x, y):
    settings = dict(kernel=Laplace(), ridge=1e-3, metric=torch.eye(d), n_iter=1)
    for _ in recursions(x, y, **settings): pass
fit(x[small], y[small])  # imports and thread pools are not what is measured
open("/proc/self/clear_refs", "w").write("5")  # forget the peak of the imports
def held(what):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) * 1024
before = held("VmRSS")
fit(x, y)
print(held("VmHWM") - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_fit_takes_what_was_estimated():
    # nothing may be compiled there, which takes memory, and gives it back, on its own
    plain = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True,
        env=plain,
    )  # fmt: skip
    taken, told = int(done.stdout), estimate_memory(6000, 20, 2)
    square = 4 * 6000**2
    # the small fit before has already paid for tiles and tables
    assert 0.8 * square / 2 < taken < 1.1 * told
    assert told < 0.75 * square


def test_more_of_anything_takes_more():
    base = estimate_memory(3000, 20, 2)
    assert estimate_memory(6000, 20, 2) > 3 * base
    assert estimate_memory(3000, 40, 2) > base
    assert estimate_memory(3000, 20, 8) > base
    assert estimate_memory(3000, 20, 2, dtype=torch.float64) == 2 * base
    assert estimate_memory(100_000, 20, 2, solver="cg") < 1e9


def test_a_diagonal_metric_spares_the_square_of_a_wide_table():
    assert estimate_memory(30, 30_000, 2) > 5 * 4 * 30_000**2
    assert estimate_memory(30, 30_000, 2, diagonal=True) < 1e8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((0, 1, 1, "cholesky"), "n, d, k must be positive"),
        ((1, 1, 1, "lu"), "solver must be"),
    ],
)
def test_what_cannot_be_estimated_is_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        estimate_memory(*arguments[:3], solver=arguments[3])


@pytest.mark.parametrize("counts", [(10, "a", 1), (1.5, 2, 3), (10, 2, None)])
def test_counts_that_are_no_integers_are_refused(counts):
    with pytest.raises(TypeError, match=r"^estimate_memory: n, d, k, rank must be int"):
        estimate_memory(*counts)


@pytest.mark.parametrize("device", ["foo", None])
def test_devices_that_torch_does_not_know_are_refused(device):
    with pytest.raises(ValueError, match=r"^estimate_memory: device must be .*, got "):
        estimate_memory(10, 2, 1, device=device)


def test_some_memory_is_free():
    assert available_bytes(torch.device("cpu")) > 1 << 20


def test_as_many_outputs_as_rows_are_counted():
    one, many = (estimate_memory(3000, 20, k) for k in (1, 3000))
    # ten tables of targets as large as the square, as measured
    assert many - one > 10 * 4 * 3000 * 2999
