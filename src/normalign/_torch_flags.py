"""Temporary changes of torch's global settings.

Each setting is global to the process. If two threads save and restore one without a
lock, one thread can restore the value that the other has set, and it stays changed. So
every change goes through :func:`override`: under a lock the first caller saves the
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
    """The value that one caller requests; compared by identity."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Flag:
    """One setting and its active requests.

    Ctrl-C may interrupt both methods anywhere: a value is set only while its request
    is recorded, and :meth:`leave` can be repeated.
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
    """The stance of torch.compile, which torch can set and restore but not return."""

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

    Other threads see the change while it lasts. Of several active requests the latest
    one holds; the original value is restored when the last one ends. Values that other
    code sets directly in the meantime are lost.

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
    """End requests; Ctrl-C in the meantime is raised after all of them have ended."""
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
