"""How others name the tensors of residual networks, and what we call them.

Pure functions of names: no file and no tensor is touched here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

__all__ = ["OWN", "STANDARDISING", "Naming", "Reading", "best_reading", "recognised"]

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

    def renamed(self, name: str) -> str:
        """Return our name of a tensor; a name that no rule knows stays as it is.

        Examples
        --------
        >>> recognised(["block1.layer.0.bn1.bias"]).renamed("block3.layer.1.bn2.bias")
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


def recognised(names: Collection[str]) -> Naming:
    """Return the naming that the names of a whole checkpoint follow.

    Told by the blocks: ``layer.0.block.0.`` is ``"wide-end"``, ``block1.layer.0.`` is
    ``"wide"``, ``layer1.0.`` beside ``conv1.weight`` is a ResNet, ``"cifar"`` if its
    projections are called ``shortcut`` or its head ``linear``, else ``"torchvision"``.
    Anything else is ``"own"``: names are then taken as they are.

    Examples
    --------
    >>> recognised(["conv1.weight", "layer1.0.conv1.weight", "linear.bias"]).name
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
            ours.setdefault(self.naming.renamed(short), theirs)
        return ours


def best_reading(names: Collection[str], own: Collection[str]) -> Reading:
    """Return the reading by which most names are the network's; the simplest of equals.

    As it is before a prefix is taken off, and untranslated before translated.
    """
    readings = [
        Reading(prefix, naming, short)
        for prefix, short in _shortened(names)
        for naming in dict.fromkeys((OWN, recognised(short.values())))
    ]
    return max(readings, key=lambda reading: len(reading.first.keys() & set(own)))


def _shortened(names: Collection[str]) -> Iterator[tuple[str, dict[str, str]]]:
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
