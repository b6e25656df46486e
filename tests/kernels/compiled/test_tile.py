"""Tiles of the shapes that other processors have."""

import os
import platform
import subprocess
import sys

import pytest

from normalign.kernels.compiled import tile

FOLDER = "tests/kernels/compiled"
# A name that numba knows and what the processor is said to have; the last stands for
# one with 32 short registers, whose instructions are not tried here.
PROCESSORS = {
    "haswell": "+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+avx,+avx2,+fma",
    "x86-64": "+sse,+sse2",
    "core2": "+sse,+sse2,+neon",
}
SHAPES = {"haswell": (32, 4, 2), "x86-64": (16, 4, 2), "core2": (16, 4, 4)}


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_shape_of_a_tile_is_what_registers_allow(name, monkeypatch):
    monkeypatch.setattr(tile.config, "CPU_FEATURES", PROCESSORS[name])
    assert tile._shape() == SHAPES[name]


@pytest.mark.full
@pytest.mark.skipif(platform.machine() != "x86_64", reason="told to be another x86-64")
@pytest.mark.parametrize("name", PROCESSORS)
def test_other_processors_compute_the_same(name, tmp_path):
    told = {
        "NUMBA_CPU_NAME": name,
        "NUMBA_CPU_FEATURES": PROCESSORS[name],
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    files = [f"{FOLDER}/test_{part}.py" for part in ("products", "factor", "solution")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        command, env={**os.environ, **told}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:]
