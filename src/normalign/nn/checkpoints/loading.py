"""Comparing a state dict with a network, and filling the network from it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from normalign._errors import complaint, require, require_kind
from normalign.nn.checkpoints.files import StateFile, read_state_file
from normalign.nn.checkpoints.forms import network_form
from normalign.nn.checkpoints.namings import (
    OWN,
    STANDARDISING,
    Naming,
    Reading,
    best_reading,
)
from normalign.nn.checkpoints.report import CheckpointReport, Normalisation, few
from normalign.nn.resnet import ResNet
from normalign.nn.wide_resnet import WideResNet

__all__ = ["load_checkpoint", "load_weights_of"]

_COUNTER = "num_batches_tracked"
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
    activation, a pooling, the padding under our own names, a standardisation that was
    not saved leave no trace. Most ``"wide-end"`` networks have swish for ReLU and
    standardise their inputs, so look at the accuracy before you trust a geometry.

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
        If the file cannot be read safely, or under ``strict`` does not fit; if the
        network's tensors have no memory yet (meta device, lazy modules).
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
    own = _tensors_of(network, callee)
    file = read_state_file(path, entry=entry, callee=callee, argument=argument)
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


def _tensors_of(network: nn.Module, callee: str) -> dict[str, Tensor]:
    """Return the tensors to fill; those without memory would stay empty unnoticed."""
    state = network.state_dict()
    own = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    empty = [name for name, value in own.items() if value.is_meta or is_lazy(value)]
    require(
        not empty, callee, "network", "one whose tensors have memory",
        f"{empty[0]} without" if empty else "", "Call network.to_empty(device='cpu'), "
        "or of a lazy module the forward pass, first.",
    )  # fmt: skip
    return own


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
    wrong = {name for name, *_ in misshapen}
    improper: dict[str, list[str]] = {}
    for name, value in pairs.items():
        if name not in wrong and (fault := _fault(value, own[name])):
            improper.setdefault(fault, []).append(name)
    wrong.update(name for names in improper.values() for name in names)
    fitting = {name: value for name, value in pairs.items() if name not in wrong}
    # Of tensors that share their memory, a file may hold one for all.
    filled = {_memory(own[name]) for name in fitting}
    missing = [
        name
        for name, value in own.items()
        if name not in pairs
        and not name.endswith(_COUNTER)
        and _memory(value) not in filled
    ]

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
        missing=tuple(missing),
        unexpected=unexpected,
        misshapen=tuple(misshapen),
        ignored=(*file.others, *ignored),
        normalisation=normalisation,
        notes=(
            *_told_by_names(network, reading.naming),
            *(f"{len(n)} {fault} ({few(n)})" for fault, n in improper.items()),
        ),
    )
    return report, fitting


def _fault(value: Tensor, own: Tensor) -> str:
    """Say why a tensor of the right shape is none to load; empty if it is one."""
    if not own.is_floating_point():
        return ""
    kinds = [str(dtype).removeprefix("torch.") for dtype in (value.dtype, own.dtype)]
    if not value.is_floating_point():
        return f"of {kinds[0]} for real numbers"
    # Also what overflows on its way into the network.
    finite = bool(value.to(own.dtype).isfinite().all())
    return "" if finite else f"not finite in {kinds[1]}"


def _memory(tensor: Tensor) -> tuple[object, ...]:
    """Return what two tensors have in common that are one in memory."""
    if not tensor.numel():
        return (id(tensor),)
    return tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride()


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


def _told_by_names(network: nn.Module, naming: Naming) -> Iterator[str]:
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


def _remedy(own: Mapping[str, object], theirs: Mapping[str, object]) -> str:
    """Say with which arguments a residual network would fit."""
    if not theirs or own.keys() != theirs.keys():
        return ""
    other = [f"{key}={theirs[key]!r}" for key in own if own[key] != theirs[key]]
    return f"The file is of a network with {', '.join(other)}." if other else ""
