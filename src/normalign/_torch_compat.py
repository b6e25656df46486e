"""Workarounds for torch, each naming the version it is for.

Where no last version is named, torch 2.13 (the newest tested) still needs it.

Each setting of torch is global to the process. If two threads save and restore one
without a lock, one thread can restore the value that the other has set, and it stays
changed. So every change goes through :func:`override`: under a lock the first caller
saves the setting, and the last one to leave restores it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

__all__ = [
    "ATTENTION_BY_PRODUCTS",
    "FLAGS",
    "NOT_TORCH",
    "REFUSED_BY_FUNC",
    "REFUSED_BY_VMAP",
    "attention_with_derivatives",
    "forward_mode",
    "frozen_randomness",
    "has_recurrence",
    "in_own_precision",
    "outside_autocast",
    "outside_inference_mode",
    "override",
    "recurrence_with_derivatives",
    "unwrap",
]

P = ParamSpec("P")
R = TypeVar("R")

# The error of a model that passes its input to NumPy.
NOT_TORCH = "Can't call numpy() on Tensor that requires grad"

# The errors of torch.func for autograd functions of the older style and for activation
# checkpointing; plain autograd takes both.
REFUSED_BY_FUNC = ("setup_context", "saved tensor hooks")

# The errors of torch.func.vmap for an autograd function without a rule for it, for
# layers in two precisions at once, as autocast runs them, and for normalisation on
# channels last.
REFUSED_BY_VMAP = ("vmap over", "expected scalar type", "inside of vmap")

# The settings under which attention is computed by plain matrix products.
ATTENTION_BY_PRODUCTS = {
    "attention_fast_path": False,
    "flash_attention": False,
    "memory_efficient_attention": False,
    "cudnn_attention": False,
    "math_attention": True,
}


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


@contextmanager
def attention_with_derivatives() -> Iterator[None]:
    """Use attention kernels that have first and second, reverse and forward rules.

    torch 2.9 and later: the fused CPU and CUDA kernels have no double backward and no
    forward mode, and the fast path of ``nn.TransformerEncoderLayer`` has no forward
    mode. Compiled pieces inside the model run eagerly, for the same reason. Other
    threads see these settings while they last.
    """
    with override(**ATTENTION_BY_PRODUCTS, compiler_stance="force_eager"):
        yield


@contextmanager
def recurrence_with_derivatives() -> Iterator[None]:
    """Use recurrent kernels that have derivatives in evaluation mode.

    torch 2.9 and later: the fused LSTM of oneDNN has none without grad mode, the
    kernels of cuDNN none in evaluation mode. Other threads see these settings while
    they last.
    """
    with override(onednn=False, cudnn=False):
        yield


def has_recurrence(model: Any) -> bool:
    """Whether a model holds RNN, LSTM or GRU layers.

    torch 2.9 and later: ``torch.func.vmap`` cannot batch their kernels.
    """
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return any(isinstance(module, nn.RNNBase) for module in modules)


@contextmanager
def forward_mode() -> Iterator[None]:
    """Let one thread at a time take forward-mode derivatives.

    torch 2.9 and later count the levels of forward mode for the whole process: two
    threads that take them at once get each other's, which is an error or, in silence,
    a derivative of zero.
    """
    with _FORWARD_MODE:
        yield


_FORWARD_MODE = threading.RLock()


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Leave ``inference_mode`` for ``no_grad``, where ``torch.func`` can be trusted.

    Inside ``inference_mode`` torch 2.9 to 2.11 silently find derivatives of zero.
    """
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False), torch.no_grad():
            yield
    else:
        yield


@contextmanager
def outside_autocast(device: torch.device) -> Iterator[None]:
    """Compute inside in the precision of the tensors, also under autocast.

    torch 2.9 and later: a backward pass under autocast casts again.
    """
    kind = device.type
    known = kind in ("cpu", "cuda", "xpu", "mps")
    enabled = known and torch.is_autocast_enabled(kind)
    with torch.autocast(kind, enabled=False) if enabled else nullcontext():
        yield


def in_own_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of tensors to compute in their precision under autocast."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        tensors = (v for v in (*args, *kwargs.values()) if isinstance(v, Tensor))
        first = next(tensors, None)
        if first is None:
            return function(*args, **kwargs)
        with outside_autocast(first.device):
            return function(*args, **kwargs)

    return wrapper


@contextmanager
def frozen_randomness() -> Iterator[None]:
    """Restore the random state on leaving: every pass inside draws the same masks."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        yield


def unwrap(model: Any, *, parallel: bool = True) -> Any:
    """Return the eager module inside ``torch.compile`` and data-parallel wrappers.

    torch 2.9 and later name what was compiled only in private attributes. Without
    ``parallel`` data-parallel wrappers stay.
    """
    wrappers = nn.DataParallel | nn.parallel.DistributedDataParallel
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif parallel and isinstance(model, wrappers):
            model = model.module
        elif hasattr(model, "_torchdynamo_orig_callable"):
            model = model._torchdynamo_orig_callable
        else:
            return model
