"""What an experiment is, where its batches compute, and its cache of finished runs."""

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


@dataclass(frozen=True)
class Context:
    """Where a batch computes and writes checkpoints, and its progress callback.

    A batch may write files whose names begin with that of `checkpoint`, to resume from
    after a crash. The runner removes them when all results are stored.
    ``progress(share, words)`` takes the share that is done, 0 to 1, and a description.
    """

    device: torch.device
    checkpoint: Path
    checkpoint_seconds: float = 15.0
    progress: Callable[[float, str], None] = lambda share, words: None


class Experiment(Protocol):
    """The functions of an item's ``experiment.py``."""

    @staticmethod
    def batches(runs: Sequence[Run], device: torch.device) -> list[list[Run]]:
        """Return the runs in groups that are computed together.

        Whether two runs are in the same group must depend on these two and on the kind
        of device alone, so that a command that is repeated finds the checkpoints of its
        batches. On CUDA a group may be everything; on a CPU it is the work of one
        process, about a minute at quick size.
        """
        ...

    @staticmethod
    def compute(batch: Sequence[Run], context: Context) -> list[dict[str, Any]]:
        """Return the result of each run of a batch, in its order.

        A result contains finite numbers, text, ``None``, and lists and dictionaries of
        these. The same batch gives the same results on the same machine, however often
        it was killed and resumed. A ``KeyboardInterrupt`` may end it at any time.
        """
        ...


# The folder in `items` of each experiment. Its name is part of the keys of results.
_FOLDERS = {
    "acceleration": "table1",
    "robust_images": "capacity",
    "tabular": "table2",
}


def experiment_named(name: str) -> Experiment:
    """Return an experiment by the name in the keys of its results.

    A name with a dot is that of a module outside this package, which every process
    must be able to import.
    """
    folder = _FOLDERS.get(name, name)
    module = f"normalign_reproduction.items.{folder}.experiment"
    return cast(Experiment, import_module(name if "." in name else module))


class RunCache:
    """The finished runs of an unfinished batch, a file for each beside its checkpoint.

    Examples
    --------
    >>> import tempfile, torch
    >>> run = Run("tabular", 1, "quick", "text", "bundled", {}, seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache = RunCache(Context(torch.device("cpu"), Path(folder, "batch")))
    ...     cache.get(run), cache.put(run, {"accuracy": 0.5}), cache.get(run)
    (None, {'accuracy': 0.5}, {'accuracy': 0.5})
    """

    def __init__(self, context: Context) -> None:
        self._base = context.checkpoint

    def get(self, run: Run) -> dict[str, Any] | None:
        """Return the result of a finished run, or ``None``."""
        content = load_cache(self._path(run))
        if content is None or content.get("run") != run.to_dict():
            return None
        return content["result"]

    def put(self, run: Run, result: dict[str, Any]) -> dict[str, Any]:
        """Store the result of a run, and return it as it will be read back."""
        write_checked(self._path(run), {"run": run.to_dict(), "result": result})
        return json.loads(json.dumps(result))

    def _path(self, run: Run) -> Path:
        return self._base.with_name(f"{self._base.name}.{run.key}.kept")
