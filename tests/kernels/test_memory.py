"""Memory: estimates bound what is taken, and what is free is what is left."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign.kernels import KERNELS, _memory, estimate_memory
from normalign.kernels._memory import (
    SMALL_BYTES,
    Needs,
    available_bytes,
    free_bytes,
    is_small_fit,
)

MEASURE = """
import json, sys, torch
from normalign.kernels import KERNELS, Solver, recursions
n, d, k, solver, kernel, diagonal, dtype, limit = json.loads(sys.argv[1])
kind = dict(dtype=getattr(torch, dtype))
def fit(n, d, limit):
    x, y = torch.randn(n, d, **kind), torch.randn(n, k, **kind)
    metric = torch.ones(d, **kind) if diagonal else torch.eye(d, **kind)
    open("/proc/self/clear_refs", "w").write("5")  # forget the peak until here
    before = held("VmRSS")
    for step in recursions(
        x, y, kernel=KERNELS[kernel](9.0), ridge=0.1, metric=metric, n_iter=1,
        solver=Solver(solver, memory_limit=limit),
    ):
        step.left_out(torch.arange(20))
    assert step.solved.solver == solver, step.solved
    return held("VmHWM") - before
def held(what):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) * 1024
fit(3200, 4, None)  # imports and thread pools are not what is measured
print(fit(n, d, limit))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("shape", "solver", "kernel", "diagonal", "dtype"),
    [
        ((6000, 20, 2), "cholesky", "laplace", False, "float32"),
        ((4000, 20, 2), "cholesky", "laplace", False, "float64"),
        ((300, 20_000, 2), "cholesky", "laplace", True, "float32"),
        ((300, 1500, 2), "cholesky", "product_laplace", False, "float32"),
        ((6000, 10, 1), "cg", "gaussian", False, "float32"),
    ],
)
def test_a_fit_keeps_to_what_was_estimated(shape, solver, kernel, diagonal, dtype):
    settings = {"solver": solver, "kernel": kernel, "diagonal": diagonal}
    told = estimate_memory(*shape, dtype=getattr(torch, dtype), **settings)
    asked = json.dumps([*shape, *settings.values(), dtype, told])
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, asked],
        capture_output=True,
        text=True,
        check=True,
    )
    taken = int(done.stdout)
    assert 0.3 * told < taken < 1.1 * told, (taken / 1e6, told / 1e6)


def test_more_of_anything_takes_more():
    base = estimate_memory(3000, 20, 2)
    assert estimate_memory(6000, 20, 2) > 3 * base
    assert estimate_memory(3000, 40, 2) > base
    assert estimate_memory(3000, 20, 8) > base
    assert 2 * base < estimate_memory(3000, 20, 2, dtype=torch.float64) < 2.5 * base
    few, many = (estimate_memory(100_000, 20, 2, solver="cg", rank=r) for r in (9, 999))
    assert few < 0.4e9 < 1e9 < many < 1.4e9


def test_a_diagonal_metric_spares_the_square_of_a_wide_table():
    assert estimate_memory(30, 30_000, 2) > 5 * 4 * 30_000**2
    assert estimate_memory(30, 30_000, 2, diagonal=True) < 1e8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((0, 1, 1, "cholesky"), "n, d, k, rank must be positive"),
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


@given(
    st.tuples(st.integers(1, 400), st.integers(1, 400), st.integers(1, 400)),
    st.sampled_from(["laplace", "gaussian", "product_laplace"]),
    st.booleans(),
)
def test_what_is_little_takes_little(shape, kernel, diagonal):
    device = torch.device("cpu")
    needs = Needs(*shape, torch.float64, device, KERNELS[kernel](), diagonal=diagonal)
    little = max(needs.direct, needs.iterative(1)) < SMALL_BYTES
    assert little or not is_small_fit(*shape)


def test_some_memory_is_free():
    assert available_bytes(torch.device("cpu")) > 1 << 20


def test_as_many_outputs_as_rows_are_counted():
    one, many = (estimate_memory(3000, 20, k) for k in (1, 3000))
    # ten tables of targets as large as the square, as measured
    assert many - one > 10 * 4 * 3000 * 2999


MACHINE = "MemTotal:   32000 kB\nMemAvailable:   20000 kB\nHugePages_Total:   0\n"


@pytest.fixture
def root(tmp_path):
    write(tmp_path, "proc/meminfo", MACHINE)
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def in_group(root: Path, folder: str, *, limit: str, used: int, legacy: bool = False):
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for name, text in zip(
        names if legacy else ("memory.max", "memory.current"),
        (limit, str(used)),
        strict=True,
    ):
        write(root, f"sys/fs/cgroup/{folder}/{name}", f"{text}\n")


def test_without_groups_it_is_what_the_machine_has(root):
    assert free_bytes(root) == 20_000 * 1024


def test_a_container_has_less_than_its_machine(root):
    write(root, "proc/self/cgroup", "0::/\n")
    in_group(root, ".", limit="3000000", used=1_000_000)
    assert free_bytes(root) == 2_000_000


def test_files_that_can_be_dropped_are_free(root):
    write(root, "proc/self/cgroup", "0::/\n")
    in_group(root, ".", limit="3000000", used=2_900_000)
    write(root, "sys/fs/cgroup/memory.stat", "anon 900000\ninactive_file 2000000\n")
    assert free_bytes(root) == 2_100_000


def test_a_group_without_a_limit_is_bound_by_the_one_around_it(root):
    write(root, "proc/self/cgroup", "0::/batch/job7/step0\n")
    in_group(root, "batch/job7/step0", limit="max", used=10)
    in_group(root, "batch/job7", limit="5000000", used=1_000_000)
    in_group(root, "batch", limit="9000000", used=8_000_000)
    assert free_bytes(root) == 1_000_000


def test_groups_of_the_older_interface(root):
    write(root, "proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/docker/ab12\n0::/\n")
    in_group(root, "memory", limit="4000000", used=500_000, legacy=True)
    assert free_bytes(root) == 3_500_000  # the path is the host's, the top our own
    in_group(root, "memory/docker/ab12", limit="700000", used=0, legacy=True)
    assert free_bytes(root) == 700_000


def test_no_limit_of_the_older_interface_is_a_large_number(root):
    write(root, "proc/self/cgroup", "4:memory:/\n")
    in_group(root, "memory", limit="9223372036854771712", used=100, legacy=True)
    assert free_bytes(root) == 20_000 * 1024


def test_a_group_that_is_over_its_limit_has_nothing(root):
    write(root, "proc/self/cgroup", "0::/\n")
    in_group(root, ".", limit="1000", used=2000)
    assert free_bytes(root) == 0


def test_nonsense_is_passed_over(root):
    write(root, "proc/self/cgroup", "0::/\n")
    in_group(root, ".", limit="many", used=0)
    assert free_bytes(root) == 20_000 * 1024


def test_where_nothing_is_told_there_is_a_guess(tmp_path):
    assert free_bytes(tmp_path) > 1 << 20


def test_most_of_it_may_be_used(monkeypatch):
    monkeypatch.setattr(_memory, "free_bytes", lambda: 1000)
    assert available_bytes(torch.device("cpu")) == 800
