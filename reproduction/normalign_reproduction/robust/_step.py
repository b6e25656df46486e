"""The attack and the gradients of one training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normalign.regularizers import GrokAlign
from normalign_reproduction.robust._attack import (
    FrozenCopy,
    attack_images,
    perturbed_weights,
)
from normalign_reproduction.robust._graph import RecordedFunction
from normalign_reproduction.robust._objectives import training_loss
from normalign_reproduction.robust._recipe import Recipe


class Batch(NamedTuple):
    """The inputs of the training loss, all of them tensors for the CUDA graph.

    Attributes
    ----------
    x, attacked : Tensor of shape (n, c, h, w)
        The augmented images, before and after the attack.
    y : int64 Tensor of shape (n,)
    class_weights : Tensor of shape (k, k)
        Row c: the mean probabilities of the images of class c.
    probes : Tensor of shape (1, n, k)
        Noise for the penalty.
    """

    x: Tensor
    attacked: Tensor
    y: Tensor
    class_weights: Tensor
    probes: Tensor


class Step:
    """The attack and the gradients of a training step, on CUDA recorded as graphs.

    Parameters
    ----------
    network : nn.Module
        On its device, in training mode.
    recipe : Recipe
    compile : bool
        Compile the copy of the network that full batches are attacked through.
    """

    def __init__(self, network: nn.Module, recipe: Recipe, *, compile: bool) -> None:
        self.network, self.recipe, self._compile = network, recipe, compile
        self._parameters = [p for p in network.parameters() if p.requires_grad]
        self._penalty = GrokAlign(recipe.penalty_weight * recipe.penalty_every)
        self._copies: dict[bool, FrozenCopy] = {}
        self._recorded: dict[tuple[object, ...], RecordedFunction] = {}

    def attack(
        self, x: Tensor, y: Tensor, start: Tensor, radius: float, step_size: float
    ) -> Tensor:
        """Return the attacked images of a batch."""
        # Compiling for the smaller last batch takes longer than it saves.
        compiled = self._compile and len(x) == self.recipe.batch_size
        if compiled not in self._copies:
            self._copies[compiled] = FrozenCopy(
                self.network, precision=self.recipe.precision, compile=compiled
            )
        frozen = self._copies[compiled]

        def function(
            x: Tensor, y: Tensor, start: Tensor, radius: Tensor, step_size: Tensor
        ) -> list[Tensor]:
            frozen.refresh()
            attacked = attack_images(
                frozen,
                self.recipe,
                x,
                y,
                start=start,
                radius=radius,
                step_size=step_size,
            )
            return [attacked]

        # Filled on the device: a copy from the host would wait for it.
        lengths = [torch.full((), v, device=x.device) for v in (radius, step_size)]
        return self._run(("attack", len(x)), function, x, y, start, *lengths)[0]

    def gradients(
        self, batch: Batch, *, perturbed: bool, penalised: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Set the gradients of the network.

        Returns
        -------
        loss : Tensor of shape ()
        n_correct : Tensor of shape ()
            Correct predictions, on the attacked images if there is an attacker.
        class_sums : Tensor of shape (k, k)
            Row c: the sum of the tempered probabilities of the images of class c.
        """

        def function(*tensors: Tensor) -> list[Tensor]:
            batch = Batch(*tensors)
            context = nullcontext()
            if perturbed:
                context = perturbed_weights(
                    self.network,
                    lambda: self._forward(batch, penalised)[0],
                    strength=self.recipe.perturbation,
                )
            with context:
                loss, logits, clean = self._forward(batch, penalised)
                gradients = torch.autograd.grad(loss, self._parameters)
            with torch.no_grad():
                n_correct = (logits.argmax(1) == batch.y).sum()
                tempered = (clean / self.recipe.temperature).softmax(1)
                empty = torch.zeros_like(batch.class_weights)
                class_sums = empty.index_add(0, batch.y, tempered)
            return [loss.detach(), n_correct, class_sums, *gradients]

        key = ("gradients", len(batch.x), perturbed, penalised)
        loss, n_correct, class_sums, *gradients = self._run(key, function, *batch)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        return loss, n_correct, class_sums

    def release(self) -> None:
        """Release the memory of the graphs, and the gradients that lie in it."""
        self._recorded.clear()
        self._copies.clear()
        for parameter in self._parameters:
            parameter.grad = None

    def _run(
        self,
        key: tuple[object, ...],
        function: Callable[..., Sequence[Tensor]],
        *tensors: Tensor,
    ) -> Sequence[Tensor]:
        if key not in self._recorded:
            self._recorded[key] = RecordedFunction(
                function, tensors, network=self.network
            )
        return self._recorded[key](*tensors)

    def _forward(self, batch: Batch, penalised: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, the logits it is about, and those of the clean images."""
        recipe = self.recipe
        penalty: Tensor | float = 0.0
        # No cache of casts: a recorded graph must repeat them.
        with torch.autocast(
            batch.x.device.type,
            torch.bfloat16,
            enabled=recipe.precision == "bf16",
            cache_enabled=False,
        ):
            if penalised:
                clean, value = self._penalty(self.network, batch.x, noise=batch.probes)
                logits, penalty = clean, value.float()
            elif recipe.objective in ("plain", "pgd"):
                logits = clean = self.network(batch.attacked)
            else:
                logits, clean = self.network(batch.attacked), self.network(batch.x)
        logits, clean = logits.float(), clean.float()
        loss = training_loss(recipe, logits, clean, batch.y, batch.class_weights)
        return loss + penalty, logits, clean
