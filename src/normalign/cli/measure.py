"""``normalign measure``: the local geometry of the user's own model."""

from __future__ import annotations

import argparse
import csv
import io
import shutil
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normalign._errors import complaint, installing, require
from normalign.cli.output import as_json, note, number, table

if TYPE_CHECKING:
    import torch

    from normalign.geometry import LayerProfile

__all__ = ["add_to", "run"]

_CALLEE = "normalign measure"
_INPUT = "input"
_TABLE_WIDTH = 125  # columns that a row of all measures takes
_PICTURES = (".png", ".svg", ".pdf")


def add_to(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    parser = commands.add_parser(
        "measure", allow_abbrev=False, help="measure the local geometry of your model",
        description="Measure the local geometry of a torch model at given inputs: the "
        "whole map, with --at the map from a submodule's input to the output, with "
        "--profile those from all stages of the network. "
        "Your model's file is run; weights and data are read without pickle.",
    )  # fmt: skip
    add = parser.add_argument
    add(
        "--model", required=True, metavar="FILE.py:build",
        help="a Python file and the function in it that returns an nn.Module, or "
        "normalign.nn:NAME for a network of ours (resnet18, resnet50, ...)",
    )  # fmt: skip
    add(
        "--weights", type=Path, metavar="W",
        help="its state dict: .safetensors, or .pt/.pth (default: as build left it)",
    )  # fmt: skip
    add(
        "--data", type=Path, required=True, metavar="D.npz",
        help="inputs and, for local_robustness, class indices",
    )  # fmt: skip
    add("--x-key", default="x", metavar="KEY", help="inputs' name (default: x)")
    add("--y-key", default=None, metavar="KEY", help="labels' name (default: y if any)")
    add(
        "--at", action="append", default=[], metavar="NAME",
        help="a submodule, as in model.named_modules(); may be repeated",
    )  # fmt: skip
    add(
        "--profile", action="store_true",
        help="also measure all stages of the network, detected automatically",
    )  # fmt: skip
    add(
        "--method", choices=("auto", "exact", "matrix_free"), default="auto",
        help="default: %(default)s",
    )  # fmt: skip
    add("--limit", type=int, metavar="N", help="measure only the first N samples")
    add("--batch-limit", type=int, metavar="N", help="at most N samples at once")
    add(
        "--figure", type=Path, metavar="FILE",
        help="draw alignment and rank at each location: .png, .svg or .pdf",
    )  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="save every sample as JSON")
    add("--csv", type=Path, metavar="FILE", help="save every sample as CSV")
    add(
        "--device", default="auto", metavar="auto|cpu|cuda",
        help="default: %(default)s, a GPU if there is one",
    )  # fmt: skip
    add(
        "--dtype", choices=("float32", "float64"),
        help="precision (default: that of the model)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the means, save the samples."""
    _check(arguments)
    import torch

    from normalign.cli.measuring import Measurement
    from normalign.cli.user_model import built_model, load_weights, read_arrays

    device = _device(arguments.device)
    model = built_model(_CALLEE, arguments.model, weights=arguments.weights)
    known = [name for name, _ in model.named_modules() if name]
    for place in arguments.at:
        near = get_close_matches(place, known, n=5) or [
            name for name, _ in model.named_children()
        ]
        require(
            place in known, _CALLEE, "--at",
            "a submodule, as in model.named_modules()", repr(place),
            f"Some of its names: {', '.join(near[:8])}."
            if near
            else "This model has no submodules.",
        )  # fmt: skip
    if arguments.weights is None:
        note("weights: as the model's function left them")
    else:
        load_weights(_CALLEE, model, arguments.weights)
    dtype = getattr(torch, arguments.dtype) if arguments.dtype else None
    model = model.to(device=device, dtype=dtype).eval()
    x, y = read_arrays(
        _CALLEE, arguments.data, x_key=arguments.x_key, y_key=arguments.y_key
    )
    x, y = x[: arguments.limit], None if y is None else y[: arguments.limit]
    if x.is_floating_point() or dtype is not None:
        x = x.to(dtype or _real_dtype(model))
    measurement = Measurement(_CALLEE, model, x, y, arguments, device)
    ended = measurement.work()
    profile = measurement.profile()
    if len(profile):
        _save(arguments, profile, device, complete=ended is None)
        _print(profile)
    if ended is not None:
        raise ended
    return 0


def _print(profile: LayerProfile) -> None:
    """One row per place; one column per place where the terminal is too narrow."""
    means = profile.means()
    columns = sorted({key for mean in means.values() for key in mean}, key=_order)
    grid = [["at", *(name.replace("_", " ") for name in columns)]]
    for name, mean in means.items():
        grid.append([name, *(number(mean[c]) if c in mean else "-" for c in columns)])
    counts = [len(geometry) for geometry in profile.values()]
    title = f"Means over {max(counts)} samples"
    if min(counts) < max(counts):
        title = "Means over the samples that were measured"
        for row, cell in zip(grid, ["samples", *map(str, counts)], strict=True):
            row.append(cell)
    if sys.stdout.isatty() and shutil.get_terminal_size().columns < _TABLE_WIDTH:
        grid = [list(row) for row in zip(*grid, strict=True)]
    table(title, grid[0], grid[1:], numeric=True)


def _check(arguments: argparse.Namespace) -> None:
    for option in ("limit", "batch_limit"):
        value = getattr(arguments, option)
        flag = "--" + option.replace("_", "-")
        require(value is None or value >= 1, _CALLEE, flag, "at least 1", value)
    for option in ("figure", "json", "csv"):
        path = getattr(arguments, option)
        require(
            path is None or (path.parent.is_dir() and not path.is_dir()), _CALLEE,
            f"--{option}", "a file in a folder that exists", str(path),
        )  # fmt: skip
    if arguments.figure is not None:
        _check_figure(arguments.figure)
    require(
        len(set(arguments.at)) == len(arguments.at) and _INPUT not in arguments.at,
        _CALLEE, "--at", f"different names, none of them {_INPUT!r}",
        ", ".join(arguments.at),
    )  # fmt: skip


def _check_figure(path: Path) -> None:
    from importlib.util import find_spec

    require(
        path.suffix.lower() in _PICTURES, _CALLEE, "--figure",
        f"a {', '.join(_PICTURES[:-1])} or {_PICTURES[-1]} file", path.name,
    )  # fmt: skip
    if find_spec("matplotlib") is None:
        raise ModuleNotFoundError(
            complaint(
                _CALLEE, "--figure", "drawable", f"{path.name} without matplotlib",
                installing("plots"),
            )
        )  # fmt: skip


def _device(name: str) -> torch.device:
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    require(
        kind in ("cpu", "cuda") and (not index or index.isdigit()), _CALLEE, "--device",
        "auto, cpu, cuda or cuda:N", repr(name),
    )  # fmt: skip
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    require(
        kind == "cpu" or int(index or 0) < count, _CALLEE, "--device",
        f"one of the {count} CUDA devices here", repr(name), "Use --device auto.",
    )  # fmt: skip
    return torch.device(name)


def _real_dtype(model: torch.nn.Module) -> torch.dtype:
    import torch

    kinds = (t.dtype for t in model.parameters() if t.is_floating_point())
    return next(kinds, torch.float32)


def _order(name: str) -> int:
    from dataclasses import fields

    from normalign.geometry import LocalGeometry

    return [field.name for field in fields(LocalGeometry)].index(name)


def _save(
    arguments: argparse.Namespace,
    profile: LayerProfile,
    device: torch.device,
    *,
    complete: bool,
) -> None:
    if arguments.json is not None:
        report = {
            "model": arguments.model,
            "weights": None if arguments.weights is None else str(arguments.weights),
            "data": str(arguments.data),
            "device": str(device),
            "complete": complete,
            **profile.to_dict(),
        }
        arguments.json.write_text(as_json(report) + "\n", encoding="utf-8")
        note(f"saved {arguments.json}")
    if arguments.csv is not None:
        arguments.csv.write_text(_as_csv(profile), encoding="utf-8", newline="")
        note(f"saved {arguments.csv}")
    if arguments.figure is not None:
        import matplotlib as mpl

        mpl.use("agg")
        from normalign.plots import plot_profile

        plot_profile(profile).savefig(arguments.figure, dpi=150, facecolor="white")
        note(f"saved {arguments.figure}")


def _as_csv(profile: LayerProfile) -> str:
    samples = {
        name: {key: value.tolist() for key, value in geometry.measures().items()}
        for name, geometry in profile.items()
    }
    columns = sorted({key for part in samples.values() for key in part}, key=_order)
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["at", "sample", *columns])
    for name, part in samples.items():
        for i in range(len(next(iter(part.values())))):
            cells = [repr(part[c][i]) if c in part else "" for c in columns]
            writer.writerow([name, i, *cells])
    return stream.getvalue()
