"""The attacker of robust training: short, and on a copy of the network at rest."""

# torch's own optimizers are built on torch._foreach_*, which have no public name.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from normalign.robustness.balls import Ball
from normalign.training.robust.objectives import attacked_loss
from normalign.training.robust.recipe import Recipe

__all__ = ["FrozenCopy", "InnerAttack"]


class FrozenCopy:
    """A copy of a network in evaluation mode, in low precision if that is wanted.

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
        self.frozen, self.recipe, self._ball = frozen, recipe, Ball("linf", 0.0, 1.0)

    def __call__(
        self, x: Tensor, y: Tensor, start: Tensor, radius: Tensor, step: Tensor
    ) -> tuple[Tensor]:
        """Return the images that the attacker found.

        Parameters
        ----------
        x : Tensor of shape (n, c, h, w)
        y : int64 Tensor of shape (n,)
        start : Tensor of the shape of x
            Where it begins, less x.
        radius, step : Tensor of shape ()
        """
        self.frozen.refresh()
        clean = x  # of no use to an attacker that climbs the loss itself
        if self.recipe.objective != "pgd":
            with torch.no_grad():
                clean = self.frozen(x)
        point = self._ball.projected(x + start, x, radius)
        for _ in range(self.recipe.n_steps):
            slope = self.slope(point, clean, y)
            point = self._ball.projected(point + step * slope.sign(), x, radius)
        return (point,)

    def slope(self, point: Tensor, clean: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of what is climbed in the images."""
        with torch.enable_grad():
            point = point.detach().requires_grad_()
            loss = attacked_loss(self.recipe, self.frozen(point), clean, y)
        return torch.autograd.grad(loss, point)[0]
