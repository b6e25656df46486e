"""The mode under which a model's layers get cheap second derivatives."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from normalign._errors import require, require_kind
from normalign.regularizers._second_order.graph import (
    are_plain,
    checkpoint_frame,
    leads_only_to,
    node_of,
)
from normalign.regularizers._second_order.normalization import (
    BatchNorm,
    BatchNormSettings,
)
from normalign.regularizers._second_order.products import (
    Convolution,
    Linear,
    read_geometry,
)
from normalign.regularizers._second_order.site import Phase, Site

__all__ = ["LeanOperations", "lean_operations"]


def lean_operations(point: Tensor, *, point_gradient: bool = True) -> LeanOperations:
    r"""Return a context in which a model's layers get cheap second derivatives.

    For a penalty on :math:`J_x^\top v`, which is differentiated once more in the
    parameters. Linear layers, convolutions and batch normalisation that are called
    inside the context, by a module or directly, compute what they always compute;
    their backward passes are made of products and convolutions alone. A penalised
    step then takes six of them for each layer where a plain one takes three.

    Batch normalisation over the batch's own statistics mixes the samples. Inside
    :meth:`LeanOperations.pulling` its mean and variance count as constants, so that
    :math:`J_x` belongs to one sample; the derivative of the penalty in the parameters
    does go through them, and so does that of the task loss.

    Where the layers cannot be replaced (inside ``torch.func`` and ``torch.compile``,
    for tensor subclasses, where no gradient is taken) torch's own run.

    Parameters
    ----------
    point : Tensor
        Where the Jacobian is taken; it requires a gradient.
    point_gradient : bool, default=True
        Whether a gradient of the final loss in ``point`` is wanted. If not, as for a
        leaf made for the pull-back alone, the layers that it enters leave it out of
        every pass but the pull-back.

    Returns
    -------
    LeanOperations

    Raises
    ------
    ValueError
        If ``point`` does not require a gradient.

    Examples
    --------
    >>> layer, x = torch.nn.Linear(2, 1), torch.ones(3, 2, requires_grad=True)
    >>> with lean_operations(x) as lean:
    ...     y = layer(x)
    >>> with lean.pulling():
    ...     pulled = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
    >>> bool((pulled == layer.weight).all())
    True
    """
    callee = "lean_operations"
    real = isinstance(point, Tensor) and point.is_floating_point()
    require_kind(real, callee, "point", "a floating point tensor", point)
    rule = "a tensor that requires a gradient"
    require(point.requires_grad, callee, "point", rule, "one that does not")
    return LeanOperations(point, point_gradient=point_gradient)


class LeanOperations(TorchFunctionMode):
    """The context that :func:`lean_operations` returns."""

    def __init__(self, point: Tensor, *, point_gradient: bool) -> None:
        super().__init__()
        self._target, self._device = node_of(point), point.device.type
        self._point_gradient = point_gradient
        self._phase = Phase()
        self._first_run = True

    @contextlib.contextmanager
    def pulling(self) -> Iterator[None]:
        """Take the backward passes inside for pull-backs to the point.

        In them the mean and variance of a batch are constants. Autocast is off, as it
        should be in a backward pass: each layer pulls in the precision that it ran in.
        """
        self._phase.pulling = True
        try:
            if not torch.is_autocast_enabled(self._device):
                yield
                return
            with torch.autocast(self._device, enabled=False):
                yield
        finally:
            self._phase.pulling = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the replacement of a layer's function, or the function itself."""
        kwargs = kwargs or {}
        replacement = _REPLACEMENTS.get(func)
        if replacement is not None:
            result = replacement(self, *args, **kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)

    def _linear(
        self, input: Tensor, weight: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        if self._point_gradient or input.ndim < 2 or weight.ndim != 2:
            return NotImplemented
        spared = input.numel() * weight.shape[0]
        if spared < _WORTH.get(input.device.type, _WORTH["other"]):
            return NotImplemented
        # A checkpoint's second run has to do what the first did, whatever its graph.
        if not are_plain(input, weight, bias) or self._within_checkpoint():
            return NotImplemented
        site = self._site(input)
        if not site.dead_end:
            return NotImplemented
        return Linear.apply(*_lower_precision(input, weight, bias), site)  # pyright: ignore

    def _convolution(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        *,
        n_axes: int,
    ) -> Tensor:
        settings = (stride, padding, dilation, groups, False, 0)
        return self._convolve((input, weight, bias), settings, n_axes)

    def _transpose(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
        *,
        n_axes: int,
    ) -> Tensor:
        settings = (stride, padding, dilation, groups, True, output_padding)
        return self._convolve((input, weight, bias), settings, n_axes)

    def _convolve(
        self,
        tensors: tuple[Tensor, Tensor, Tensor | None],
        settings: tuple[Any, ...],
        n_axes: int,
    ) -> Tensor:
        x, weight, bias = tensors
        if x.ndim != n_axes + 2 or weight.ndim != n_axes + 2:
            return NotImplemented  # a picture without a batch axis
        if not are_plain(x, weight, bias):
            return NotImplemented
        hashable = [tuple(v) if isinstance(v, list) else v for v in settings]
        geometry = read_geometry(weight.shape[2:], *hashable)
        if geometry is None:
            return NotImplemented
        if geometry[1]:
            x = F.pad(x, geometry[1])
        site = self._site(x)
        lowered = _lower_precision(x, weight, bias)
        return Convolution.apply(*lowered, geometry[0], site)  # pyright: ignore

    def _batch_norm(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        enough = input.ndim > 1 and input.numel() > input.shape[1]
        known = running_mean is not None and running_var is not None
        fits = enough if training else known  # else torch has something to say
        if not fits or not are_plain(input, weight, bias):
            return NotImplemented
        site = self._site(input)
        if training and not self._first_run:  # the first run has updated them
            running_mean, running_var = _copy(running_mean), _copy(running_var)
        settings = BatchNormSettings(running_mean, running_var, training, momentum, eps)
        return BatchNorm.apply(input, weight, bias, settings, site)[0]  # pyright: ignore

    def _site(self, x: Tensor) -> Site:
        """Return where a call with this input stands."""
        self._follow_checkpoint()
        dead_end = not self._point_gradient and leads_only_to(x, self._target)
        return Site(self._phase, dead_end)

    def _within_checkpoint(self) -> bool:
        return not self._first_run or checkpoint_frame() is not None

    def _follow_checkpoint(self) -> None:
        """Have a checkpointed part of the model run again under this mode too."""
        frame = checkpoint_frame()
        if frame is None or hasattr(frame.recompute_fn, "under_lean_operations"):
            return
        rerun = frame.recompute_fn
        again = object.__new__(_Rerun)
        again.__dict__.update(self.__dict__, _first_run=False)

        @functools.wraps(rerun)
        def under_mode(*args: Any) -> None:
            with again:
                rerun(*args)

        under_mode.under_lean_operations = True  # pyright: ignore
        frame.recompute_fn = under_mode


class _Rerun(LeanOperations):
    """The mode in the second run of a checkpointed part, which counts no batches."""

    _counter: Tensor | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run what the first run ran, and take back what a normalisation counts."""
        if func is F.batch_norm and self._counter is not None:
            self._counter.sub_(1)
        # The module counts right before it normalises, and may read the number.
        if func is not Tensor.__float__:
            counts = func is Tensor.add_ and args[0].dtype == torch.long
            self._counter = args[0] if counts and args[1:] == (1,) else None
        return super().__torch_function__(func, types, args, kwargs)


def _lower_precision(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return arguments in the precision that autocast asks for: double stays."""
    kind = tensors[0].device.type  # pyright: ignore
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(
        t if t is None or t.dtype == torch.float64 else t.to(dtype) for t in tensors
    )


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()


# From how many multiplications on it pays to leave out a gradient in the input of a
# linear layer. A function of ours costs some 30 microseconds more than torch's.
_WORTH = {"cpu": 2**20, "other": 2**30}

_CONVOLUTIONS = (
    (LeanOperations._convolution, (F.conv1d, F.conv2d, F.conv3d)),
    (
        LeanOperations._transpose,
        (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
    ),
)
_REPLACEMENTS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.linear: LeanOperations._linear,
    F.batch_norm: LeanOperations._batch_norm,
    **{
        function: functools.partial(replacement, n_axes=n_axes)
        for replacement, functions in _CONVOLUTIONS
        for n_axes, function in enumerate(functions, start=1)
    },
}
