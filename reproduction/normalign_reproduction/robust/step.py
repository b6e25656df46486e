"""One step of robust training, but for the update: attack, loss, gradients."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normalign.regularizers import GrokAlign
from normalign_reproduction.robust.attack import (
    FrozenCopy,
    InnerAttack,
    perturbed_weights,
)
from normalign_reproduction.robust.objectives import task_loss
from normalign_reproduction.robust.recipe import Recipe

__all__ = ["Batch", "Captured", "Step"]


class Batch(NamedTuple):
    """The inputs of the loss of one step: tensors only, as a CUDA graph requires.

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
    """The gradients of the loss of a batch, recorded as a CUDA graph on a GPU.

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
        self._penalty = GrokAlign(recipe.penalty_weight * recipe.penalty_every)
        self._recorded: dict[tuple[object, ...], Captured] = {}

    def attack_images(
        self, x: Tensor, y: Tensor, start: Tensor, radius: float, step: float
    ) -> Tensor:
        """Return what the attacker makes of a batch."""
        # Created on the device: a copy from the host would wait for it.
        lengths = [torch.full((), v, device=x.device) for v in (radius, step)]
        return self._run("attack", self._attack(x), x, y, start, *lengths)[0]

    def gradients(
        self, batch: Batch, *, perturbed: bool, penalised: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Set the gradients; return loss, correct predictions, probabilities.

        Returns
        -------
        loss : Tensor of shape ()
        right : Tensor of shape ()
            The number of correct predictions on the images that the loss is about.
        sums : Tensor of shape (k, k)
            Row c sums the tempered probabilities of the images of class c.
        """

        def function(*tensors: Tensor) -> Sequence[Tensor]:
            return self._differentiate(Batch(*tensors), perturbed, penalised)

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
        # Compiling for the smaller last batch takes longer than it saves.
        compiled = self._compile and len(x) == self.recipe.batch_size
        if compiled not in self._frozen:
            self._frozen[compiled] = FrozenCopy(
                self.network, precision=self.recipe.precision, compile=compiled
            )
        return InnerAttack(self._frozen[compiled], self.recipe)

    def _differentiate(
        self, batch: Batch, perturbed: bool, penalised: bool
    ) -> Sequence[Tensor]:
        def loss_to_climb() -> Tensor:
            return self._passes(batch, penalised)[0]

        with ExitStack() as stack:
            if perturbed:
                strength = self.recipe.perturbation
                worst = perturbed_weights(
                    self.network, loss_to_climb, strength=strength
                )
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
        # No cache of casts: a recorded graph must repeat them.
        with torch.autocast(
            x.device.type, torch.bfloat16, enabled=low, cache_enabled=False
        ):
            if penalised:
                clean, value = self._penalty(self.network, x, noise=probes)
                logits, extra = clean, value.float()
            elif recipe.objective == "plain":
                logits = clean = self.network(x)
            elif recipe.objective == "pgd":
                logits = clean = self.network(attacked)
            else:
                logits, clean = self.network(attacked), self.network(x)
        logits, clean = logits.float(), clean.float()
        return task_loss(recipe, logits, clean, y, class_weights) + extra, logits, clean


Function = Callable[..., Sequence[Tensor]]

_UNRECORDED = (
    "RobustTrainer: a step could not be recorded as a CUDA graph, and is run operation "
    "by operation, which is slower. Does something hold an output or a loss of the "
    "network, with its graph of derivatives? Detach it, or compute it in "
    "torch.no_grad()."
)


class Captured:
    """A function of tensors that is recorded once and then replayed.

    Small kernels take longer to launch than to run; a graph launches all of them at
    once. What the function returns lies in the graph's own memory, and is overwritten
    by the next call. Anywhere but on CUDA the function is called as it is; so it is on
    CUDA, with a warning, if it cannot be recorded.

    Parameters
    ----------
    function : callable
        Of tensors, to tensors. It may not wait for the device, and must take the same
        way every time.
    examples : sequence of Tensor
        Arguments of the shapes to come.
    changes : sequence of nn.Module
        Networks whose buffers it changes: they are as before after recording.
    """

    def __init__(
        self,
        function: Function,
        examples: Sequence[Tensor],
        *,
        changes: Sequence[nn.Module] = (),
    ) -> None:
        self._function, self._graph = function, None
        if not examples[0].is_cuda:
            return
        self._given = [example.clone() for example in examples]
        buffers = [b for network in changes for b in network.buffers()]
        saved = [buffer.clone() for buffer in buffers]
        gc.collect()  # what is left of graphs of derivatives would forbid recording
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            for _ in range(3):  # libraries choose their kernels, compilers compile
                function(*self._given)
        here.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with _no_collection(), torch.cuda.graph(graph):
                self._returned = function(*self._given)
            self._graph = graph
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            torch.cuda.set_stream(here)  # a recording that fails stays on its own
            first = str(error).partition("\n")[0]
            warnings.warn(f"{_UNRECORDED} torch said: {first}", stacklevel=2)
        for buffer, value in zip(buffers, saved, strict=True):
            buffer.copy_(value)

    def __call__(self, *tensors: Tensor) -> Sequence[Tensor]:
        """Return what the function returns for other tensors of the same shapes."""
        if self._graph is None:
            return self._function(*tensors)
        for place, tensor in zip(self._given, tensors, strict=True):
            place.copy_(tensor)
        self._graph.replay()
        return self._returned


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep cyclic garbage: CUDA gives up a capture in which a graph is destroyed."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
