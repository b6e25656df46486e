import importlib
import os
import subprocess
import sys

import pytest

from normalign.kernels import compiled
from normalign.kernels.compiled import compiling, machine


def test_what_is_kept_on_disk_belongs_to_all_sources_of_the_folder():
    kept = machine.solve._cache._cache_file
    assert kept._source_stamp == compiling._digest()


def test_without_a_place_to_keep_it_everything_is_compiled_anew(monkeypatch):
    calls = []

    def refusing(*args, cache=False, **options):
        calls.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return compiling.compiled

    monkeypatch.setattr(compiling, "njit", refusing)
    found = compiling.remembered(lambda x: x + 1)
    assert calls == [True]
    assert found(1) == 2


class Broken:
    """A cache whose disk is full, and whose files were cut."""

    def __init__(self):
        self.calls = []

    def load_overload(self, *args):
        self.calls.append("load")
        raise EOFError("Ran out of input")

    def save_overload(self, *args):
        self.calls.append("save")
        raise OSError(28, "No space left on device")

    def flush(self):
        self.calls.append("flush")
        raise OSError(28, "No space left on device")


def test_a_cache_that_is_damaged_or_full_costs_time_and_no_model(caplog, monkeypatch):
    monkeypatch.setattr(compiling, "_told", set())
    cache = Broken()
    compiling._survive_damage(cache)
    for _ in range(2):
        assert cache.load_overload("signature", None) is None
        cache.save_overload("signature", "code")
    assert cache.calls == ["load", "flush", "save"] * 2
    unread, unkept = (record.getMessage() for record in caplog.records)
    assert "could not read compiled code (EOFError" in unread
    assert "No space left on device" in unkept
    assert "NUMBA_CACHE_DIR" in unkept


CUT = """
import os, pathlib, sys
from normalign.kernels.compiled.compiling import remembered

@remembered
def doubled(x):
    return 2 * x

assert doubled(21) == 42
folder = pathlib.Path(os.environ["NUMBA_CACHE_DIR"])
for file in folder.rglob(f"*doubled*.{sys.argv[1]}"):
    os.truncate(file, os.path.getsize(file) // 2)
    print(file.name)
"""


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_files_that_were_cut_are_made_again(kind, tmp_path):
    script = tmp_path / "doubling.py"
    script.write_text(CUT)
    kept = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kept")}
    command = [sys.executable, str(script), kind]
    runs = [
        subprocess.run(command, env=kept, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert all(run.stdout for run in runs)  # there was something to cut
    assert "could not read" not in runs[0].stderr
    assert "could not read compiled code" in runs[1].stderr


FIT = """
from normalign.estimators import RFMRegressor
import numpy as np
x = np.random.default_rng(0).normal(size=(60, 2))
RFMRegressor().fit(x, x[:, 0])
"""


@pytest.mark.full
def test_who_waits_for_the_compiler_is_told_once(tmp_path):
    told = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "error::UserWarning", "-c", FIT]
    first, second = (
        subprocess.run(command, env=told, capture_output=True, text=True, check=True)
        for _ in range(2)
    )
    assert first.stderr.count("normalign compiles its code") == 1
    assert second.stderr == ""


@pytest.mark.parametrize("gone", [True, False])
def test_numba_may_be_missing_or_switched_off(gone, monkeypatch):
    compiled.is_available.cache_clear()
    if gone:
        monkeypatch.setattr(compiled, "find_spec", lambda name: None)
    else:
        config = importlib.import_module("numba").config
        monkeypatch.setattr(config, "DISABLE_JIT", True)
    assert not compiled.is_available()
    compiled.is_available.cache_clear()
    monkeypatch.undo()
    assert compiled.is_available()


def test_the_package_does_not_import_numba_before_it_is_used():
    code = "import sys, normalign.estimators; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
