"""One step of robust training, but for the update: attack, loss, gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from normalign.regularizers import PenaltyForm
from normalign.regularizers.calls import Call
from normalign.regularizers.formulas import given_noise
from normalign.training.robust.captured import Captured
from normalign.training.robust.inner_attack import FrozenCopy, InnerAttack
from normalign.training.robust.objectives import task_loss
from normalign.training.robust.recipe import Recipe
from normalign.training.robust.weight_perturbation import perturbed_weights

__all__ = ["Step"]


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
        self,
        x: Tensor,
        attacked: Tensor,
        y: Tensor,
        class_weights: Tensor,
        probes: Tensor,
        *,
        perturbed: bool,
        penalised: bool,
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
            return self._differentiated(
                *tensors, perturbed=perturbed, penalised=penalised
            )

        name = f"gradients {perturbed} {penalised}"
        loss, right, sums, *slopes = self._run(
            name, function, x, attacked, y, class_weights, probes
        )
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
        self,
        x: Tensor,
        attacked: Tensor,
        y: Tensor,
        class_weights: Tensor,
        probes: Tensor,
        *,
        perturbed: bool,
        penalised: bool,
    ) -> Sequence[Tensor]:
        def passes() -> tuple[Tensor, Tensor, Tensor]:
            return self._passes(x, attacked, y, class_weights, probes, penalised)

        with ExitStack() as stack:
            if perturbed:
                strength = self.recipe.perturbation
                stack.enter_context(
                    perturbed_weights(
                        self.network, lambda: passes()[0], strength=strength
                    )
                )
            loss, logits, clean = passes()
            slopes = torch.autograd.grad(loss, self._parameters)
        with torch.no_grad():
            right = (logits.argmax(1) == y).sum()
            tempered = (clean / self.recipe.temperature).softmax(1)
            sums = torch.zeros_like(class_weights).index_add(0, y, tempered)
        return [loss.detach(), right, sums, *slopes]

    def _passes(
        self,
        x: Tensor,
        attacked: Tensor,
        y: Tensor,
        class_weights: Tensor,
        probes: Tensor,
        penalised: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, the logits that it is about, and those of the images."""
        recipe, low = self.recipe, self.recipe.precision == "bf16"
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
