"""What results were computed with: commit, versions and device."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import normalign

__all__ = [
    "commit", "device_name", "provenance",
]  # fmt: skip

_PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "matplotlib", "mlxtend")


def provenance() -> dict[str, Any]:
    """Return what a number depends on beside its settings: versions and machine."""
    versions = {"python": platform.python_version(), "normalign": normalign.__version__}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "commit": commit(),
        "machine": platform.machine(),
        "system": platform.system(),
        "threads": torch.get_num_threads(),
    }


def device_name(kind: str) -> str:
    """Return what a device of this machine is called, in words.

    Parameters
    ----------
    kind : {"cpu", "cuda"}
    """
    if kind == "cuda":
        return torch.cuda.get_device_name()
    name = platform.processor() or platform.machine()
    described = Path("/proc/cpuinfo")  # where Linux has the words
    if described.is_file():
        lines = described.read_text(encoding="utf-8", errors="replace").splitlines()
        named = (line.partition(":")[2] for line in lines if "model name" in line)
        name = next(named, name)
    return f"{name.strip()}, {os.cpu_count()} cores"


def commit() -> str | None:
    """Return the commit of normalign, or ``None`` if it is in no repository."""
    source = Path(normalign.__file__)

    def git(*words: str) -> str | None:
        command = ["git", "-C", str(source.parent), *words]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=10
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    # A package installed inside someone else's repository is not of that repository.
    if git("ls-files", "--error-unmatch", source.name) is None:
        return None
    head = git("rev-parse", "HEAD")
    if head is None:
        return None
    folders = (str(source.parent), str(Path(__file__).parent))
    return f"{head}+changes" if git("status", "--porcelain", *folders) else head
