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


class _Request:
    """A value that one caller asks for; equal to no other request."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Flag:
    """One setting, and the values that are asked for at the moment.

    Ctrl-C may interrupt both methods anywhere: what is written is always known to be
    asked for already, and :meth:`leave` can be repeated.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None]) -> None:
        self._read, self._write = read, write
        self._requests: list[_Request] = []
        self._original: Any = None

    def enter(self, request: _Request) -> None:
        if not self._requests:
            self._original = self._read()
        self._requests.append(request)
        self._write(request.value)

    def leave(self, request: _Request) -> None:
        if request in self._requests:
            others = [other for other in self._requests if other is not request]
            self._write(others[-1].value if others else self._original)
            self._requests = others


class _CompilerStance:
    """How torch.compile behaves; torch restores a value but cannot be asked for it."""

    ORIGINAL = "original"

    def __init__(self) -> None:
        self._changes: list[Any] = []

    def read(self) -> str:
        return self.ORIGINAL

    def write(self, value: str) -> None:
        if value != self.ORIGINAL:
            self._changes.append(torch.compiler.set_stance(value))
            return
        while self._changes:
            self._changes[-1].__exit__(None, None, None)
            self._changes.pop()


def _attribute(holder: Any, name: str) -> _Flag:
    return _Flag(
        lambda: getattr(holder, name), lambda value: setattr(holder, name, value)
    )


_stance = _CompilerStance()
_cuda = torch.backends.cuda
_cudnn: Any = torch.backends.cudnn
_mkldnn: Any = torch.backends.mkldnn
FLAGS = {
    "attention_fast_path": _Flag(
        torch.backends.mha.get_fastpath_enabled,
        torch.backends.mha.set_fastpath_enabled,
    ),
    "flash_attention": _Flag(_cuda.flash_sdp_enabled, _cuda.enable_flash_sdp),
    "memory_efficient_attention": _Flag(
        _cuda.mem_efficient_sdp_enabled, _cuda.enable_mem_efficient_sdp
    ),
    "cudnn_attention": _Flag(_cuda.cudnn_sdp_enabled, _cuda.enable_cudnn_sdp),
    "math_attention": _Flag(_cuda.math_sdp_enabled, _cuda.enable_math_sdp),
    "compiler_stance": _Flag(_stance.read, _stance.write),
    "onednn": _attribute(_mkldnn, "enabled"),
    "cudnn": _attribute(_cudnn, "enabled"),
    "cudnn_benchmark": _attribute(_cudnn, "benchmark"),
    "cuda_matmul_precision": _attribute(_cuda.matmul, "fp32_precision"),
    "onednn_matmul_precision": _attribute(_mkldnn.matmul, "fp32_precision"),
    "onednn_conv_precision": _attribute(_mkldnn.conv, "fp32_precision"),
    "cudnn_conv_precision": _attribute(_cudnn.conv, "fp32_precision"),
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
    requests = [(FLAGS[name], _Request(value)) for name, value in values.items()]
    try:
        with _LOCK:
            for flag, request in requests:
                flag.enter(request)
        yield
    finally:
        _leave(requests)


def _leave(requests: list[tuple[_Flag, _Request]]) -> None:
    """End requests, also if Ctrl-C comes meanwhile; it is raised when they are."""
    interrupt: KeyboardInterrupt | None = None
    while requests:
        try:
            with _LOCK:
                while requests:
                    flag, request = requests[-1]
                    flag.leave(request)
                    requests.pop()
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
