"""One step of robust training, but for the update: attack, loss, gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normalign.regularizers import PenaltyForm
from normalign.regularizers._call import Call
from normalign.regularizers._formulas import given_noise
from normalign.training.robust.captured import Captured
from normalign.training.robust.inner_attack import FrozenCopy, InnerAttack
from normalign.training.robust.objectives import task_loss
from normalign.training.robust.recipe import Recipe
from normalign.training.robust.weight_perturbation import perturbed_weights

__all__ = ["Batch", "Step"]


class Batch(NamedTuple):
    """What the loss of one step is made of: tensors only, as a recorded graph wants.

    Attributes
    ----------
    x : Tensor of shape (n, c, h, w)
        The images, moved.
    attacked : Tensor of shape (n, c, h, w)
        What the attacker made of them; the images themselves if there is none.
    y : int64 Tensor of shape (n,)
    class_weights : Tensor of shape (k, k)
        Row c is the mean probabilities of the images of class c.
    probes : Tensor of shape (1, n, k)
        Noise for the penalty.
    """

    x: Tensor
    attacked: Tensor
    y: Tensor
    class_weights: Tensor
    probes: Tensor


class Step:
    """From a batch to the gradients of its loss, recorded where there is a GPU.

    Parameters
    ----------
    network : nn.Module
        On its device, in training mode.
    recipe : Recipe
    n_classes : int
    compile : bool
        Whether attacks on full batches run on a compiled copy.
    """

    def __init__(
        self, network: nn.Module, recipe: Recipe, *, n_classes: int, compile: bool
    ) -> None:
        self.network, self.recipe, self.n_classes = network, recipe, n_classes
        self._parameters = [p for p in network.parameters() if p.requires_grad]
        self._compile = compile
        self._frozen: dict[bool, FrozenCopy] = {}
        self._penalty = Call(network, PenaltyForm(), "RobustTrainer")
        self._recorded: dict[tuple[object, ...], Captured] = {}

    def attacked(
        self, x: Tensor, y: Tensor, start: Tensor, radius: float, step: float
    ) -> Tensor:
        """Return what the attacker makes of a batch."""
        # Filled where they are used: bringing them there would wait for the device.
        lengths = [torch.full((), v, device=x.device) for v in (radius, step)]
        return self._run("attack", self._attack(x), x, y, start, *lengths)[0]

    def gradients(
        self, batch: Batch, *, perturbed: bool, penalised: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Set the gradients; return loss, right answers and sums of probabilities.

        Returns
        -------
        loss : Tensor of shape ()
        right : Tensor of shape ()
            How many of the images that the loss is about were answered rightly.
        sums : Tensor of shape (k, k)
            Row c sums the tempered probabilities of the images of class c.
        """

        def function(*tensors: Tensor) -> Sequence[Tensor]:
            return self._differentiated(Batch(*tensors), perturbed, penalised)

        name = f"gradients {perturbed} {penalised}"
        loss, right, sums, *slopes = self._run(name, function, *batch)
        for parameter, slope in zip(self._parameters, slopes, strict=True):
            parameter.grad = slope
        return loss, right, sums

    def forget(self) -> None:
        """Give back the memory of what was recorded, and the gradients in it."""
        self._recorded.clear()
        self._frozen.clear()
        for parameter in self._parameters:
            parameter.grad = None

    def _run(
        self,
        name: str,
        function: Callable[..., Sequence[Tensor]],
        *tensors: Tensor,
    ) -> Sequence[Tensor]:
        key = (name, tuple(tensors[0].shape))
        if key not in self._recorded:
            self._recorded[key] = Captured(function, tensors, changes=[self.network])
        return self._recorded[key](*tensors)

    def _attack(self, x: Tensor) -> InnerAttack:
        # A compiled copy for each shape would take longer to make than it saves.
        compiled = self._compile and len(x) == self.recipe.batch_size
        if compiled not in self._frozen:
            self._frozen[compiled] = FrozenCopy(
                self.network, precision=self.recipe.precision, compile=compiled
            )
        return InnerAttack(self._frozen[compiled], self.recipe)

    def _differentiated(
        self, batch: Batch, perturbed: bool, penalised: bool
    ) -> Sequence[Tensor]:
        def climbed() -> Tensor:
            return self._passes(batch, penalised)[0]

        with ExitStack() as stack:
            if perturbed:
                strength = self.recipe.perturbation
                worst = perturbed_weights(self.network, climbed, strength=strength)
                stack.enter_context(worst)
            loss, logits, clean = self._passes(batch, penalised)
            slopes = torch.autograd.grad(loss, self._parameters)
        with torch.no_grad():
            right = (logits.argmax(1) == batch.y).sum()
            tempered = (clean / self.recipe.temperature).softmax(1)
            none = torch.zeros_like(batch.class_weights)
            sums = none.index_add(0, batch.y, tempered)
        return [loss.detach(), right, sums, *slopes]

    def _passes(self, batch: Batch, penalised: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, the logits that it is about, and those of the images."""
        recipe, low = self.recipe, self.recipe.precision == "bf16"
        x, attacked, y, class_weights, probes = batch
        extra: Tensor | float = 0.0
        # Nothing is kept of casts: a recorded graph must make them anew.
        with torch.autocast(
            x.device.type, torch.bfloat16, enabled=low, cache_enabled=False
        ):
            if penalised:
                clean, values = self._penalty(self.network, x, given_noise(probes))
                weight = recipe.penalty_weight * recipe.penalty_every
                logits, extra = clean, weight * values.float().mean()
            elif recipe.objective == "plain":
                logits = clean = self.network(x)
            elif recipe.objective == "pgd":
                logits = clean = self.network(attacked)
            else:
                logits, clean = self.network(attacked), self.network(x)
        logits, clean = logits.float(), clean.float()
        return task_loss(recipe, logits, clean, y, class_weights) + extra, logits, clean
