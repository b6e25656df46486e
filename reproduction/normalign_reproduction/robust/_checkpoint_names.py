"""Checkpoints of other repositories for the residual networks of ``normalign.nn``.

Common CIFAR repositories and torchvision name the tensors of these networks in other
ways. :func:`load_checkpoint` translates the names, loads a network and reports on every
tensor; :func:`network_for` builds the network that fits a file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from normalign.nn import (
    ResNet,
    Standardise,
    WideResNet,
    network_form,
    read_state_dict,
)
from normalign.nn import network_for as network_for_state

# Buffers that standardise the input: a mean and its standard deviation.
_STANDARDISING = {
    "mean": "std",
    "mu": "sigma",
    "new_mean": "new_std",
    "image_mean": "image_std",
}
_MAX_CHANNELS = 4  # of images; a longer mean belongs to something else


@dataclass(frozen=True)
class _Naming:
    """A convention for the names of a network's tensors.

    ``rules`` has patterns at the beginning of a name with their replacements, and
    ``unused`` the prefix of modules that are saved but never called.
    """

    name: str
    family: str = ""  # class of the network; "" for any
    rules: tuple[tuple[str, str], ...] = ()
    padding: str = "both"
    unused: str = "\0"

    def rename(self, name: str) -> str:
        """Return our name of a tensor; one that no rule matches stays the same."""
        for pattern, replacement in self.rules:
            if re.match(pattern, name):
                return re.sub(pattern, replacement, name, count=1)
        return name


_OWN = _Naming("own")
_RESNET_RULES = (
    (r"conv1\.", "stem.0."),
    (r"bn1\.", "stem.1."),
    (r"(layer\d+\.\d+)\.downsample\.", r"\1.shortcut."),
    (r"linear\.", "fc."),
)
_TORCHVISION = _Naming("torchvision", "ResNet", _RESNET_RULES)
_CIFAR = _Naming("cifar", "ResNet", _RESNET_RULES)
_WIDE = _Naming(
    "wide",
    "WideResNet",
    (
        (r"conv1\.", "stem."),
        (r"block(\d+)\.layer\.(\d+)\.bn(\d+)\.", r"layer\1.\2.norm\3."),
        (r"block(\d+)\.layer\.(\d+)\.conv(\d+)\.", r"layer\1.\2.conv\3."),
        (r"block(\d+)\.layer\.(\d+)\.convShortcut\.", r"layer\1.\2.shortcut."),
        (r"bn1\.", "norm."),
    ),
    # A second first stage that the TRADES code builds and never calls.
    unused="sub_block1.",
)
_WIDE_END_BLOCK = {
    "batchnorm_0": "norm1",
    "conv_0": "conv1",
    "batchnorm_1": "norm2",
    "conv_1": "conv2",
    "shortcut": "shortcut",
}
_WIDE_END = _Naming(
    "wide-end",
    "WideResNet",
    (
        (r"init_conv\.", "stem."),
        (r"batchnorm\.", "norm."),
        (r"logits\.", "fc."),
        *(
            (
                rf"layer\.{stage}\.block\.(\d+)\.{theirs}\.",
                rf"layer{stage + 1}.\1.{ours}.",
            )
            for stage in range(3)
            for theirs, ours in _WIDE_END_BLOCK.items()
        ),
    ),
    # Imitates TensorFlow's "SAME": zeros at the end only where it halves.
    padding="end",
)


def _naming_of(names: Collection[str]) -> _Naming:
    """Return the naming of a whole checkpoint, from the names of its blocks."""

    def some(pattern: str) -> bool:
        return any(re.match(pattern, name) for name in names)

    if some(r"layer\.\d+\.block\.\d+\."):
        return _WIDE_END
    if some(r"block\d+\.layer\.\d+\."):
        return _WIDE
    if "conv1.weight" in names and some(r"layer\d+\.\d+\."):
        cifar = some(r"linear\.") or some(r"layer\d+\.\d+\.shortcut\.")
        return _CIFAR if cifar else _TORCHVISION
    return _OWN


@dataclass(frozen=True)
class _Reading:
    """An interpretation of a file's names: a prefix to remove, then a naming."""

    prefix: str
    naming: _Naming
    short: dict[str, str]  # name in the file -> without the prefix

    @property
    def theirs(self) -> dict[str, str]:
        """Our name -> the name in the file, the first if there are several."""
        names: dict[str, str] = {}
        for name, short in self.short.items():
            names.setdefault(self.naming.rename(short), name)
        return names


def _best_reading(names: Collection[str], own: Collection[str]) -> _Reading:
    """Return the reading with most names of the network; of equals the simplest."""
    readings = [
        _Reading(prefix, naming, short)
        for prefix, short in _without_prefixes(names)
        for naming in (_OWN, _naming_of(short.values()))
    ]
    return max(readings, key=lambda reading: len(reading.theirs.keys() & set(own)))


def _without_prefixes(names: Collection[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the names unchanged, then without each word that all of them begin with."""
    beside = {*_STANDARDISING, *_STANDARDISING.values(), "n_averaged"}
    prefix, short = "", {name: name for name in names}
    while True:
        yield prefix, short
        # These may stand beside the network, without its prefix.
        core = [
            name
            for name in short.values()
            if name.rpartition(".")[2] not in beside
            and not name.startswith("attacker.")
        ]
        words = {name.partition(".")[0] for name in core}
        if len(words) != 1 or not all("." in name for name in core):
            return
        word = f"{words.pop()}."
        prefix += word
        short = {name: rest.removeprefix(word) for name, rest in short.items()}


@dataclass(frozen=True, repr=False)
class CheckpointReport:
    """What :func:`load_checkpoint` found in a file.

    Attributes
    ----------
    file : str
    entry : str
        Where in the file the weights were, such as ``"state_dict"``; empty at the top.
    prefix : str
        The prefix removed from the names, such as ``"module."``.
    naming : str
        ``"own"``, ``"torchvision"``, ``"cifar"``, ``"wide"`` or ``"wide-end"``.
    n_loaded : int
        Tensors of the network that now hold the file's values.
    misfits : dict of str to list of str
        What does not fit. ``"missing"``: the network's tensors that the file lacks;
        ``"unexpected"``: the file's tensors that the network lacks; and likewise
        tensors of another shape, of integers, or with values that are not finite.
    contradictions : list of str
        Names in the file that belong to another family of networks, or padding.
    ignored : list of str
        What the network does not need: other state dicts in the file, plain values,
        modules that are never called, exact copies.
    normalisation : Standardise or None
        A layer that standardises the inputs, if the file has its statistics and the
        network does not. Put it first: ``nn.Sequential(normalisation, network)``.
    """

    file: str
    entry: str
    prefix: str
    naming: str
    n_loaded: int
    misfits: dict[str, list[str]]
    contradictions: list[str]
    ignored: list[str]
    normalisation: Standardise | None

    @property
    def whole(self) -> bool:
        """Whether file and network fit each other completely."""
        return not (self.misfits or self.contradictions)

    def __repr__(self) -> str:
        entry = f", entry {self.entry!r}" if self.entry else ""
        prefix = f", prefix {self.prefix!r} removed" if self.prefix else ""
        rows = {"naming": self.naming, "loaded": self.n_loaded}
        for kind, names in {**self.misfits, "ignored": self.ignored}.items():
            if names:
                rows[kind] = f"{len(names)} ({_few(names)})"
        if self.normalisation is not None:
            mean, std = (
                ", ".join(f"{value:.4g}" for value in values.flatten().tolist())
                for values in (self.normalisation.mean, self.normalisation.std)
            )
            rows["normalisation"] = f"mean ({mean}), std ({std}), not applied"
        lines = [f"CheckpointReport of {self.file}{entry}{prefix}"]
        lines += [f"  {kind:<16}  {text}" for kind, text in rows.items()]
        return "\n".join([*lines, *(f"  {text}" for text in self.contradictions)])


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + ", ..." * (len(names) > 4)


def load_checkpoint(
    network: nn.Module,
    path: str | Path,
    *,
    strict: bool = True,
    entry: str | None = None,
) -> CheckpointReport:
    """Load weights from a file into a network, in place, and report on all of them.

    The file is ``.safetensors``, or torch's with ``weights_only=True``: no code in it
    is run. The weights may lie under ``state_dict``, ``model_state_dict``, ``model``,
    ``net`` or the usual names of averaged weights. A prefix that all names share
    (``module.``, ``_orig_mod.``, ``model.``) is removed if more of them then fit. Names
    may be the network's own, or for our residual networks

    - ``"torchvision"``: ``conv1``, ``layer1.0.downsample.0``, ``fc``;
    - ``"cifar"``: ``conv1``, ``layer1.0.shortcut.0``, ``linear``, as in the
      widespread CIFAR ResNets;
    - ``"wide"``: ``block1.layer.0.bn1``, ``convShortcut``, as in the WideResNets of
      TRADES and its followers;
    - ``"wide-end"``: ``init_conv``, ``layer.0.block.0.batchnorm_0``, ``logits``, as in
      those of Gowal et al. They fit networks built with ``padding="end"`` only.

    ``num_batches_tracked`` may be missing. A checkpoint does not determine everything:
    an activation, a pooling, the padding under our own names or an unsaved
    standardisation leave no trace. Most ``"wide-end"`` networks use swish in place of
    ReLU and standardise their inputs. Check the accuracy before trusting a geometry.

    Parameters
    ----------
    network : nn.Module
        One of ours, or any network that has the file's own names.
    strict : bool
        If something does not fit, raise and leave the network unchanged; if False,
        load what fits and report the rest.
    entry : str, optional
        Which state dict of a torch file with several, such as ``"state_dict_ema"``. By
        default plain weights go before averaged ones.

    Raises
    ------
    ValueError
        If the file cannot be read safely, does not fit (if ``strict``), or the
        network's tensors have no memory yet (meta device, lazy modules).
    ModuleNotFoundError
        If a ``.safetensors`` file is given without the ``weights`` extra.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "w.pt")
    >>> torch.save({"module.weight": torch.ones(1, 2)}, file)
    >>> load_checkpoint(nn.Linear(2, 1, bias=False), file)
    CheckpointReport of w.pt, prefix 'module.' removed
      naming            own
      loaded            1
    """
    state = network.state_dict()
    own = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    for name, value in own.items():
        if value.is_meta or is_lazy(value):
            raise ValueError(
                f"load_checkpoint: network must have memory for its tensors, got "
                f"{name} without. Call network.to_empty(device='cpu') first, or the "
                "forward pass of a lazy module."
            )
    file = read_state_dict(path, entry=entry)
    reading = _best_reading(file.tensors, own)
    theirs = reading.theirs
    found = {ours: file.tensors[name] for ours, name in theirs.items()}
    fitting: dict[str, Tensor] = {}
    misfits: dict[str, list[str]] = {}
    for name, place in own.items():
        if (value := found.get(name)) is None:
            continue
        if value.shape != place.shape:
            shapes = f"{tuple(value.shape)} for {tuple(place.shape)}"
            misfits.setdefault("of another shape", []).append(f"{name} {shapes}")
        elif fault := _fault(value, place):
            misfits.setdefault(fault, []).append(name)
        else:
            fitting[name] = value
    # A file may hold one tensor for several that share memory.
    filled = {_memory(own[name]) for name in fitting}
    missing = [
        name
        for name, value in own.items()
        if name not in found
        and not name.endswith("num_batches_tracked")
        and _memory(value) not in filled
    ]
    used = {theirs[ours] for ours in own if ours in theirs}
    left = {name: value for name, value in file.tensors.items() if name not in used}
    ignored = [name for name in left if _is_needless(name, file.tensors, reading)]
    normalisation, standardising = _find_normalisation(left, reading)
    unexpected = [name for name in left if name not in {*ignored, *standardising}]
    for kind, names in (("missing", missing), ("unexpected", unexpected)):
        if names:
            misfits[kind] = names
    report = CheckpointReport(
        file=file.path.name,
        entry=file.entry,
        prefix=reading.prefix,
        naming=reading.naming.name,
        n_loaded=len(fitting),
        misfits=misfits,
        contradictions=list(_contradictions(network, reading.naming)),
        ignored=[*file.others, *ignored],
        normalisation=normalisation,
    )
    if strict and not report.whole:
        raise ValueError(_refusal(report, own, found))
    network.load_state_dict(fitting, strict=False)
    return report


def _refusal(
    report: CheckpointReport, own: dict[str, Tensor], found: dict[str, Tensor]
) -> str:
    kinds = [f"{len(n)} {kind} ({_few(n)})" for kind, n in report.misfits.items()]
    text = (
        f"load_checkpoint: path must be a state dict with the model's {len(own)} "
        f"tensors, got {'; '.join([*kinds, *report.contradictions])}."
    )
    form, other = network_form(own), network_form(found)
    if form.keys() == other.keys() and form != other:
        changes = (f"{k}={v!r}" for k, v in other.items() if form[k] != v)
        text += f" The file is of a network with {', '.join(changes)}."
    return text


def network_for(
    name: str, path: str | Path, *, generator: torch.Generator | None = None
) -> tuple[nn.Module, dict[str, Any]]:
    """Build the named network in the form that a checkpoint has; load nothing.

    Like :func:`normalign.nn.network_for`, for files with any of the names that
    :func:`load_checkpoint` knows, which also determine the padding.

    Returns
    -------
    network : nn.Module
        With random weights.
    arguments : dict
        The arguments that were read from the file.
    """
    file = read_state_dict(path)
    ours = (
        "stem.weight",
        "stem.0.weight",
        "layer1.0.conv1.weight",
        "norm.weight",
        "fc.weight",
    )
    reading = _best_reading(file.tensors, ours)
    state = {name: file.tensors[theirs] for name, theirs in reading.theirs.items()}
    padding = {} if reading.naming is _OWN else {"padding": reading.naming.padding}
    return network_for_state(name, state, generator=generator, **padding)


def _fault(value: Tensor, place: Tensor) -> str:
    """Return why a tensor of the right shape cannot be loaded, or an empty string."""
    if not place.is_floating_point():
        return ""
    if not value.is_floating_point():
        return f"of {str(value.dtype).removeprefix('torch.')} for real numbers"
    # Includes overflow in the network's dtype.
    if not bool(value.to(place.dtype).isfinite().all()):
        return f"not finite in {str(place.dtype).removeprefix('torch.')}"
    return ""


def _memory(tensor: Tensor) -> tuple[object, ...]:
    """Return a key that is the same for tensors that share their memory."""
    if not tensor.numel():
        return (id(tensor),)
    return tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride()


def _is_needless(name: str, tensors: dict[str, Tensor], reading: _Reading) -> bool:
    """Whether a tensor is never used by the network, or an exact copy of another."""
    short = reading.short[name]
    if "n_averaged" in (short, name) or short.startswith(reading.naming.unused):
        return True
    original = tensors.get(name.replace("attacker.", "", 1))
    if "attacker." not in name or original is None:
        return False
    return torch.equal(tensors[name], original)


def _find_normalisation(
    left: dict[str, Tensor], reading: _Reading
) -> tuple[Standardise | None, set[str]]:
    """Return the standardisation among the remaining tensors, and its names."""
    found: dict[tuple[tuple[float, ...], tuple[float, ...]], set[str]] = {}
    for name, value in left.items():
        parent, dot, leaf = name.rpartition(".")
        partner = f"{parent}{dot}{_STANDARDISING.get(leaf)}"
        outside = reading.short[name].count(".") <= 2  # "attacker.normalize.new_mean"
        if partner not in left or not outside:
            continue
        pair = value, left[partner]
        if not 0 < pair[0].numel() == pair[1].numel() <= _MAX_CHANNELS:
            continue
        mean, std = (tuple(part.double().flatten().tolist()) for part in pair)
        if all(map(math.isfinite, (*mean, *std))) and min(std) > 0:
            found.setdefault((mean, std), set()).update((name, partner))
    if len(found) != 1:  # none, or several that differ
        return None, set()
    ((statistics, names),) = found.items()
    return Standardise(*statistics), names


def _contradictions(network: nn.Module, naming: _Naming) -> Iterator[str]:
    """Yield how the names of a file contradict the network."""
    ours = next((k for k in (ResNet, WideResNet) if isinstance(network, k)), None)
    if ours is None or naming is _OWN:
        return
    if naming.family != ours.__name__:
        yield f"the names are those of a {naming.family}, not of a {ours.__name__}"
    elif isinstance(network, WideResNet) and naming.padding != network.padding:
        yield (
            f"networks of these names ({naming.name}) are built with "
            f"padding={naming.padding!r}, this one with {network.padding!r}"
        )
