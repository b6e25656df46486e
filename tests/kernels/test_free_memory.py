"""What is free to a process: the machine's memory, and what its groups have left."""

from pathlib import Path

import pytest
import torch

from normalign.kernels import _memory as memory
from normalign.kernels._free_memory import free_bytes
from normalign.kernels._memory import available_bytes

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
    monkeypatch.setattr(memory, "free_bytes", lambda: 1000)
    assert available_bytes(torch.device("cpu")) == 800
