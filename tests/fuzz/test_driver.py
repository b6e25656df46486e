"""The driver reports, stores and survives cases that fail, crash or hang."""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter

import pytest

from tests.fuzz.driver import _next_family, draw_case, run

MODULES = {
    "right": "def check(case): pass",
    "wrong": "def check(case): assert case['x'] < 3, case",
    "crash": "import os\ndef check(case): os._exit(3)",
    "hang": "import time\ndef check(case): time.sleep(60)",
    "exits": "def check(case): raise SystemExit(0)",
}
DRAW = "\ndef draw(rng): return {'x': int(rng.integers(10))}\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of families with known behaviour, importable by the workers, too."""
    folder = tmp_path / "sample_families"
    folder.mkdir()
    (folder / "__init__.py").touch()
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text + DRAW)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    importlib.invalidate_caches()
    yield folder.name
    for name in [name for name in sys.modules if name.startswith(folder.name)]:
        del sys.modules[name]


@pytest.mark.slow
def test_failures_crashes_and_hangs_are_counted_and_stored(package, tmp_path):
    lines = []
    quotas = {"right": 4, "wrong": 8, "crash": 2, "hang": 1, "exits": 1}
    summary = run(
        quotas,
        seconds=600,
        seed=5,
        corpus=tmp_path / "corpus",
        package=package,
        case_limit_s=20.0,
        report=lines.append,
    )
    assert summary.counts == quotas
    values = [draw_case(package, "wrong", 5, i)["x"] for i in range(8)]
    expected = {"wrong": sum(x >= 3 for x in values), "crash": 2, "hang": 1, "exits": 1}
    assert Counter(failure.family for failure in summary.failures) == expected
    assert all("seed 5" in line for line in lines if line.startswith("FAILED"))
    stored = [json.loads(p.read_text()) for p in (tmp_path / "corpus").iterdir()]
    assert {entry["family"] for entry in stored} == set(expected)
    assert all(entry["case"] is not None for entry in stored)
    assert not any("Traceback" in entry["error"] for entry in stored)
    assert any("Traceback" in line for line in lines)


def test_a_case_depends_on_seed_family_and_index_only(package):
    def values(family, seed):
        return [draw_case(package, family, seed, i)["x"] for i in range(20)]

    assert values("right", 1) == values("right", 1)
    assert values("right", 1) != values("right", 2)
    assert values("right", 1) != values("wrong", 1)


def test_a_short_run_keeps_the_ratio_of_the_quotas():
    quotas, counts = {"a": 300, "b": 100}, Counter()
    for _ in range(40):
        counts[_next_family(counts, quotas)] += 1
    assert counts == {"a": 30, "b": 10}
    assert _next_family(Counter(quotas), quotas) is None
