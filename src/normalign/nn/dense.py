"""Fully connected networks, as the paper's grokking experiments use them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from normalign._errors import require, require_kind

__all__ = ["ACTIVATIONS", "Quadratic", "mlp", "uniform_linear_"]


class Quadratic(nn.Module):
    """The square of each entry: the activation used for modular addition.

    Examples
    --------
    >>> Quadratic()(torch.tensor([-3.0, 2.0]))
    tensor([9., 4.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the elementwise square."""
        return x.square()


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "quadratic": Quadratic,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
}


def uniform_linear_(
    layer: nn.Linear, *, init_scale: float = 1.0, generator: torch.Generator | None
) -> nn.Linear:
    r"""Fill a linear layer, in place, with draws from :math:`U(-s, s)`.

    .. math:: s = \text{init\_scale} / \sqrt{\text{fan in}}

    Weight and bias have the same range, and both carry the scale.

    Examples
    --------
    >>> layer = uniform_linear_(nn.Linear(4, 2), generator=torch.Generator())
    >>> bool(layer.weight.abs().max() <= 0.5)
    True
    """
    bound = init_scale / layer.in_features**0.5
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return layer


def mlp(
    widths: Sequence[int],
    *,
    activation: str = "relu",
    bias: bool = True,
    init_scale: float = 1.0,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Sequential:
    r"""Return a fully connected network with the given widths, input to output.

    .. math:: f = A_m \circ \phi \circ A_{m-1} \circ \dots \circ \phi \circ A_1,
        \qquad A_i(z) = W_i z + w_i

    Every entry of :math:`W_i` and :math:`w_i` starts uniform in
    :math:`\pm\text{init\_scale}/\sqrt{\text{fan in}}`: all parameters, the biases
    too, are multiplied by ``init_scale``. A scale well above one (the released MNIST
    experiments use 8) starts the network in the lazy regime, from which it
    memorises first and generalises late. With ``"relu"`` the network is
    continuous piecewise affine; without biases it is then homogeneous and its offset
    is zero.

    Parameters
    ----------
    widths : sequence of int, at least two
        ``[784, 200, 200, 200, 10]`` is three hidden layers of 200.
    activation : {"relu", "quadratic", "tanh", "gelu"}
    generator : torch.Generator, optional
        Source of the initial draws; ``None`` is torch's default generator.

    Returns
    -------
    torch.nn.Sequential
        Linear layers at the even positions, activations between them.

    Raises
    ------
    ValueError
        If a width is not positive, there are fewer than two, or the activation has
        no such name.

    Examples
    --------
    >>> network = mlp([3, 5, 2])
    >>> sum(p.numel() for p in network.parameters())  # 3*5 + 5 + 5*2 + 2
    32
    """
    for width in widths:
        whole = isinstance(width, int) and not isinstance(width, bool)
        require_kind(whole, "mlp", "widths", "integers", list(widths))
    long_enough = len(widths) >= 2 and min(widths) > 0
    rule = "at least two positive integers"
    require(long_enough, "mlp", "widths", rule, list(widths))
    names = ", ".join(ACTIVATIONS)
    known = activation in ACTIVATIONS
    require(known, "mlp", "activation", f"one of {names}", activation)
    require(init_scale > 0, "mlp", "init_scale", "positive", init_scale)

    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        # skip_init: nn.Linear's own initialisation would draw from the global
        # generator, and so depend on and disturb the caller's other random draws.
        layer = skip_init(nn.Linear, fan_in, fan_out, bias=bias, dtype=dtype)
        layer = cast(nn.Linear, layer)
        uniform_linear_(layer, init_scale=init_scale, generator=generator)
        layers += [layer, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])
