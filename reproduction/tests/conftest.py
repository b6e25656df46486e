"""Shared set-up: markers whose needs are not met are skipped with the reason."""

from __future__ import annotations

import os

import pytest

try:
    from hypothesis import settings
except ModuleNotFoundError:  # a machine with torch and pytest alone runs the rest
    pass
else:
    # Time limits per example measure the machine, not the code. What blocks a change is
    # the same examples every time; who goes looking for new ones says so.
    settings.register_profile(
        "normalign",
        deadline=None,
        max_examples=40,
        derandomize=not os.environ.get("NORMALIGN_NEW_EXAMPLES"),
    )
    settings.load_profile("normalign")


@pytest.fixture(autouse=True)
def same_numbers_every_time():
    import torch

    torch.manual_seed(0)


@pytest.fixture
def offline_and_empty(monkeypatch, tmp_path):
    """No proxy, no shared data, a cache of its own."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("NORMALIGN_DATA", raising=False)
    monkeypatch.setenv("NORMALIGN_CACHE", str(tmp_path / "cache"))


def pytest_collection_modifyitems(config, items):
    missing = {}
    if not os.environ.get("NORMALIGN_DATA"):
        missing["data"] = "needs real data: set NORMALIGN_DATA to its folder"
    if any(item.get_closest_marker("cuda") for item in items):
        import torch

        if not torch.cuda.is_available():
            missing["cuda"] = "needs a CUDA device"
    for item in items:
        for marker, reason in missing.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
