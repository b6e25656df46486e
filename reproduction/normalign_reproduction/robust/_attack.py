"""Attacks on images and on weights, in training and in evaluation."""

# torch's optimizers use torch._foreach_copy_, which has no public name.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from normalign.robustness import pgd
from normalign.training import evaluation_mode
from normalign_reproduction.robust._objectives import attack_loss
from normalign_reproduction.robust._recipe import PRECISIONS, Recipe


class FrozenCopy:
    """A copy of a network in evaluation mode, for an attacker.

    The attack then neither changes the network's mode nor computes gradients in its
    weights, and the weights are rounded to bfloat16 only once per attack.
    Normalisation stays in float32, as in autocast.

    Parameters
    ----------
    network : nn.Module
    precision : {"float32", "bf16"}
    compile : bool
        Compile the copy: worth it for thousands of steps.
    """

    def __init__(
        self, network: nn.Module, *, precision: str, compile: bool = False
    ) -> None:
        self.module = copy.deepcopy(network).eval().requires_grad_(False)
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        for module in self.module.modules():
            if not isinstance(module, nn.modules.batchnorm._BatchNorm):
                for parameter in module.parameters(recurse=False):
                    parameter.data = parameter.data.to(self.dtype)
        self._copies = list(self.module.state_dict().values())
        self._originals = list(network.state_dict().values())
        self._forward = (
            torch.compile(self.module, dynamic=False) if compile else self.module
        )

    def refresh(self) -> None:
        """Copy the current weights of the network."""
        torch._foreach_copy_(self._copies, self._originals)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits in float32."""
        return self._forward(x.to(self.dtype)).float()


def attack_images(
    frozen: FrozenCopy,
    recipe: Recipe,
    x: Tensor,
    y: Tensor,
    *,
    start: Tensor,
    radius: Tensor,
    step_size: Tensor,
) -> Tensor:
    r"""Return images attacked by projected gradient ascent on the recipe's objective.

    .. math:: z_{t+1} = \Pi\big(z_t + a\, \mathrm{sign}\, \nabla_z \ell(f(z_t))\big)

    with :math:`\Pi` onto the L-infinity ball around x and [0, 1]. Unlike
    :func:`normalign.robustness.pgd` it never waits for the device, so that it can be
    captured in a CUDA graph.

    Parameters
    ----------
    x : Tensor of shape (n, c, h, w)
    y : int64 Tensor of shape (n,)
    start : Tensor of the shape of x
        Offset from x of the first point.
    radius, step_size : Tensor of shape ()
    """

    def project(points: Tensor) -> Tensor:
        return torch.clamp(points, x - radius, x + radius).clamp(0.0, 1.0)

    with torch.no_grad():
        clean = frozen(x) if recipe.objective != "pgd" else x  # not used by "pgd"
    point = project(x + start)
    for _ in range(recipe.n_steps):
        with torch.enable_grad():
            point = point.detach().requires_grad_()
            loss = attack_loss(recipe, frozen(point), clean, y)
        (gradient,) = torch.autograd.grad(loss, point)
        point = project(point.detach() + step_size * gradient.sign())
    return point


@contextmanager
def perturbed_weights(
    network: nn.Module, loss: Callable[[], Tensor], *, strength: float
) -> Iterator[None]:
    r"""Within the block, move each weight tensor uphill by a share of its norm.

    .. math:: w \leftarrow w + \text{strength}\,\lVert w \rVert
        \frac{g}{\lVert g \rVert}, \qquad g = \nabla_w \text{loss}

    (Wu et al., 2020.) Vectors, such as biases and the weights of normalisation, stay.
    Afterwards the weights are restored bit for bit; evaluating the loss leaves no trace
    in the statistics of normalisation.

    Parameters
    ----------
    network : nn.Module
    loss : callable
        Runs the network and returns a scalar.
    strength : float
    """
    weights = [p for p in network.parameters() if p.ndim > 1 and p.requires_grad]
    buffers = list(network.buffers())
    old_buffers = [buffer.clone() for buffer in buffers]
    gradients = torch.autograd.grad(loss(), weights)
    old_weights = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        for buffer, value in zip(buffers, old_buffers, strict=True):
            buffer.copy_(value)
        for weight, gradient in zip(weights, gradients, strict=True):
            length = gradient.norm().clamp_min(torch.finfo(gradient.dtype).tiny)
            weight += strength * weight.norm() / length * gradient
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(tuple(weights), old_weights)


def evaluate(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    radius: float,
    n_steps: int = 20,
    n_restarts: int = 1,
    seed: int = 0,
    precision: str = "float32",
) -> dict[str, float]:
    """Return accuracy, and accuracy under a PGD attack in an L-infinity ball.

    The attack maximises the cross-entropy from uniform starts inside [0, 1] and keeps
    the best of its restarts. Robust accuracy is an upper bound: a longer attack may
    break more.

    Parameters
    ----------
    network : nn.Module
        Evaluated in evaluation mode; its mode is restored.
    x : Tensor of shape (n, c, h, w)
    y : integer Tensor of shape (n,)
    precision : {"float32", "bf16"}
        ``"bf16"`` is faster and a weaker attack.

    Returns
    -------
    dict
        ``accuracy`` and ``robust_accuracy``.
    """
    if precision not in PRECISIONS:
        raise ValueError(
            f"evaluate: precision must be one of {PRECISIONS}, got {precision!r}."
        )
    device = next((p.device for p in network.parameters()), x.device)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
    with evaluation_mode(network), autocast:
        attack = pgd(
            network,
            x.to(device),
            y.to(device),
            radii=[radius],
            n_steps=n_steps,
            n_restarts=n_restarts,
            keep="best",
            low=0.0,
            high=1.0,
            generator=torch.Generator().manual_seed(seed),
        )
    return {
        "accuracy": float(attack.accuracy),
        "robust_accuracy": float(attack.robust_accuracy[0]),
    }
