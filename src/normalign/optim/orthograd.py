"""OrthoGrad: gradients without the part that only rescales the weights."""

# pyright: reportPrivateImportUsage=false
# torch's own optimizers are built on torch._foreach_*, which have no public name.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from normalign._errors import describe, require_kind
from normalign.optim.filter import GradientFilter

__all__ = ["OrthoGrad"]

# As in the authors' code; it keeps zero weights from dividing by zero.
_EPS = 1e-30


class OrthoGrad(GradientFilter):
    r"""Project each tensor's gradient orthogonal to that tensor.

    .. math::

        \hat g = g - \frac{\langle w, g \rangle}{\langle w, w \rangle + 10^{-30}} \, w

    Takes away the direction in which a network whose outputs grow with its weights
    lowers its loss without changing its decisions [1]_. This is the OrthoGrad of the
    paper's Table 1, which does not rescale. The authors of [1]_ do:
    ``rescale=True`` then gives each tensor's gradient its norm back,

    .. math:: \hat g \; \frac{\lVert g \rVert}{\lVert \hat g \rVert + 10^{-30}},

    except where the gradient is parallel to the weights within four roundings of its
    dtype: there the orthogonal part is nothing but rounding, which their code blows up
    to full size, and the result here is zero.

    Every tensor is projected by itself, biases and normalisation gains too; a tensor of
    one element has no orthogonal direction and is never moved by its gradient. Zero
    weights let the gradient through unchanged. Weight decay that the optimizer adds is
    outside the projection. The filter has no state. Half precision is projected in
    float32 and rounded once; complex tensors are projected as pairs of real numbers.

    See :class:`~normalign.optim.GradientFilter` for what happens to ``.grad``, mixed
    precision, checkpoints and copies.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
    rescale : bool, default=False
        Give each projected gradient the norm it had before.

    References
    ----------
    .. [1] L. Prieto, M. Barsbey, P. A. M. Mediano, T. Birdal, "Grokking at the Edge of
       Numerical Stability", 2025 (arXiv 2501.04697).

    Examples
    --------
    >>> weight = torch.nn.Parameter(torch.tensor([2.0, 0.0]))
    >>> sgd = torch.optim.SGD([weight], lr=1.0)
    >>> _ = OrthoGrad(sgd)
    >>> weight.sum().backward(); sgd.step(); weight.data  # (1, 1) becomes (0, 1)
    tensor([ 2., -1.])
    """

    rescale: bool

    def __init__(self, optimizer: Optimizer, *, rescale: bool = False) -> None:
        super().__init__(optimizer, rescale=rescale)

    def configure(self, settings: dict[str, Any]) -> None:
        """Check the setting and keep it."""
        callee, rescale = type(self).__name__, settings["rescale"]
        told = isinstance(rescale, bool)
        require_kind(told, callee, "rescale", "a bool", describe(rescale))
        self.rescale = rescale

    def settings(self) -> dict[str, Any]:
        """Whether it rescales."""
        return {"rescale": self.rescale}

    def transform(self, weights: list[Tensor], gradients: list[Tensor]) -> None:
        """Project the gradients in place."""
        dtype = torch.promote_types(gradients[0].dtype, torch.float32)
        working = [_real(gradient.to(dtype)) for gradient in gradients]
        _project(
            [_real(weight.detach().to(dtype)) for weight in weights],
            working,
            # The noise of a parallel gradient is that of the dtype it came in.
            noise=4 * torch.finfo(gradients[0].dtype).eps if self.rescale else None,
        )
        if dtype != gradients[0].dtype:
            torch._foreach_copy_(gradients, working)


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _project(
    weights: list[Tensor], gradients: list[Tensor], *, noise: float | None
) -> None:
    """Project each gradient in place; with a noise level, restore its norm."""
    products = torch.stack(
        [_dot(*pair) for pair in zip(weights, gradients, strict=True)]
    )
    squares = torch.stack([_dot(weight, weight) for weight in weights])
    norms = torch.stack(torch._foreach_norm(gradients)) if noise is not None else None
    shares = (products / (squares + _EPS)).unbind()
    torch._foreach_addcmul_(gradients, weights, shares, value=-1)
    if noise is not None and norms is not None:
        left = torch.stack(torch._foreach_norm(gradients))
        factors = torch.where(left > noise * norms, norms / (left + _EPS), 0)
        torch._foreach_mul_(gradients, factors.unbind())


def _dot(first: Tensor, second: Tensor) -> Tensor:
    return torch.dot(first.reshape(-1), second.reshape(-1))
