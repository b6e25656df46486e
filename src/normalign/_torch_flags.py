"""The settings of torch that the library changes for a while, all in one place.

torch holds each of them once for the whole process. Two threads that save and restore
one on their own can restore what the other has set, and leave it changed for good. So
every change goes through :func:`override`: under one lock the first caller saves a
setting, and the last one to leave restores it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["FLAGS", "override"]

Change = Callable[[Any], Callable[[], None]]


class _Flag:
    """One setting, and the values that are asked for at the moment.

    Parameters
    ----------
    change : callable
        Sets a value and returns a function that undoes it.
    """

    def __init__(self, change: Change) -> None:
        self._change = change
        self._requests: list[_Request] = []
        self._restore: Callable[[], None] | None = None

    def enter(self, request: _Request) -> None:
        if not self._requests:
            self._restore = self._change(request.value)
        elif self._requests[-1].value != request.value:
            self._change(request.value)
        self._requests.append(request)

    def leave(self, request: _Request) -> None:
        before = self._requests[-1].value
        self._requests.remove(request)
        if not self._requests:
            assert self._restore is not None
            self._restore()
        elif self._requests[-1].value != before:
            self._change(self._requests[-1].value)


class _Request:
    """A value that one caller asks for; equal to no other request."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _by_functions(read: Callable[[], Any], write: Callable[[Any], None]) -> Change:
    def change(value: Any) -> Callable[[], None]:
        before = read()
        write(value)
        return lambda: write(before)

    return change


def _by_attribute(holder: Any, name: str) -> Change:
    return _by_functions(
        lambda: getattr(holder, name), lambda value: setattr(holder, name, value)
    )


def _compiler_stance(value: str) -> Callable[[], None]:
    stance = torch.compiler.set_stance(value)
    return lambda: stance.__exit__(None, None, None)


_cuda = torch.backends.cuda
FLAGS = {
    "attention_fast_path": _Flag(
        _by_functions(
            torch.backends.mha.get_fastpath_enabled,
            torch.backends.mha.set_fastpath_enabled,
        )
    ),
    "flash_attention": _Flag(
        _by_functions(_cuda.flash_sdp_enabled, _cuda.enable_flash_sdp)
    ),
    "memory_efficient_attention": _Flag(
        _by_functions(_cuda.mem_efficient_sdp_enabled, _cuda.enable_mem_efficient_sdp)
    ),
    "cudnn_attention": _Flag(
        _by_functions(_cuda.cudnn_sdp_enabled, _cuda.enable_cudnn_sdp)
    ),
    "math_attention": _Flag(
        _by_functions(_cuda.math_sdp_enabled, _cuda.enable_math_sdp)
    ),
    "compiler_stance": _Flag(_compiler_stance),
    "onednn": _Flag(_by_attribute(torch.backends.mkldnn, "enabled")),
    "cudnn": _Flag(_by_attribute(torch.backends.cudnn, "enabled")),
    "cudnn_benchmark": _Flag(_by_attribute(torch.backends.cudnn, "benchmark")),
    "cuda_matmul_precision": _Flag(_by_attribute(_cuda.matmul, "fp32_precision")),
    "onednn_matmul_precision": _Flag(
        _by_attribute(torch.backends.mkldnn.matmul, "fp32_precision")  # pyright: ignore
    ),
    "onednn_conv_precision": _Flag(
        _by_attribute(torch.backends.mkldnn.conv, "fp32_precision")  # pyright: ignore
    ),
    "cudnn_conv_precision": _Flag(
        _by_attribute(torch.backends.cudnn.conv, "fp32_precision")  # pyright: ignore
    ),
}
_LOCK = threading.Lock()


@contextmanager
def override(**values: Any) -> Iterator[None]:
    """Change settings of torch by their names in ``FLAGS``, and restore them.

    Other threads see the change while it lasts. Of several values that are asked for
    at the same time the latest holds; the original value returns with the end of the
    last request. What others set in between is lost then.

    Examples
    --------
    >>> with override(flash_attention=False):
    ...     torch.backends.cuda.flash_sdp_enabled()
    False
    """
    requests: list[tuple[_Flag, _Request]] = []
    try:
        with _LOCK:
            for name, value in values.items():
                flag, request = FLAGS[name], _Request(value)
                flag.enter(request)
                requests.append((flag, request))
        yield
    finally:
        with _LOCK:
            for flag, request in reversed(requests):
                flag.leave(request)
