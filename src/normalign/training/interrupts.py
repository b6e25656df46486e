"""Ctrl-C at a moment of our choosing."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Self

__all__ = ["Interrupts"]


class Interrupts:
    """Turn the first Ctrl-C into a flag, so that work can stop between two epochs.

    An epoch updates its parameters in place; broken off in the middle it would leave a
    state that no uninterrupted run has. A second Ctrl-C interrupts at once. Nothing is
    changed outside the main thread, where Python delivers no signals, nor where the
    process ignores Ctrl-C, as one in the background may.

    Examples
    --------
    >>> before = signal.signal(signal.SIGINT, signal.default_int_handler)
    >>> with Interrupts() as interrupts:
    ...     signal.raise_signal(signal.SIGINT)
    ...     interrupts.came
    True
    >>> _ = signal.signal(signal.SIGINT, before)
    """

    def __init__(self) -> None:
        self.came = False
        self._previous: object = None

    def __enter__(self) -> Self:
        here = threading.current_thread() is threading.main_thread()
        if here and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *reason: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.came:
            raise KeyboardInterrupt
        self.came = True
