"""What protects the work: one process to a folder, and Ctrl-C without haste."""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Self

from normalign_reproduction._errors import require

try:
    import fcntl
except ModuleNotFoundError:  # not on every system
    fcntl = None

__all__ = ["Stop", "alone"]


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other processes from working in a folder while the block runs.

    The system lets go of it when this process ends, however it does.

    Raises
    ------
    ValueError
        If another process works there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free = True
            except BlockingIOError:
                free = False
            require(
                free, "normalign_reproduction", "the folder", "free to work in",
                f"{folder}, in which another process computes",
                "Wait for it, or name another folder.",
            )  # fmt: skip
        yield


class Stop:
    """Ctrl-C as a flag, passed on once to the processes that compute.

    The first Ctrl-C lets them write their checkpoints; a second one, or some seconds,
    ends the wait.

    Parameters
    ----------
    passes_on : bool
        Whether there are processes to pass it on to. Otherwise nothing is changed, and
        Ctrl-C interrupts as ever.
    grace : float
        Seconds that the processes have.
    """

    def __init__(self, *, passes_on: bool, grace: float = 8.0) -> None:
        self.passes_on, self.grace = passes_on, grace
        self.came, self.full = False, False
        self._told: set[int] = set()
        self._since: float | None = None
        self._previous: object = None

    def __enter__(self) -> Self:
        main = threading.current_thread() is threading.main_thread()
        heard = main and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        if self.passes_on and heard:
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *reason: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)  # type: ignore[arg-type]

    def attend(self, processes: set[int]) -> None:
        """Tell the processes that have not been told yet, and mind the time.

        Called twice a second, from another thread.
        """
        if not (self.came and self.passes_on):
            return
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        for process in processes - self._told:
            self._told.add(process)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGINT)
        if now - self._since > self.grace:
            self._since = now
            _thread.interrupt_main()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.came:
            raise KeyboardInterrupt
        self.came = True
