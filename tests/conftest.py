"""Shared set-up: markers whose needs are not met are skipped with the reason."""

from __future__ import annotations

import os
import signal

import pytest

# Packages of the extras. A module that needs one which is not installed is skipped, so
# that the rest runs on a machine with torch, scikit-learn and pytest alone.
OPTIONAL = {
    "array_api_strict", "art", "catboost", "distributed", "foolbox", "hypothesis",
    "markdown_it", "matplotlib", "mlxtend", "normalign_reproduction",
    "pandas", "pooch", "pytorch_optimizer", "safetensors", "skops", "xrfm",
}  # fmt: skip

try:
    from hypothesis import settings
except ModuleNotFoundError:
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


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    if report.failed and isinstance(collector, pytest.Module):
        cause = report.call.excinfo.value.__cause__
        package = (getattr(cause, "name", None) or "").partition(".")[0]
        if isinstance(cause, ModuleNotFoundError) and package in OPTIONAL:
            report.outcome = "skipped"
            reason = f"Skipped: needs {package}"
            report.longrepr = (str(collector.path), 0, reason)
    return report


@pytest.fixture(autouse=True)
def same_numbers_every_time():
    import torch

    torch.manual_seed(0)


LIMIT_S = 300  # of a test that waits for Ctrl-C to have come


@pytest.fixture(scope="module")
def ctrl_c():
    """Have Ctrl-C raise KeyboardInterrupt, also in child processes.

    A suite that was started in the background ignores it (``make test &``, nohup), and
    so would this process and all that it starts: a test that waits for it never ends.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def time_limit():
    """Fail a test that takes longer than any machine should need."""

    def late(number, frame):
        pytest.fail(f"no end after {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def offline_and_empty(monkeypatch, tmp_path):
    """No proxy, no shared data, a cache of its own."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("NORMALIGN_DATA", raising=False)
    monkeypatch.setenv("NORMALIGN_CACHE", str(tmp_path / "cache"))


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
