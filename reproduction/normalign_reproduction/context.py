"""What an experiment is: the runs it takes, its device, and its checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from normalign_reproduction.files import load_cache, write_checked
from normalign_reproduction.spec import Run

if TYPE_CHECKING:
    import torch

__all__ = ["Context", "Experiment", "RunCache", "experiment_named"]


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
    """What the ``experiment.py`` of an item has."""

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


# The folder in `items` of each experiment. Its name is part of the keys of results.
_FOLDERS = {
    "acceleration": "table1", "robust_images": "capacity", "tabular": "table2",
}  # fmt: skip


def experiment_named(name: str) -> Experiment:
    """Return an experiment by the name that its items and runs have for it.

    Parameters
    ----------
    name : str
        A name from the keys of results; with a dot, a module of one's own, which every
        process that computes must be able to import.
    """
    folder = _FOLDERS.get(name, name)
    own = f"normalign_reproduction.items.{folder}.experiment"
    return cast(Experiment, import_module(name if "." in name else own))


class RunCache:
    """The finished runs of a batch, a file for each beside its checkpoint.

    The runner removes the files when the whole batch is stored. A file is written in
    one step; one that is damaged all the same, or of another run, counts for nothing,
    and its run is computed again.

    Parameters
    ----------
    context : Context
        Of the batch.

    Examples
    --------
    >>> import tempfile, torch
    >>> run = Run("tabular", 1, "quick", "text", "bundled", {}, seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kept = RunCache(Context(torch.device("cpu"), Path(folder, "batch")))
    ...     kept.get(run), kept.put(run, {"accuracy": 0.5}), kept.get(run)
    (None, {'accuracy': 0.5}, {'accuracy': 0.5})
    """

    def __init__(self, context: Context) -> None:
        self._base = context.checkpoint

    def get(self, run: Run) -> dict[str, Any] | None:
        """Return the result of a run that is done, or ``None``."""
        content = load_cache(self._path(run))
        if content is None or content.get("run") != run.to_dict():
            return None
        result = content.get("result")
        return result if isinstance(result, dict) else None

    def put(self, run: Run, result: dict[str, Any]) -> dict[str, Any]:
        """Keep the result of a run, and return it as it will be read back.

        Raises
        ------
        ValueError
            If JSON cannot hold it: a number in it is not finite.
        """
        content = {"run": run.to_dict(), "result": result}
        write_checked(self._path(run), content)
        return json.loads(json.dumps(result))

    def _path(self, run: Run) -> Path:
        return self._base.with_name(f"{self._base.name}.{run.key}.kept")
