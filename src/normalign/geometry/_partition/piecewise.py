"""The layers of a network as a list of piecewise-affine steps."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from normalign._errors import complaint, require, require_kind
from normalign._torch_compat import unwrap
from normalign.geometry._partition.steps import (
    Affine,
    Kinked,
    Maximum,
    PiecewiseAffine,
    Step,
)
from normalign.geometry._partition.tracing import Constant, Operation, operations

__all__ = ["Residual", "piecewise_affine"]


class Residual(nn.Module):
    r"""The sum of a module and a shortcut around it.

    .. math:: x \mapsto \text{shortcut}(x) + \text{body}(x)

    Parameters
    ----------
    body : torch.nn.Module
    shortcut : torch.nn.Module, optional
        The identity by default.

    Examples
    --------
    >>> Residual(nn.ReLU())(torch.tensor([-3.0, 2.0]))
    tensor([-3.,  4.])
    """

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = nn.Identity() if shortcut is None else shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Return ``shortcut(x) + body(x)``."""
        return self.shortcut(x) + self.body(x)


@torch.no_grad()
def piecewise_affine(
    model: nn.Module, shape: Iterable[int], *, device: torch.device | None = None
) -> PiecewiseAffine:
    """Return the steps of a continuous piecewise-affine network, in float64.

    Modules of ``torch.nn`` are read off a table; a module with a ``forward`` of its
    own is traced, and may combine its submodules by sums, concatenations, reshapes,
    means and the functional forms of what the table holds. The model is copied, never
    changed, and its hooks do not run.

    Parameters
    ----------
    model : torch.nn.Module
        In evaluation mode as far as dropout and batch normalisation are concerned.
    shape : iterable of int
        The shape of one input, without the batch.

    Returns
    -------
    PiecewiseAffine

    Raises
    ------
    TypeError
        If the model is no module, or holds something that is not piecewise affine.
    ValueError
        If it holds dropout or batch normalisation in training mode, or does not accept
        inputs of the shape.

    Examples
    --------
    >>> steps = piecewise_affine(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), (3,)).steps
    >>> [type(step).__name__ for step in steps]
    ['Affine', 'Kinked']
    """
    model = unwrap(model)
    require_kind(
        isinstance(model, nn.Module),
        "partition",
        "model",
        "a torch.nn.Module",
        model,
        "The layers are read from the module; wrap a function in an nn.Module.",
    )
    reader = _Reader(tuple(shape), device or torch.device("cpu"))
    output = reader.read(model, "", 0)
    return PiecewiseAffine(tuple(reader.steps), output, tuple(reader.shapes))


# Affine whatever their parameters are. Convolutions with any padding mode are linear.
_AFFINE = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d,
    nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d,
    nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle,
    nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d,
    nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d,
    nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReplicationPad1d, nn.ReplicationPad2d,
    nn.CircularPad1d, nn.CircularPad2d,
)  # fmt: skip
_DROPOUT = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
    nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_KINKED = (
    nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.Hardtanh, nn.ReLU6, nn.Hardsigmoid,
    nn.Softshrink,
)  # fmt: skip
_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
_SUPPORTED = (
    "Supported are Sequential, Residual, Linear, Conv, ReLU, LeakyReLU, PReLU, "
    "Hardtanh, ReLU6, Hardsigmoid, Softshrink, Identity, MaxPool, AvgPool, "
    "AdaptiveAvgPool, Flatten, Unflatten, padding, and Dropout and BatchNorm in "
    "evaluation mode."
)
_BATCH = 3  # of the trial runs; an output must keep it as its first dimension


def _is(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    """Whether the module computes what one of the kinds does (subclasses may not)."""
    return any(
        isinstance(module, kind) and type(module).forward is kind.forward
        for kind in kinds
    )


class _Reader:
    """Walks through a network and writes down its steps."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.device = device
        self.steps: list[Step] = []
        self.shapes: list[tuple[int, ...]] = [shape]
        # Registers whose tensor a step in place has overwritten, and with what.
        self.overwritten: dict[int, int] = {}

    def current(self, register: int) -> int:
        """Return the register that holds what the tensor of this one holds by now."""
        while register in self.overwritten:
            register = self.overwritten[register]
        return register

    def read(self, module: nn.Module, path: str, source: int) -> int:
        """Append the steps of a module; return the register of its result."""
        module, source = unwrap(module), self.current(source)
        self._require_evaluation(module, path)
        if _is(module, (nn.Identity, *_DROPOUT)):
            return source
        if _is(module, (nn.Sequential,)):
            for name, child in module.named_children():
                source = self.read(child, _join(path, name), source)
            return source
        if _is(module, _AFFINE):
            return self._affine_module(module, path, source)
        if _is(module, _KINKED):
            target = self._append_kinks(
                path, source, *_pieces(module, self.shapes[source])
            )
            if getattr(module, "inplace", False):
                self.overwritten[source] = target
            return target
        if _is(module, _POOLS):
            return self._pool(module, path, source)
        if type(module).__module__.startswith("torch.nn."):
            raise TypeError(_unsupported_message(path, type(module).__name__))
        return self._trace(module, path, source)

    def _require_evaluation(self, module: nn.Module, path: str) -> None:
        random = _is(module, _DROPOUT) and getattr(module, "p", 0) > 0
        slope_drawn = _is(module, (nn.RReLU,))
        batch_norm = _is(module, _NORMS)
        statistics = not batch_norm or getattr(module, "running_mean", None) is not None
        name = _describe_module(path, type(module).__name__)
        require(
            not (module.training and (random or slope_drawn or batch_norm)),
            "partition", name, "in evaluation mode", "training mode",
            "Call model.eval() first.",
        )  # fmt: skip
        require(
            statistics,
            "partition", name, "with running statistics", "track_running_stats=False",
            "Batch statistics couple the samples; the map is then not affine.",
        )  # fmt: skip

    def _zeros(self, register: int) -> Tensor:
        shape = (_BATCH, *self.shapes[register])
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    def _trial(self, function: Callable[..., Tensor], path: str, *at: int) -> Tensor:
        """The function's value at zero, which also tells the shape of the result."""
        try:
            value = function(*map(self._zeros, at))
        except (RuntimeError, ValueError, IndexError) as error:
            shapes = " and ".join(str(self.shapes[register]) for register in at)
            text = complaint(
                "partition", f"the input of {path or 'the model'}",
                "of a shape that it accepts", f"{shapes} per sample", str(error),
            )  # fmt: skip
            raise ValueError(text) from error
        require(
            value.ndim > 0 and len(value) == _BATCH,
            "partition", path or "model", "a map of each sample on its own",
            f"a result of shape {tuple(value.shape)} for a batch of {_BATCH}",
        )  # fmt: skip
        return value[0]

    def _affine(
        self,
        path: str,
        sources: tuple[int, ...],
        linear: Callable[..., Tensor],
        shift: Tensor,
    ) -> int:
        self.shapes.append(tuple(shift.shape))
        target = len(self.shapes) - 1
        moved = shift if bool(shift.any()) else None
        self.steps.append(Affine(path, sources, target, linear, moved))
        return target

    def _affine_module(self, module: nn.Module, path: str, source: int) -> int:
        whole = _detach(module).to(self.device)
        linear = copy.deepcopy(whole)
        for name in ("bias", "running_mean"):
            tensor = getattr(linear, name, None)
            if isinstance(tensor, Tensor):
                tensor.zero_()
        if hasattr(linear, "value"):  # the constant of a padding
            linear.value = 0.0
        return self._affine(path, (source,), linear, self._trial(whole, path, source))

    def _append_kinks(
        self, path: str, source: int, kinks: Tensor, slopes: Tensor, intercepts: Tensor
    ) -> int:
        self.shapes.append(self.shapes[source])
        target = len(self.shapes) - 1
        tensors = (t.to(self.device) for t in (kinks, slopes, intercepts))
        self.steps.append(Kinked(path, (source,), target, *tensors))
        return target

    def _pool(self, module: nn.Module, path: str, source: int) -> int:
        require(
            not getattr(module, "return_indices", False),
            "partition", _describe_module(path, type(module).__name__),
            "without return_indices", "return_indices=True",
        )  # fmt: skip
        shape = tuple(self._trial(_detach(module), path, source).shape)
        windows = _windows(module, self.shapes[source], shape).to(self.device)
        self.shapes.append(shape)
        target = len(self.shapes) - 1
        self.steps.append(Maximum(path, (source,), target, windows, shape))
        return target

    def _trace(self, module: nn.Module, path: str, source: int) -> int:
        """Follow the ``forward`` of a module that is in no table."""
        kind = type(module).__name__
        results: dict[str, int | Constant] = {}
        for name, found in operations(module, _describe_module(path, kind)):
            if found == "input":
                results[name] = source
            elif isinstance(found, Constant):
                results[name] = found.to(self.device)
            else:
                results[name] = self._operation(found, results, module, path)
        final = results["output"]
        if isinstance(final, Constant):
            raise TypeError(_unsupported_message(path, kind, "returns a constant"))
        return self.current(final)

    def _operation(
        self,
        found: Operation,
        results: dict[str, int | Constant],
        module: nn.Module,
        path: str,
    ) -> int:
        kind = type(module).__name__
        held = [results[name] for name in found.tensors]
        held = [
            self.current(entry) if isinstance(entry, int) else entry for entry in held
        ]
        sources = tuple(entry for entry in held if isinstance(entry, int))
        if found.kind == "module":
            child = module.get_submodule(found.label)
            return self.read(child, _join(path, found.label), sources[0])
        if found.kind == "same":
            return sources[0]
        if found.kind == "equivalent" and found.module is not None:
            return self.read(found.module, _join(path, found.label), sources[0])
        moving = [name for name in found.factors if isinstance(results[name], int)]
        if found.kind != "affine" or not sources or len(moving) > 1:
            raise TypeError(_unsupported_message(path, kind, f"calls {found.label}"))

        def whole(*tensors: Tensor) -> Tensor:
            given = iter(tensors)
            return found([next(given) if isinstance(e, int) else e.value for e in held])

        path = _join(path, found.label)
        shift = self._trial(whole, path, *sources)

        def linear(*tensors: Tensor) -> Tensor:
            return whole(*tensors) - shift if moved else whole(*tensors)

        moved = bool(shift.any())
        target = self._affine(path, sources, linear, shift)
        if found.in_place and isinstance(held[0], int):
            self.overwritten[held[0]] = target
        return target


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _describe_module(path: str, kind: str) -> str:
    return f"model.{path} ({kind})" if path else f"model ({kind})"


def _unsupported_message(path: str, kind: str, reason: str = "") -> str:
    got = f"{kind}, which {reason}" if reason else kind
    where = f"model.{path}" if path else "model"
    return complaint("partition", where, "continuous piecewise affine", got, _SUPPORTED)


def _detach(module: nn.Module) -> Any:
    """A float64 copy without gradients or hooks."""
    twin = copy.deepcopy(module).to(torch.float64).requires_grad_(False)
    twin._forward_hooks.clear()
    twin._forward_pre_hooks.clear()
    return twin


def _pieces(module: nn.Module, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """The kinks, slopes and intercepts of an activation."""
    match module:
        case nn.PReLU():
            steep = _detach(module).weight
            if steep.numel() > 1:  # one slope per channel, the first dimension
                steep = steep.view(-1, *[1] * (len(shape) - 1)).expand(shape)
            steep = steep.reshape(-1)
            slopes = torch.stack([steep, torch.ones_like(steep)])
            return slopes.new_zeros(1), slopes, torch.zeros_like(slopes)
        case nn.LeakyReLU():
            kinks, slopes, intercepts = [0.0], [module.negative_slope, 1.0], [0.0, 0.0]
        case nn.RReLU():
            mean = (module.lower + module.upper) / 2
            kinks, slopes, intercepts = [0.0], [mean, 1.0], [0.0, 0.0]
        case nn.Hardtanh():  # ReLU6 is one
            low, high = float(module.min_val), float(module.max_val)
            kinks, slopes, intercepts = [low, high], [0.0, 1.0, 0.0], [low, 0.0, high]
        case nn.Hardsigmoid():
            kinks, slopes = [-3.0, 3.0], [0.0, 1 / 6, 0.0]
            intercepts = [0.0, 0.5, 1.0]
        case nn.Softshrink():
            width = float(module.lambd)
            kinks, slopes = [-width, width], [1.0, 0.0, 1.0]
            intercepts = [width, 0.0, -width]
        case _:
            kinks, slopes, intercepts = [0.0], [0.0, 1.0], [0.0, 0.0]
    return (
        torch.tensor(kinks, dtype=torch.float64),
        torch.tensor(slopes, dtype=torch.float64)[:, None],
        torch.tensor(intercepts, dtype=torch.float64)[:, None],
    )


def _windows(pool: Any, shape: tuple[int, ...], result: tuple[int, ...]) -> Tensor:
    """The units of a picture (channels, ...) that each unit of the result maximises."""
    dims = len(shape) - 1
    per_dim = []
    for dim in range(dims):
        size, stride, padding, dilation = (
            value if isinstance(value, int) else value[dim]
            for value in (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
        )
        start = torch.arange(result[1 + dim])[:, None] * stride - padding
        place = start + torch.arange(size) * dilation
        per_dim.append(torch.where((place >= 0) & (place < shape[1 + dim]), place, -1))
    inside = math.prod(shape[1:])
    window = torch.stack(
        [
            _flat_index(offsets, shape[1:])
            for offsets in product(*[place.unbind(1) for place in per_dim])
        ],
        1,
    )
    channel = torch.arange(shape[0])[:, None, None] * inside
    return torch.where(window >= 0, window + channel, -1).flatten(0, 1)


def _flat_index(places: tuple[Tensor, ...], shape: tuple[int, ...]) -> Tensor:
    """The flat index of every combination of places; -1 where one is missing."""
    grids = torch.meshgrid(*places, indexing="ij")
    flat, valid = (
        torch.zeros_like(grids[0]),
        torch.ones_like(grids[0], dtype=torch.bool),
    )
    for grid, size in zip(grids, shape, strict=True):
        flat, valid = flat * size + grid, valid & (grid >= 0)
    return torch.where(valid, flat, -1).flatten()
