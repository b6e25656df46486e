"""Weights of others in the residual networks of ``normalign.nn``.

Common CIFAR repositories and torchvision name the tensors of these networks in other
ways. :func:`load_checkpoint` translates the names, fills a network and reports on every
tensor; :func:`network_for` builds the network that fits a file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from normalign.nn import (
    ResNet,
    Standardise,
    StateFile,
    WideResNet,
    network_form,
    read_state_dict,
)
from normalign.nn import network_for as network_of_state
from normalign_reproduction._errors import complaint, require, require_kind

__all__ = ["CheckpointReport", "Normalisation", "load_checkpoint", "network_for"]

_COUNTER = "num_batches_tracked"
# Names of ours that show whether the names of a file are read in the right way.
_LANDMARKS = (
    "stem.weight", "stem.0.weight", "layer1.0.conv1.weight", "norm.weight", "fc.weight",
)  # fmt: skip
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
    callee, argument = "load_checkpoint", "path"
    module = isinstance(network, nn.Module)
    require_kind(module, callee, "network", "a torch.nn.Module", network)
    own = _tensors_of(network, callee)
    file = read_state_dict(path, entry=entry)
    reading = best_reading(file.tensors, own)
    report, fitting = _compare(network, own, file, reading)
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


def network_for(
    name: str, path: str | Path, *, generator: torch.Generator | None = None
) -> tuple[nn.Module, dict[str, Any]]:
    """Build the named network in the form that a checkpoint has; load nothing.

    As :func:`normalign.nn.network_for`, for files with any of the names that
    :func:`load_checkpoint` knows, which also determine the padding.

    Returns
    -------
    network : nn.Module
        With weights as drawn.
    arguments : dict
        What was read from the file.

    Raises
    ------
    ValueError
        If there is no such network, the file cannot be read, or has no depth of a
        ``"WideResNet"``.
    """
    file = read_state_dict(path)
    reading = best_reading(file.tensors, _LANDMARKS)
    state = {ours: file.tensors[theirs] for ours, theirs in reading.first.items()}
    padding = {} if reading.naming is OWN else {"padding": reading.naming.padding}
    return network_of_state(name, state, generator=generator, **padding)


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


# ---- names ---

# Buffers that standardise the input, by their last word: a mean and its deviation.
STANDARDISING = {
    "mean": "std", "mu": "sigma", "new_mean": "new_std", "image_mean": "image_std",
}  # fmt: skip


@dataclass(frozen=True)
class Naming:
    """A convention for the names of a network's tensors.

    Attributes
    ----------
    name : str
        ``"own"``, ``"torchvision"``, ``"cifar"``, ``"wide"`` or ``"wide-end"``.
    family : str
        The network that it names; empty for ``"own"``, which is any.
    rules : tuple of (pattern, replacement)
        Each name is rewritten by the first pattern that matches its beginning.
    unused : tuple of str
        Beginnings of names of modules that are saved but never called.
    padding : str
        What a :class:`WideResNet` must be built with for these tensors.
    """

    name: str
    family: str = ""
    rules: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = ()
    unused: tuple[str, ...] = ()
    padding: str = "both"

    def rename(self, name: str) -> str:
        """Return our name of a tensor; a name that no rule knows stays as it is.

        Examples
        --------
        >>> naming_of(["block1.layer.0.bn1.bias"]).rename("block3.layer.1.bn2.bias")
        'layer3.1.norm2.bias'
        """
        for pattern, replacement in self.rules:
            if pattern.match(name):
                return pattern.sub(replacement, name, count=1)
        return name


def _rules(
    *pairs: tuple[str, str | Callable[[re.Match[str]], str]],
) -> tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]:
    return tuple((re.compile("^" + pattern), new) for pattern, new in pairs)


def _from_zero(match: re.Match[str]) -> str:
    """Name a layer of a block where groups and layers are counted from zero."""
    group, block, kind, position = match.groups()
    ours = {"batchnorm": "norm", "conv": "conv"}[kind]
    return f"layer{int(group) + 1}.{block}.{ours}{int(position) + 1}."


def _shortcut_from_zero(match: re.Match[str]) -> str:
    group, block = match.groups()
    return f"layer{int(group) + 1}.{block}.shortcut."


_RESNET = _rules(
    (r"conv1\.", "stem.0."),
    (r"bn1\.", "stem.1."),
    (r"(layer\d+\.\d+)\.downsample\.", r"\1.shortcut."),
    (r"linear\.", "fc."),
)

OWN = Naming("own")
TORCHVISION = Naming("torchvision", "ResNet", _RESNET)
CIFAR = Naming("cifar", "ResNet", _RESNET)
WIDE = Naming(
    "wide",
    "WideResNet",
    _rules(
        (r"conv1\.", "stem."),
        (r"block(\d+)\.layer\.(\d+)\.bn(\d+)\.", r"layer\1.\2.norm\3."),
        (r"block(\d+)\.layer\.(\d+)\.conv(\d+)\.", r"layer\1.\2.conv\3."),
        (r"block(\d+)\.layer\.(\d+)\.convShortcut\.", r"layer\1.\2.shortcut."),
        (r"bn1\.", "norm."),
    ),
    # A second first stage that the TRADES port builds and its forward pass skips.
    unused=("sub_block1.",),
)
WIDE_END = Naming(
    "wide-end",
    "WideResNet",
    _rules(
        (r"init_conv\.", "stem."),
        (r"layer\.(\d+)\.block\.(\d+)\.(batchnorm|conv)_(\d+)\.", _from_zero),
        (r"layer\.(\d+)\.block\.(\d+)\.shortcut\.", _shortcut_from_zero),
        (r"batchnorm\.", "norm."),
        (r"logits\.", "fc."),
    ),
    # The port imitates TensorFlow's "SAME": zeros at the end only where it halves.
    padding="end",
)


def naming_of(names: Collection[str]) -> Naming:
    """Return the naming that the names of a whole checkpoint follow.

    The names of the blocks decide: ``layer.0.block.0.`` is ``"wide-end"``,
    ``block1.layer.0.`` is ``"wide"``, ``layer1.0.`` beside ``conv1.weight`` is a
    ResNet, ``"cifar"`` if its projections are called ``shortcut`` or its head
    ``linear``, else ``"torchvision"``.
    Anything else is ``"own"``: names are then taken as they are.

    Examples
    --------
    >>> naming_of(["conv1.weight", "layer1.0.conv1.weight", "linear.bias"]).name
    'cifar'
    """

    def some(pattern: str) -> bool:
        return any(re.match(pattern, name) for name in names)

    if some(r"layer\.\d+\.block\.\d+\."):
        return WIDE_END
    if some(r"block\d+\.layer\.\d+\."):
        return WIDE
    if "conv1.weight" in names and some(r"layer\d+\.\d+\."):
        cifar = some(r"linear\.") or some(r"layer\d+\.\d+\.shortcut\.")
        return CIFAR if cifar else TORCHVISION
    return OWN


@dataclass(frozen=True)
class Reading:
    """One way to take the names of a file: a prefix off, then a naming's rules."""

    prefix: str
    naming: Naming
    short: dict[str, str]  # the file's name -> without the prefix

    @property
    def first(self) -> dict[str, str]:
        """Our name -> the file's; of two with one name the first."""
        ours: dict[str, str] = {}
        for theirs, short in self.short.items():
            ours.setdefault(self.naming.rename(short), theirs)
        return ours


def best_reading(names: Collection[str], own: Collection[str]) -> Reading:
    """Return the reading by which most names are the network's; the simplest of equals.

    As it is before a prefix is taken off, and untranslated before translated.
    """
    readings = [
        Reading(prefix, naming, short)
        for prefix, short in _without_prefixes(names)
        for naming in dict.fromkeys((OWN, naming_of(short.values())))
    ]
    return max(readings, key=lambda reading: len(reading.first.keys() & set(own)))


def _without_prefixes(names: Collection[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Give the names as they are, then without each word that all begin with."""
    prefix, short = "", {name: name for name in names}
    while True:
        yield prefix, short
        core = [name for name in short.values() if not _beside(name)]
        words = {name.partition(".")[0] for name in core}
        if len(words) != 1 or not all("." in name for name in core):
            return
        word = words.pop() + "."
        prefix += word
        short = {theirs: name.removeprefix(word) for theirs, name in short.items()}


def _beside(name: str) -> bool:
    """Whether a tensor may stand beside the network's and need not share its prefix."""
    leaf = name.rpartition(".")[2]
    return (
        leaf in STANDARDISING
        or leaf in STANDARDISING.values()
        or leaf == "n_averaged"
        or name.startswith("attacker.")
    )


# ---- report ---

_SHOWN = 4  # names of a kind in a line; the attributes have them all


@dataclass(frozen=True)
class Normalisation:
    """What a checkpoint subtracts from its inputs and divides them by, per channel.

    Attributes
    ----------
    mean, std : tuple of float
        One number per channel, or one for all.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def layer(self) -> Standardise:
        """Return the layer to put first: ``nn.Sequential(..., network)``.

        Examples
        --------
        >>> import torch
        >>> Normalisation((1.0,), (2.0,)).layer()(torch.full((1, 1, 1, 1), 5.0)).item()
        2.0
        """
        return Standardise(self.mean, self.std)

    def __str__(self) -> str:
        mean, std = (
            ", ".join(f"{value:.4g}" for value in values)
            for values in (self.mean, self.std)
        )
        return f"mean ({mean}), std ({std})"


@dataclass(frozen=True, repr=False)
class CheckpointReport:
    """What :func:`load_checkpoint` found in a file and did with it.

    Attributes
    ----------
    file : str
    entry : str
        Where in the file the weights were, such as ``"state_dict"``; empty at the top.
    prefix : str
        What was taken off the names, such as ``"module."``.
    naming : str
        ``"own"``, ``"torchvision"``, ``"cifar"``, ``"wide"`` or ``"wide-end"``; see
        :func:`load_checkpoint`.
    n_loaded : int
        Tensors of the network that now hold the file's values.
    missing : tuple of str
        Tensors of the network that the file lacks, by the network's names.
    unexpected : tuple of str
        Tensors of the file that the network lacks, by the file's names.
    misshapen : tuple of (name, shape in the file, shape in the network)
    ignored : tuple of str
        What was in the file and rightly left there: state dicts beside the one that
        was read, plain values, modules that are never called, exact copies.
    normalisation : Normalisation or None
        A standardisation of the inputs that is in the file and not in the network.
        It changes the function: put ``normalisation.layer()`` before the network.
    notes : tuple of str
        What speaks against the network although shapes fit. Of the names: another
        family, another padding; or the tensors: integers, values that are not finite.
    """

    file: str
    entry: str
    prefix: str
    naming: str
    n_loaded: int
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misshapen: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    ignored: tuple[str, ...]
    normalisation: Normalisation | None
    notes: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether file and network fit each other with nothing over."""
        return not (self.missing or self.unexpected or self.misshapen or self.notes)

    def misfits(self) -> str:
        """Say in one line what did not fit; empty if all did."""
        shapes = [
            f"{name}: {theirs} in the file, {ours} in the model"
            for name, theirs, ours in self.misshapen
        ]
        kinds = (
            ("missing", self.missing),
            ("unexpected", self.unexpected),
            ("of another shape", shapes),
        )
        counted = [f"{len(n)} {kind} ({few(n)})" for kind, n in kinds if n]
        return "; ".join([*counted, *self.notes])

    def __repr__(self) -> str:
        entry = f", entry {self.entry!r}" if self.entry else ""
        prefix = f", prefix {self.prefix!r} taken off" if self.prefix else ""
        lines = [
            f"CheckpointReport of {self.file}{entry}{prefix}",
            f"  naming         {self.naming}",
            f"  loaded         {self.n_loaded}",
        ]
        misshapen = [f"{name} {a} for {b}" for name, a, b in self.misshapen]
        for kind, names in (
            ("missing", self.missing),
            ("unexpected", self.unexpected),
            ("misshapen", misshapen),
            ("ignored", self.ignored),
        ):
            if names:
                lines.append(f"  {kind:<14} {len(names)} ({few(names)})")
        if self.normalisation is not None:
            lines.append(f"  normalisation  {self.normalisation}, not applied")
        lines += [f"  note           {text}" for text in self.notes]
        return "\n".join(lines)


def few(names: Collection[str]) -> str:
    """Return the first names, and dots for the others."""
    shown = list(names)[:_SHOWN]
    return ", ".join(shown) + ", ..." * (len(names) > _SHOWN)


# ---- comparison ---------------------------------------------------------------------


def _compare(
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
            *_notes_on_names(network, reading.naming),
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


def _notes_on_names(network: nn.Module, naming: Naming) -> Iterator[str]:
    """Say how the names contradict the network."""
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
