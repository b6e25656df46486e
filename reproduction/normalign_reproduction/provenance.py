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

__all__ = ["commit", "device_name", "provenance"]

_PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "matplotlib", "mlxtend")


def provenance() -> dict[str, Any]:
    """Return versions and machine: what a number depends on besides its settings."""
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
    """Return the name of this machine's CPU or GPU (``"cpu"`` or ``"cuda"``)."""
    if kind == "cuda":
        return torch.cuda.get_device_name()
    name = platform.processor() or platform.machine()
    if (file := Path("/proc/cpuinfo")).is_file():  # Linux
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        models = (line.partition(":")[2] for line in lines if "model name" in line)
        name = next(models, name)
    return f"{name.strip()}, {os.cpu_count()} cores"


def commit() -> str | None:
    """Return the commit of normalign, or ``None`` outside its repository.

    With uncommitted changes, ``"+changes"`` is appended.
    """
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

    # normalign may be installed inside the repository of another project
    is_tracked = git("ls-files", "--error-unmatch", source.name) is not None
    head = git("rev-parse", "HEAD") if is_tracked else None
    if head is None:
        return None
    folders = (str(source.parent), str(Path(__file__).parent))
    return f"{head}+changes" if git("status", "--porcelain", *folders) else head
