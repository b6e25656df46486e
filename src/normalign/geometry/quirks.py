"""What is peculiar about real models, settled once for everything that differentiates.

Wrappers and compiled pieces, attention kernels without higher derivatives, layers that
mix the samples of a batch, layers that draw random numbers.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from normalign._errors import require
from normalign._torch_flags import override

__all__ = [
    "ATTENTION_BY_PRODUCTS",
    "NOT_TORCH",
    "TORCH_ONLY",
    "Model",
    "attention_with_derivatives",
    "forward_mode",
    "frozen_randomness",
    "has_recurrence",
    "in_own_precision",
    "in_this_thread",
    "named_modules",
    "outside_autocast",
    "outside_inference_mode",
    "recurrence_with_derivatives",
    "refuse_mixing",
    "remedy_for",
    "rounding",
    "unwrapped",
    "warn_of_dropout",
]

Model = Callable[..., Any]
P = ParamSpec("P")
R = TypeVar("R")

# The settings under which attention is computed by plain matrix products.
ATTENTION_BY_PRODUCTS = {
    "attention_fast_path": False,
    "flash_attention": False,
    "memory_efficient_attention": False,
    "cudnn_attention": False,
    "math_attention": True,
}


# What torch says of a model that takes its input for a NumPy array.
NOT_TORCH = "Can't call numpy() on Tensor that requires grad"

# Said where a model is made of the operations of another library.
TORCH_ONLY = (
    "The model must be a function of tensors made of torch operations: autograd sees "
    "no others. Write it in torch, or wrap it with its derivative in a "
    "torch.autograd.Function."
)


def remedy_for(model: Any) -> str:
    """Say what to pass in place of an object that is no function of tensors.

    Examples
    --------
    >>> remedy_for(3)
    ''
    """
    if isinstance(getattr(model, "module_", None), nn.Module):  # skorch
        return "Pass the torch module that it has trained: net.module_."
    if not hasattr(model, "predict"):
        return ""
    if type(model).__module__.partition(".")[0] == "normalign":
        return "Pass normalign.estimators.as_torch(model), once it is fitted."
    return (
        "Pass normalign.estimators.as_torch(model): it supports linear models, "
        "multi-layer perceptrons, support vector machines, kernel ridge and pipelines "
        "of them. Trees, forests and neighbours are constant in pieces: they have no "
        "Jacobian."
    )


def unwrapped(model: Any) -> Any:
    """Return the eager module inside ``torch.compile`` and data-parallel wrappers."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_torchdynamo_orig_callable"):
            model = model._torchdynamo_orig_callable
        else:
            return model


def rounding(dtype: torch.dtype) -> float:
    """Return what a sum of many products may be off by, relative, in a precision.

    A thousand units of the last place, and no more than a few percent: half precision
    is rough, but not without meaning.
    """
    return min(1e3 * torch.finfo(dtype).eps, 0.04)


def named_modules(model: Model) -> Iterator[tuple[str, nn.Module]]:
    """Yield the named submodules of a module, and nothing for another callable."""
    if isinstance(model, nn.Module):
        yield from model.named_modules()


def has_recurrence(model: Model) -> bool:
    """Whether a model holds RNN, LSTM or GRU layers, which vmap cannot batch."""
    return any(isinstance(m, nn.RNNBase) for _, m in named_modules(model))


def refuse_mixing(
    model: Model, callee: str, remedy: str = "Call model.eval() first."
) -> None:
    """Refuse layers that take statistics over the batch: they mix the samples."""
    for name, module in named_modules(model):
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            label = f"{type(module).__name__} {name!r}"
            require(
                not module.training,
                callee,
                "model",
                "in evaluation mode, so that samples do not mix",
                f"{label} in training mode",
                remedy,
            )
            require(
                module.running_mean is not None,
                callee,
                "model",
                "a function of each sample alone",
                f"{label} without running statistics",
                "Build it with track_running_stats=True, or use GroupNorm.",
            )


def warn_of_dropout(model: Model, callee: str) -> bool:
    """Warn that active dropout makes the network a random one; return whether."""
    for name, module in named_modules(model):
        dropout = isinstance(module, nn.modules.dropout._DropoutNd)
        if dropout and module.training and module.p > 0:
            warnings.warn(
                f"{callee}: {type(module).__name__} {name!r} is in training mode: what "
                "is measured is one random sub-network for each chunk of samples. "
                "Call model.eval() to measure the whole network.",
                stacklevel=5,
            )
            return True
    return False


@contextlib.contextmanager
def attention_with_derivatives() -> Iterator[None]:
    """Use attention kernels that have first and second, reverse and forward rules.

    The fused CPU and CUDA kernels have no double backward and no forward mode, and the
    fast path of ``nn.TransformerEncoderLayer`` has no derivative at all. Compiled
    pieces inside the model run eagerly, for the same reason. These are settings of the
    whole process: other threads see them while they last.
    """
    with override(**ATTENTION_BY_PRODUCTS, compiler_stance="force_eager"):
        yield


@contextlib.contextmanager
def recurrence_with_derivatives() -> Iterator[None]:
    """Use recurrent kernels that have derivatives in evaluation mode.

    The fused ones of oneDNN have none without grad mode, those of cuDNN none in
    evaluation mode. Other threads see these settings while they last.
    """
    with override(onednn=False, cudnn=False):
        yield


@contextlib.contextmanager
def forward_mode() -> Iterator[None]:
    """Keep forward-mode derivatives inside to one thread at a time.

    torch counts their levels for the whole process: two threads that take them at once
    get each other's, which is an error or, in silence, a derivative of zero.
    """
    with _FORWARD_MODE:
        yield


_FORWARD_MODE = threading.RLock()


def in_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a module's hook that does nothing in passes of other threads."""
    thread = threading.get_ident()

    def here(*args: Any) -> Any:
        return hook(*args) if threading.get_ident() == thread else None

    return here


@contextlib.contextmanager
def outside_autocast(device: torch.device) -> Iterator[None]:
    """Compute inside in the precision of the tensors, also under autocast."""
    kind = device.type
    if kind in ("cpu", "cuda", "xpu", "mps") and torch.is_autocast_enabled(kind):
        with torch.autocast(kind, enabled=False):
            yield
    else:
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


@contextlib.contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Leave ``inference_mode`` for ``no_grad``, where ``torch.func`` can be trusted.

    Inside ``inference_mode`` torch 2.9 to 2.11 find derivatives of zero, without a
    word.
    """
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False), torch.no_grad():
            yield
    else:
        yield


@contextlib.contextmanager
def frozen_randomness() -> Iterator[None]:
    """Restore the random state on leaving: every pass inside draws the same masks."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        yield
