"""Weights of others in our networks: read safely, renamed, and accounted for."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normalign._checks import complaint, require, require_kind
from normalign.nn.checkpoint_report import CheckpointReport, Normalisation
from normalign.nn.forms import network_form
from normalign.nn.namings import OWN, STANDARDISING, Naming, Reading, best_reading
from normalign.nn.resnet import ResNet, resnet18, resnet50
from normalign.nn.state_files import StateFile, read_state_file
from normalign.nn.wide_resnet import WideResNet, wide_resnet28_2, wide_resnet28_10

__all__ = ["BUILT_IN", "load_checkpoint", "load_weights_of", "network_for"]

_COUNTER = "num_batches_tracked"
# Tensors under the name of an activation: it is learned, so it is no ReLU.
_ACTIVATION = re.compile(
    r"(^|\.)(p?relu|swish|silu|gelu|act|activation)_?\d*\.[a-z_]+$", re.IGNORECASE
)
_MOST_CHANNELS = 4  # of pictures; longer means and deviations are of something else


def load_checkpoint(
    network: nn.Module,
    path: str | Path,
    *,
    strict: bool = True,
    entry: str | None = None,
) -> CheckpointReport:
    """Load weights from a file into a network, in place, and report on all of them.

    The file is ``.safetensors``, or torch's with ``weights_only=True``: nothing in it
    is run. The weights may lie under ``state_dict``, ``model_state_dict``, ``model``,
    ``net`` or the usual names of averaged weights, and a word that all names begin with
    (``module.``, ``_orig_mod.``, ``model.``) is taken off where that makes more of them
    fit. Names may be the network's own, or for our residual networks

    - ``"torchvision"``: ``conv1``, ``layer1.0.downsample.0``, ``fc``;
    - ``"cifar"``: ``conv1``, ``layer1.0.shortcut.0``, ``linear``, as in the
      widespread CIFAR ResNets;
    - ``"wide"``: ``block1.layer.0.bn1``, ``convShortcut``, as in the WideResNets of
      TRADES and its followers;
    - ``"wide-end"``: ``init_conv``, ``layer.0.block.0.batchnorm_0``, ``logits``, as in
      those of Gowal et al. They fit networks built with ``padding="end"`` only.

    ``num_batches_tracked`` may be missing. A checkpoint does not say everything: an
    activation without parameters (many ``"wide-end"`` networks have swish for ReLU), a
    pooling, a standardisation that was not saved leave no trace, so look at the
    accuracy before you trust a geometry.

    Parameters
    ----------
    network : nn.Module
        Ours or any other; any other must bear the file's own names.
    strict : bool
        If something does not fit: raise and leave the network as it was, or (False)
        load what fits and report the rest.
    entry : str, optional
        Which state dict to read of a torch file that holds several, such as
        ``"state_dict_ema"``. By default plain weights go before averaged ones.

    Returns
    -------
    CheckpointReport

    Raises
    ------
    ValueError
        If the file cannot be read safely, or under ``strict`` does not fit.
    TypeError
        If ``network`` is no module.
    ModuleNotFoundError
        If a ``.safetensors`` file comes without the ``weights`` extra.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "w.pt")
    >>> torch.save({"module.weight": torch.ones(1, 2)}, file)
    >>> load_checkpoint(nn.Linear(2, 1, bias=False), file)
    CheckpointReport of w.pt, prefix 'module.' taken off
      naming         own
      loaded         1
    """
    return load_weights_of(
        network, path, strict=strict, entry=entry,
        callee="load_checkpoint", argument="path",
    )  # fmt: skip


def load_weights_of(
    network: nn.Module,
    path: str | Path,
    *,
    strict: bool = True,
    entry: str | None = None,
    callee: str,
    argument: str,
) -> CheckpointReport:
    """Do what :func:`load_checkpoint` does, and complain in another's name."""
    module = isinstance(network, nn.Module)
    require_kind(module, callee, "network", "a torch.nn.Module", network)
    file = read_state_file(path, entry=entry, callee=callee, argument=argument)
    own = _tensors_of(network)
    reading = best_reading(file.tensors, own)
    report, fitting = _compared(network, own, file, reading)
    if strict and not report.whole:
        found = {ours: file.tensors[theirs] for ours, theirs in reading.first.items()}
        raise ValueError(
            complaint(
                callee, argument, f"a state dict with the model's {len(own)} tensors",
                report.misfits(), _remedy(network_form(own), network_form(found)),
            )
        )  # fmt: skip
    network.load_state_dict(fitting, strict=False)
    return report


def _tensors_of(network: nn.Module) -> dict[str, Tensor]:
    state = network.state_dict()
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


# ---- comparison ---------------------------------------------------------------------


def _compared(
    network: nn.Module, own: dict[str, Tensor], file: StateFile, reading: Reading
) -> tuple[CheckpointReport, dict[str, Tensor]]:
    """Return the report of a file in a reading, and the tensors that fit."""
    first = reading.first
    pairs = {ours: file.tensors[first[ours]] for ours in own if ours in first}
    misshapen = [
        (name, tuple(value.shape), tuple(own[name].shape))
        for name, value in pairs.items()
        if value.shape != own[name].shape
    ]
    integers = {
        name: f"{name} holds {str(value.dtype).removeprefix('torch.')} for real numbers"
        for name, value in pairs.items()
        if own[name].is_floating_point() and not value.is_floating_point()
    }
    unfit = {*integers, *(name for name, *_ in misshapen)}
    fitting = {name: value for name, value in pairs.items() if name not in unfit}

    taken = {first[ours] for ours in pairs}
    left = [name for name in file.tensors if name not in taken]
    normalisation, standardising = _normalisation(file.tensors, left, reading)
    ignored = [name for name in left if _needless(name, file.tensors, reading)]
    explained = {*ignored, *standardising}
    unexpected = tuple(name for name in left if name not in explained)
    report = CheckpointReport(
        file=file.path.name,
        entry=file.entry,
        prefix=reading.prefix,
        naming=reading.naming.name,
        n_loaded=len(fitting),
        missing=tuple(n for n in own if n not in pairs and not n.endswith(_COUNTER)),
        unexpected=unexpected,
        misshapen=tuple(misshapen),
        ignored=(*file.others, *ignored),
        normalisation=normalisation,
        notes=(
            *_told_by_names(network, reading.naming, unexpected),
            *integers.values(),
        ),
    )
    return report, fitting


def _needless(name: str, tensors: Mapping[str, Tensor], reading: Reading) -> bool:
    """Whether a tensor is no part of the function: never called, or an exact copy."""
    short = reading.short[name]
    if short == "n_averaged" or name == "n_averaged":
        return True
    if any(short.startswith(beginning) for beginning in reading.naming.unused):
        return True
    original = tensors.get(name.replace("attacker.", "", 1))
    if "attacker." not in name or original is None:
        return False
    return torch.equal(tensors[name], original)


def _normalisation(
    tensors: Mapping[str, Tensor], left: Collection[str], reading: Reading
) -> tuple[Normalisation | None, set[str]]:
    """Find the one standardisation among the tensors left over, and its names."""
    found: dict[Normalisation, set[str]] = {}
    for name in left:
        parent, dot, leaf = name.rpartition(".")
        partner = parent + dot + STANDARDISING.get(leaf, "")
        outside = reading.short[name].count(".") <= 2  # "attacker.normalize.new_mean"
        if leaf not in STANDARDISING or partner not in left or not outside:
            continue
        if max(tensors[name].numel(), tensors[partner].numel()) > _MOST_CHANNELS:
            continue
        mean, std = (
            tuple(tensors[n].double().flatten().tolist()) for n in (name, partner)
        )
        proper = 0 < len(mean) == len(std) and all(0 < s < math.inf for s in std)
        if proper and all(map(math.isfinite, mean)):
            found.setdefault(Normalisation(mean, std), set()).update((name, partner))
    if len(found) != 1:  # two that differ are not ours to choose from
        return None, set()
    return next(iter(found.items()))


def _told_by_names(
    network: nn.Module, naming: Naming, unexpected: Collection[str]
) -> Iterator[str]:
    """Say what the names tell against the network."""
    ours = next((k for k in (ResNet, WideResNet) if isinstance(network, k)), None)
    if ours is not None and naming.family not in ("", ours.__name__):
        yield f"the names are those of a {naming.family}, not of a {ours.__name__}"
    elif (
        isinstance(network, WideResNet)
        and naming is not OWN
        and naming.padding != network.padding
    ):
        yield (
            f"networks of these names ({naming.name}) are built with "
            f"padding={naming.padding!r}, this one with {network.padding!r}"
        )
    learned = [name for name in unexpected if _ACTIVATION.search(name)]
    if learned:
        yield f"{learned[0]} tells of a learned activation"


def _remedy(own: Mapping[str, object], theirs: Mapping[str, object]) -> str:
    """Say with which arguments a residual network would fit."""
    if not theirs or own.keys() != theirs.keys():
        return ""
    other = [f"{key}={theirs[key]!r}" for key in own if own[key] != theirs[key]]
    return f"The file is of a network with {', '.join(other)}." if other else ""


# ---- a network for a file -----------------------------------------------------------

_RESNET = ("n_classes", "width", "stem", "n_channels")
_WIDE = ("n_classes", "n_channels", "padding")

# Names that tell whether those of a file are read rightly.
_LANDMARKS = (
    "stem.weight", "stem.0.weight", "layer1.0.conv1.weight", "norm.weight", "fc.weight",
)  # fmt: skip

# Name -> how it is built, and the arguments that a file may set.
BUILT_IN: dict[str, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    "resnet18": (resnet18, _RESNET),
    "resnet50": (resnet50, _RESNET),
    "wide_resnet28_2": (wide_resnet28_2, _WIDE),
    "wide_resnet28_10": (wide_resnet28_10, _WIDE),
    "WideResNet": (WideResNet, ("depth", "widen", *_WIDE)),
}


def network_for(
    name: str,
    path: str | Path,
    *,
    callee: str = "network_for",
    argument: str = "path",
    generator: torch.Generator | None = None,
) -> tuple[nn.Module, dict[str, Any]]:
    """Build the named network in the form that a checkpoint has; load nothing.

    The shapes tell the classes, the channels, the width and the stem, the naming the
    padding; a ``"WideResNet"`` also takes its depth and widening from there. Where the
    file does not tell, the network has its usual form.

    Returns
    -------
    network : nn.Module
        With weights as drawn.
    arguments : dict
        What was read off the file.

    Raises
    ------
    ValueError
        If there is no such network, the file cannot be read, or it tells no depth of a
        ``"WideResNet"``.
    """
    known = ", ".join(BUILT_IN)
    require(name in BUILT_IN, callee, "name", f"one of {known}", repr(name))
    build, settable = BUILT_IN[name]
    file = read_state_file(path, callee=callee, argument=argument)
    reading = best_reading(file.tensors, _LANDMARKS)
    form = network_form({n: file.tensors[o] for n, o in reading.first.items()})
    if form and reading.naming is not OWN:
        form["padding"] = reading.naming.padding
    arguments = {key: form[key] for key in settable if key in form}
    deep = build is not WideResNet or arguments.get("widen", 0) > 0
    require(
        deep, callee, argument, "the weights of a WideResNet", file.path.name,
        "Build the network yourself if its blocks are named in another way.",
    )  # fmt: skip
    return build(**arguments, generator=generator), arguments
