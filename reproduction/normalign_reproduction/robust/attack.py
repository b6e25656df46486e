"""Attacks on images and on weights, in training and in evaluation."""

# torch's own optimizers are built on torch._foreach_*, which have no public name.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from normalign.robustness import pgd
from normalign.training import evaluation_mode
from normalign_reproduction._errors import require
from normalign_reproduction.robust.objectives import attacked_loss
from normalign_reproduction.robust.recipe import PRECISIONS, Recipe

__all__ = ["FrozenCopy", "InnerAttack", "evaluate", "perturbed_weights"]


class FrozenCopy:
    """A copy of a network in evaluation mode, optionally in low precision.

    The attacker takes many gradients in the images and none in the weights. The copy
    leaves the network's mode alone, and its weights are brought down to bfloat16 once
    for all steps of an attack. Normalisation keeps float32, as in autocast.

    Parameters
    ----------
    network : nn.Module
    precision : {"float32", "bf16"}
    compile : bool
        Whether the copy is compiled: pays where thousands of steps are to come.
    """

    def __init__(
        self, network: nn.Module, *, precision: str, compile: bool = False
    ) -> None:
        self.module = copy.deepcopy(network).eval().requires_grad_(False)
        self.dtype = torch.float32
        if precision == "bf16":
            self.dtype = torch.bfloat16
            for module in self.module.modules():
                if not isinstance(module, nn.modules.batchnorm._BatchNorm):
                    for part in module.parameters(recurse=False):
                        part.data = part.data.to(self.dtype)
        self._own = list(self.module.state_dict().values())
        self._seen = list(network.state_dict().values())
        self._run = (
            torch.compile(self.module, dynamic=False) if compile else self.module
        )

    def refresh(self) -> None:
        """Take over the weights that the network has now."""
        torch._foreach_copy_(self._own, self._seen)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits in float32."""
        return self._run(x.to(self.dtype)).float()


class InnerAttack:
    r"""Projected gradient ascent within an L-infinity ball, cut off at [0, 1].

    .. math:: z_{t+1} = \Pi\big(z_t + a\, \mathrm{sign}\, \nabla_z \ell(f(z_t))\big)

    Nothing waits for the device: it can be captured.

    Parameters
    ----------
    frozen : FrozenCopy
    recipe : Recipe
        Its objective says what is climbed, its ``n_steps`` how often.
    """

    def __init__(self, frozen: FrozenCopy, recipe: Recipe) -> None:
        self.frozen, self.recipe = frozen, recipe

    def __call__(
        self, x: Tensor, y: Tensor, start: Tensor, radius: Tensor, step: Tensor
    ) -> tuple[Tensor]:
        """Return the attacked images.

        Parameters
        ----------
        x : Tensor of shape (n, c, h, w)
        y : int64 Tensor of shape (n,)
        start : Tensor of the shape of x
            Where it begins, less x.
        radius, step : Tensor of shape ()
        """
        self.frozen.refresh()
        clean = x  # not used by an attack on the loss itself
        if self.recipe.objective != "pgd":
            with torch.no_grad():
                clean = self.frozen(x)
        point = _project(x + start, x, radius)
        for _ in range(self.recipe.n_steps):
            slope = self.slope(point, clean, y)
            point = _project(point + step * slope.sign(), x, radius)
        return (point,)

    def slope(self, point: Tensor, clean: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of what is climbed in the images."""
        with torch.enable_grad():
            point = point.detach().requires_grad_()
            loss = attacked_loss(self.recipe, self.frozen(point), clean, y)
        return torch.autograd.grad(loss, point)[0]


def _project(points: Tensor, x: Tensor, radius: Tensor) -> Tensor:
    """Return the points brought back into the balls around x, and into [0, 1]."""
    return torch.clamp(points, x - radius, x + radius).clamp(0.0, 1.0)


@contextmanager
def perturbed_weights(
    network: nn.Module, loss: Callable[[], Tensor], *, strength: float
) -> Iterator[None]:
    r"""Within the block, move each weight tensor uphill by a share of its norm.

    .. math:: w \leftarrow w + \text{strength}\,\lVert w \rVert
        \frac{g}{\lVert g \rVert}, \qquad g = \nabla_w \text{loss}

    (Wu et al., 2020.) Vectors, such as biases and the weights of normalisation, stay.
    Afterwards the weights are as before, bit for bit; the statistics of normalisation
    are those of what ran inside the block alone.

    Parameters
    ----------
    network : nn.Module
    loss : callable
        Runs the network and returns what is climbed, a scalar.
    strength : float
    """
    weights = [p for p in network.parameters() if p.ndim > 1 and p.requires_grad]
    buffers = list(network.buffers())
    seen = [buffer.clone() for buffer in buffers]
    slopes = torch.autograd.grad(loss(), weights)
    before = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        for buffer, value in zip(buffers, seen, strict=True):
            buffer.copy_(value)
        for weight, slope in zip(weights, slopes, strict=True):
            length = slope.norm().clamp_min(torch.finfo(slope.dtype).tiny)
            weight += strength * weight.norm() / length * slope
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(tuple(weights), before)


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

    The attack climbs the cross-entropy from uniform starts inside [0, 1], and keeps
    the best of its restarts. Robust accuracy is an upper bound: a longer attack may
    break more.

    Parameters
    ----------
    network : nn.Module
        Measured in evaluation mode; its own mode is left as it was.
    x : Tensor of shape (n, c, h, w)
    y : integer Tensor of shape (n,)
    precision : {"float32", "bf16"}
        ``"bf16"`` is faster, and a weaker attacker.

    Returns
    -------
    dict
        ``accuracy`` and ``robust_accuracy``.
    """
    known = precision in PRECISIONS
    rule = f"one of {', '.join(map(repr, PRECISIONS))}"
    require(known, "evaluate", "precision", rule, repr(precision))
    device = next((p.device for p in network.parameters()), x.device)
    x, y = x.to(device), y.to(device)
    low = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
    with evaluation_mode(network), low:
        attack = pgd(
            network, x, y, radii=[radius], n_steps=n_steps, n_restarts=n_restarts,
            keep="best", low=0.0, high=1.0,
            generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
    return {
        "accuracy": float(attack.accuracy),
        "robust_accuracy": float(attack.robust_accuracy[0]),
    }
