"""Threads that work on one machine together: who does what, and who waits for what.

Work comes in phases, a phase in items. Whoever is free takes the next item; a phase is
over when its items are done, not when its members have come, so a member that its
processor keeps waiting holds nobody up, and one alone gets through as well. Members are
threads of Python that run compiled code, which needs no lock. One that waits gives its
core to whoever wants it.

In compiled code a phase reads::

    item = first_item(flags, phase, members)
    while item < items:
        ...
        item = next_item(flags, phase, members, item)
    wait(flags, phase, members, items)

Nothing may be touched outside of an item but what is the member's own: a late member
passes through phases that are long over.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types

from normalign.kernels.compiled.compiling import compiled, instruction, remembered

__all__ = [
    "first_item",
    "give_up",
    "next_item",
    "team_size",
    "threads",
    "together",
    "wait",
]

_LINE = 8  # integers of a cache line: no two flags share one
_GIVEN_UP = 0
_ROWS_EACH = 125  # below that many rows a second member costs more than it brings
_POSIX = os.name == "posix"

_LOOKS = 2000  # that a helper takes for new work before it sleeps: about a millisecond

_yield_core = types.ExternalFunction("sched_yield", types.int32())
_this_core = types.ExternalFunction("sched_getcpu", types.int32())


@remembered
def _core() -> int:
    return _this_core()


@instruction
def _add(typing: Any, flags: Any, place: Any, amount: Any) -> Any:
    """Add to a flag that others see and change, and return what it was."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        address = builder.gep(array.data, [args[1]])
        return builder.atomic_rmw("add", address, args[2], "seq_cst")

    return types.int64(flags, types.intp, types.int64), code


@instruction
def _seen(typing: Any, flags: Any, place: Any) -> Any:
    """A flag as others have left it."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        address = builder.gep(array.data, [args[1]])
        return builder.load_atomic(address, "seq_cst", 8, typ=ir.IntType(64))

    return types.int64(flags, types.intp), code


@compiled
def first_item(flags: Any, phase: int, members: int) -> int:
    """An item of a phase that nobody has taken yet."""
    return 0 if members == 1 else _add(flags, (2 * phase + 1) * _LINE, 1)


@compiled
def next_item(flags: Any, phase: int, members: int, item: int) -> int:
    """Say that an item is done, and take another."""
    if members == 1:
        return item + 1
    _add(flags, (2 * phase + 2) * _LINE, 1)
    return _add(flags, (2 * phase + 1) * _LINE, 1)


@compiled
def wait(flags: Any, phase: int, members: int, items: int) -> bool:
    """Return when all items of a phase are done; False if somebody gave up."""
    if members == 1:
        return True
    looks = 0
    while _seen(flags, (2 * phase + 2) * _LINE) < items:
        if _seen(flags, _GIVEN_UP):
            return False
        looks += 1
        if looks > 100:
            _yield_core()
    return True


@compiled
def give_up(flags: Any) -> None:
    """Tell all members that the work cannot be finished."""
    _add(flags, _GIVEN_UP, 1)


@remembered
def _changes(turn: Any, last: int, looks: int) -> bool:
    """Whether a number becomes another one within so many looks at it."""
    for _ in range(looks):
        if _seen(turn, 0) != last:
            return True
        _yield_core()
    return False


class _Helper:
    """A thread that helps whoever asks, and stays awake for a while after that.

    An iteration is some calls with little between them. A thread that slept in between
    would be woken on the core of the caller as often as not, and both would share it
    for milliseconds; this one looks for new work for about one, and is kept off the
    caller's core.
    """

    def __init__(self) -> None:
        self.turn = np.zeros(1, dtype=np.int64)
        self.work: Callable[[], object] | None = None
        self.awake = False
        self.dismissed = False
        self.bell = threading.Semaphore(0)
        self.thread = threading.Thread(target=self.serve, name="normalign", daemon=True)
        self.thread.start()

    def ask(self, work: Callable[[], object], cores: set[int]) -> None:
        """Have something done, or not, if the thread comes too late."""
        if cores and self.thread.native_id is not None:
            with suppress(OSError):  # not everywhere is that allowed
                os.sched_setaffinity(self.thread.native_id, cores)
        self.work = work
        self.turn[0] += 1
        if not self.awake:
            self.bell.release()

    def serve(self) -> None:
        """Wait, work, look out for more."""
        last = 0
        while not self.dismissed:
            if not _changes(self.turn, last, _LOOKS):
                self.awake = False
                if self.turn[0] == last:  # none has asked in between
                    self.bell.acquire()
                self.awake = True
            last, work = int(self.turn[0]), self.work
            self.work = None
            if work is not None:
                work()
            del work

    def dismiss(self) -> None:
        """End the thread, which must not outlive the interpreter."""
        self.dismissed = True
        self.turn[0] += 1
        self.bell.release()
        self.thread.join(timeout=10)


def _other_cores() -> set[int]:
    """Where the caller may run, and does not now."""
    if not sys.platform.startswith("linux"):
        return set()
    return os.sched_getaffinity(0) - {_core()}


_helpers: list[_Helper] = []


@atexit.register
def _dismiss_all() -> None:
    while _helpers:
        _helpers.pop().dismiss()


if hasattr(os, "register_at_fork"):
    # A process that was forked has none of the threads.
    os.register_at_fork(after_in_child=_helpers.clear)


def threads() -> int:
    """How many members there may be: as many threads as torch may use."""
    return torch.get_num_threads() if _POSIX else 1


def team_size(n: int) -> int:
    """How many members pay for a table of ``n`` rows."""
    return max(min(threads(), n // _ROWS_EACH), 1)


def together(work: Callable[[int, Any], Any], members: int, phases: int) -> Any:
    """Do some work with the help of others, and return the caller's answer.

    ``work`` is called with the number of members that there may be, and their flags.
    When the caller is through, so is the work, whether the others have come or not; one
    that comes late finds nothing left.
    """
    flags = np.zeros((2 * phases + 1) * _LINE if members > 1 else 1, dtype=np.int64)
    if members > 1:
        while len(_helpers) < members - 1:
            _helpers.append(_Helper())
        cores = _other_cores()
        for helper in _helpers[: members - 1]:
            helper.ask(partial(work, members, flags), cores)
    return work(members, flags)
