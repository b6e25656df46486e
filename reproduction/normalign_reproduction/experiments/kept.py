"""What of a batch is done, kept run by run: a crash costs the run it fell in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from normalign_reproduction.context import Context
from normalign_reproduction.files import load_cache, write_checked
from normalign_reproduction.spec import Run

__all__ = ["Kept"]


class Kept:
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
    ...     kept = Kept(Context(torch.device("cpu"), Path(folder, "batch")))
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
