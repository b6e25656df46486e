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
def half_by_default():
    """Floats of half precision wherever torch is not told another."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    yield
    torch.set_default_dtype(before)


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
