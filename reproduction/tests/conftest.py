"""Shared set-up: that of the library's tests, and a machine without data or network."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

_FILE = Path(__file__).parents[2] / "tests" / "conftest.py"
_spec = spec_from_file_location("library_conftest", _FILE)
assert _spec is not None
assert _spec.loader is not None
library_conftest = sys.modules["library_conftest"] = module_from_spec(_spec)
_spec.loader.exec_module(library_conftest)
globals().update(
    {name: value for name, value in vars(library_conftest).items() if name[0] != "_"}
)


@pytest.fixture
def offline_and_empty(monkeypatch, tmp_path):
    """No proxy, no shared data, a cache of its own."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("NORMALIGN_DATA", raising=False)
    monkeypatch.setenv("NORMALIGN_CACHE", str(tmp_path / "cache"))
