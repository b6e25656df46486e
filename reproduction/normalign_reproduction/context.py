"""What an experiment is given to run with: a device, a file to survive in, an ear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from normalign_reproduction.spec import Run

if TYPE_CHECKING:
    import torch

__all__ = ["Context", "Experiment", "experiment_named"]


def _silent(share: float, words: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class Context:
    """Where a batch of runs computes, and how it is heard and kept.

    Parameters
    ----------
    device : torch.device
    checkpoint : Path
        Where the batch may keep its state to go on from after a crash: files whose
        names begin with this path's. The runner removes them when all is stored.
    checkpoint_seconds : float
        How often.
    progress : callable
        ``progress(share, words)``: how much is done, 0 to 1, and at what it is.
    """

    device: torch.device
    checkpoint: Path
    checkpoint_seconds: float = 15.0
    progress: Callable[[float, str], None] = _silent


class Experiment(Protocol):
    """What a module of :mod:`normalign_reproduction.experiments` must have."""

    @staticmethod
    def batches(runs: Sequence[Run], device: torch.device) -> list[list[Run]]:
        """Return the runs in groups that are computed together.

        The grouping depends on the runs and on the kind of device alone. On CUDA a
        group may be everything; on a CPU it is what one process does, in about a
        minute at quick size.
        """
        ...

    @staticmethod
    def compute(batch: Sequence[Run], context: Context) -> list[dict[str, Any]]:
        """Return the result of each run of a batch, in its order.

        A result holds what JSON can: finite numbers, text, ``None``, lists and
        dictionaries of these. The same batch gives the same results on the same
        machine, however often it was killed on the way.

        Raises
        ------
        KeyboardInterrupt
            If it was interrupted; its state is in the checkpoint then.
        """
        ...


def experiment_named(name: str) -> Experiment:
    """Return an experiment by the name that its items and runs have for it.

    Parameters
    ----------
    name : str
        A module of ``normalign_reproduction.experiments``; with a dot, a module of
        one's own, which every process that computes must be able to import.
    """
    module = name if "." in name else f"normalign_reproduction.experiments.{name}"
    return cast(Experiment, import_module(module))
