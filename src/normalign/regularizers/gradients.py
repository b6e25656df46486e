"""Whether a penalty can be trained, found out on a first call, and why if it cannot."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from normalign._errors import complaint, require
from normalign.geometry.quirks import NOT_TORCH, TORCH_ONLY, rounding
from normalign.regularizers.forms import PenaltyForm
from normalign.regularizers.formulas import LEAST_SQUARE

__all__ = ["check_gradient", "explained"]


def check_gradient(
    value: Tensor,
    leaves: Sequence[Tensor],
    form: PenaltyForm,
    callee: str,
    trial: bool = True,
) -> None:
    """Refuse a penalty that changes no parameter: no silent nothing.

    Parameters
    ----------
    value : Tensor of shape (n,)
        The penalty of each sample; its graph is kept.
    leaves : sequence of Tensor
        What a gradient of ``value`` reaches. None of them gets a ``.grad``.
    form : PenaltyForm
    callee : str
        The public function in whose name errors are raised.
    trial : bool, default=True
        Whether to compute the gradient, and see that it is not zero throughout.

    Raises
    ------
    ValueError
    """
    rule = "differentiable in its parameters through its Jacobian"
    require(
        len(leaves) > 0,
        callee,
        "model",
        rule,
        "a penalty that depends on none",
        "Check that some have requires_grad=True and that nothing detaches them.",
    )
    # Hooks of a parameter would see a gradient that is none.
    if not trial or _is_captured(value) or any(p._backward_hooks for p in leaves):
        return
    found = torch.autograd.grad(
        value.sum(), leaves, retain_graph=True, allow_unused=True
    )
    moved = any(g is not None and bool(g.any()) for g in found)
    half = any(p.dtype == torch.half for p in leaves)  # where numbers vanish
    require(
        moved or half or not bool((value.detach().abs() > _least(value, form)).any()),
        callee,
        "model",
        rule,
        "a gradient that is zero in every trained parameter",
        "In a piecewise affine model the biases before the last layer do not change "
        "the Jacobian: train weights too.",
    )


def _least(value: Tensor, form: PenaltyForm) -> float:
    """Return what a penalty is where it has all that it wants, and a zero gradient."""
    if form.power == "ratio":
        return rounding(value.dtype)
    return 1.001 * LEAST_SQUARE**0.5 if form.power == 1 else 0.0


@contextlib.contextmanager
def explained(callee: str) -> Iterator[None]:
    """Say in our words what torch says of a derivative that does not exist."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        missing = re.search(r"derivative for '?([\w:.]+)'? is not implemented", text)
        if missing is not None:
            rule, name = "twice differentiable", missing[1].removeprefix("aten::")
            got = f"an operation without a second derivative, {name}"
            message = complaint(callee, "model", rule, got, _REMEDY)
            raise ValueError(message) from error
        if NOT_TORCH in text:
            rule, got = "differentiable in x", "one that leaves torch for NumPy"
            message = complaint(callee, "model", rule, got, TORCH_ONLY)
            raise ValueError(message) from error
        if "use_reentrant" in text:
            rule, got = "checkpointed with use_reentrant=False", "use_reentrant=True"
            why = "The other kind has no derivative in some of the tensors alone."
            raise ValueError(complaint(callee, "model", rule, got, why)) from error
        raise


_REMEDY = (
    "Write that layer in simpler operations, nn.Hardsigmoid for one as "
    "(x / 6 + 0.5).clamp(0, 1), or take estimator='noise' with offset=False, which "
    "has no need of it."
)


def _is_captured(value: Tensor) -> bool:
    """Say whether a CUDA graph is being recorded, in which nothing can be looked at."""
    return value.is_cuda and torch.cuda.is_current_stream_capturing()
