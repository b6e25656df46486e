"""What all gradient filters share: the hook, the state, the checkpoints."""

# pyright: reportPrivateImportUsage=false
# torch's own optimizers are built on torch._foreach_*, which have no public name.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from normalign._errors import require_kind
from normalign.optim.refusals import (
    check_optimizer,
    check_position,
    check_shapes,
    check_single_step,
    check_state_dict,
    check_step,
    sparse_gradient,
)

__all__ = ["GradientFilter"]


class GradientFilter(ABC):
    """A change of the gradients just before every step of an optimizer.

    A filter registers itself as a pre-step hook, so the training loop stays as it is:
    ``backward()`` and ``step()``, with schedulers, several parameter groups, groups
    added later, and gradients accumulated over several ``backward()`` calls (the
    filter sees the accumulated one, once per step). Parameters without a gradient are
    passed over and their state stays as it is. Two filters on one optimizer run in the
    order in which they were attached. The optimizer keeps the filter alive; bind it to
    a name only to save its state or to remove it.

    **Gradients are changed in place**, like those that
    ``torch.nn.utils.clip_grad_norm_`` clips: after ``step()`` each ``.grad`` holds the
    filtered gradient. A second copy would cost the memory of the model and would break
    gradients that are views of a communication buffer. Read or clip raw gradients
    before ``step()``, and zero them between steps.

    **Mixed precision.** ``GradScaler.step`` unscales the gradients first, and where one
    is infinite it does not call the optimizer, so the filter does not see it. Fused
    optimizers unscale for themselves; there the filter unscales in their stead and
    leaves a step that will be skipped alone, at the price of reading one flag back from
    the device (the scaler does so for all other optimizers). Nothing else waits for
    the device. Without a scaler infinite gradients are averaged like any others.

    **Checkpoints.** The state lives here and never in ``optimizer.state``: save
    :meth:`state_dict` beside the optimizer's. Copying or pickling an optimizer drops
    its hooks, as torch does. Copying or pickling a filter takes its optimizer along and
    attaches the copy to the copied optimizer; copy both together, as in
    ``copy.deepcopy((model, optimizer, gradient_filter))``.

    **Refused, with the reason**: sparse gradients, steps with a closure, optimizers
    that need one (``LBFGS``), ``differentiable=True``, and a subclass whose ``step``
    calls the hooked ``step`` of its parent, where torch runs every hook twice.

    A new filter overrides :meth:`transform`, and if it has settings :meth:`configure`
    and :meth:`settings`; its state goes into ``self.state[weight]``, a dict of tensors
    and plain numbers whose tensors end in the shape of the weight.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
    **settings
        Passed to :meth:`configure`.

    Raises
    ------
    TypeError
        If ``optimizer`` is no torch optimizer, or is one that needs a closure.
    ValueError
        If the optimizer was made with ``differentiable=True``.

    Examples
    --------
    >>> import torch
    >>> class Doubled(GradientFilter):
    ...     def transform(self, weights, gradients):
    ...         torch._foreach_mul_(gradients, 2.0)
    >>> weight = torch.nn.Parameter(torch.tensor([5.0]))
    >>> sgd = torch.optim.SGD([weight], lr=1.0)
    >>> with Doubled(sgd):
    ...     weight.sum().backward()
    ...     sgd.step()
    >>> weight.data
    tensor([3.])
    """

    def __init__(self, optimizer: Optimizer, **settings: Any) -> None:
        check_optimizer(type(self).__name__, optimizer)
        self.configure(settings)
        self.optimizer = optimizer
        self.state: dict[Tensor, dict[str, Any]] = {}
        self._handles: list[RemovableHandle] = []
        self._in_step = False
        self._attach()

    @abstractmethod
    def transform(self, weights: list[Tensor], gradients: list[Tensor]) -> None:
        """Change the gradients in place; all are on one device and of one dtype.

        Called once per step for each device and dtype, with autograd off.

        Parameters
        ----------
        weights, gradients : list of Tensor
            The parameters that have a gradient, in the optimizer's order, and their
            gradients.
        """

    def configure(self, settings: dict[str, Any]) -> None:
        """Check the settings and keep them; called before the filter is attached."""
        require_kind(
            not settings, type(self).__name__, "settings", "empty", ", ".join(settings)
        )

    def settings(self) -> dict[str, Any]:
        """The settings as :meth:`configure` takes them, in plain Python values."""
        return {}

    @property
    def attached(self) -> bool:
        """Whether the optimizer's steps go through this filter."""
        return bool(self._handles)

    def remove(self) -> None:
        """Detach from the optimizer, which then steps as if never filtered.

        The state stays readable; a second call does nothing. Leaving a ``with`` block
        does the same.
        """
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def state_dict(self) -> dict[str, Any]:
        """Everything a later run needs to go on exactly as this one would have.

        Parameters are named by their position in the optimizer, group after group, as
        in torch's own state dicts; and as there, the tensors are the live ones, so deep
        copy the result to keep a moment of training in memory. ``torch.load`` reads it
        back with ``weights_only=True``.

        Returns
        -------
        dict
            ``filter``, the class name; ``settings``; and ``state``, from position to
            the state of that parameter.
        """
        return {
            "filter": type(self).__name__,
            "settings": self.settings(),
            "state": {
                position: dict(self.state[weight])
                for position, weight in enumerate(self._weights())
                if weight in self.state
            },
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a :meth:`state_dict`: its settings and a copy of its state.

        As with torch's optimizers the saved settings replace those given at
        construction, and groups that were added later must be added again first.
        Tensors go to the device of their parameter and keep their dtype.

        Raises
        ------
        TypeError
            If it is no dict.
        ValueError
            If it is from another kind of filter, or its parameters are not those of
            this optimizer. The filter is then unchanged.
        """
        callee = f"{type(self).__name__}.load_state_dict"
        check_state_dict(callee, state_dict, type(self).__name__, self.settings())
        weights = list(self._weights())
        state = {}
        for position, entry in state_dict["state"].items():
            check_position(callee, position, len(weights))
            weight = weights[position]
            check_shapes(callee, position, entry, weight)
            state[weight] = {
                name: value.detach().to(weight.device, copy=True)
                if isinstance(value, Tensor)
                else value
                for name, value in entry.items()
            }
        self.configure(state_dict["settings"])
        self.state = state

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        told = [type(self.optimizer).__name__]
        told += [f"{name}={value!r}" for name, value in self.settings().items()]
        return f"{type(self).__name__}({', '.join(told)})"

    def __getstate__(self) -> dict[str, Any]:
        # Handles point into the hooks that the optimizer's copy will not have.
        return {**self.__dict__, "_handles": self.attached}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _handles=[])
        if state["_handles"]:
            self._attach()

    def _attach(self) -> None:
        self._handles = [
            self.optimizer.register_step_pre_hook(self._before_step),
            self.optimizer.register_step_post_hook(self._after_step),
        ]

    @torch.no_grad()
    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        check_step(type(self).__name__, args, kwargs)
        self._in_step = True
        batches = self._batches()
        if not _ready(optimizer, batches):
            return
        for weights, gradients in batches:
            self.transform(weights, gradients)

    def _after_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        # Two ends with no beginning between them: one step lies inside another, and
        # the filter ran in both. (Two beginnings may be a step that raised.)
        check_single_step(type(self).__name__, optimizer, self._in_step)
        self._in_step = False

    def _weights(self) -> Iterator[Tensor]:
        for group in self.optimizer.param_groups:
            yield from group["params"]

    def _batches(self) -> list[tuple[list[Tensor], list[Tensor]]]:
        """Weights with their gradients, those of one device and dtype together."""
        batches: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
        for position, weight in enumerate(self._weights()):
            gradient = weight.grad
            if gradient is None:
                continue
            if gradient.layout is not torch.strided:
                raise TypeError(
                    sparse_gradient(type(self).__name__, position, gradient)
                )
            key = (gradient.device, gradient.dtype)
            weights, gradients = batches.setdefault(key, ([], []))
            weights.append(weight)
            gradients.append(gradient)
        return list(batches.values())


def like(value: Tensor, gradient: Tensor) -> Tensor:
    """The same values on the gradient's device and dtype; no copy where they agree."""
    if value.dtype == gradient.dtype and value.device == gradient.device:
        return value
    return value.to(gradient)


def _ready(
    optimizer: Optimizer, batches: list[tuple[list[Tensor], list[Tensor]]]
) -> bool:
    """Bring gradients to their own scale; say whether the optimizer will use them.

    Only a scaler that leaves unscaling to a fused optimizer sets these attributes.
    """
    if bool(getattr(optimizer, "found_inf", None)):
        return False
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        # The reciprocal in float64, then rounded, as GradScaler.unscale_ takes it.
        inverse = scale.double().reciprocal().float()
        for _, gradients in batches:
            torch._foreach_mul_(gradients, inverse.to(gradients[0].device))
        optimizer.grad_scale = None  # pyright: ignore[reportAttributeAccessIssue]
    return True
