"""`handmade` for every pytest import mode, and a machine without data and network."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def offline_and_empty(monkeypatch, tmp_path):
    """No proxy, no shared data, a cache of its own."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("NORMALIGN_DATA", raising=False)
    monkeypatch.setenv("NORMALIGN_CACHE", str(tmp_path / "cache"))
