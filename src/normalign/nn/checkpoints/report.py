"""What became of a checkpoint: which of its tensors a network took, which not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from normalign.nn.layers import Standardise

__all__ = ["CheckpointReport", "Normalisation", "few"]

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
