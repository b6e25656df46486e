"""Adversarial training of one network, with checkpoints."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from normalign.training import (
    History,
    Interrupts,
    evaluation_mode,
    identify_run,
    identify_structure,
    read_checkpoint,
    require_same_run,
    write_checkpoint,
)
from normalign_reproduction.robust._draws import Draws
from normalign_reproduction.robust._recipe import Recipe
from normalign_reproduction.robust._step import Batch, Step

Measure = Callable[[nn.Module], Mapping[str, float]]
Row = dict[str, float]

# The number of attack steps from which compiling the attacked copy pays.
_MANY_STEPS = 10_000


class TrainingDiverged(ValueError):
    """The loss or the outputs are no longer finite."""


class RobustTrainer:
    """Adversarial training of a network by a :class:`Recipe`.

    On CUDA a step is recorded as a graph and replayed, convolutions use channels-last
    memory, and for many steps the attacked copy of the network is compiled. The same
    seed gives the same run, on a CPU bit for bit, however often it was interrupted.

    Parameters
    ----------
    network : nn.Module
        Trained in place, in float32. Its outputs are logits.
    x : Tensor of shape (n, c, h, w)
        Images with values in [0, 1].
    y : integer Tensor of shape (n,)
        Classes from 0.
    recipe : Recipe
    seed : int
    device : torch.device or str, optional
        By default that of the network.

    Attributes
    ----------
    network : nn.Module
    averaged : nn.Module or None
        A copy of the network with averaged weights, if the recipe averages them.

    Examples
    --------
    >>> images, classes = torch.rand(6, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    >>> network = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    >>> recipe = Recipe("pgd", epochs=2, batch_size=4, augment="none")
    >>> RobustTrainer(network, images, classes, recipe, seed=0).train()["epoch"]
    [2]
    """

    def __init__(
        self,
        network: nn.Module,
        x: Tensor,
        y: Tensor,
        recipe: Recipe,
        *,
        seed: int,
        device: torch.device | str | None = None,
    ) -> None:
        _check(network, x, y)
        self.device = torch.device(device or next(network.parameters()).device)
        self.recipe, self.seed = recipe, seed
        on_cuda = self.device.type == "cuda"
        layout = torch.channels_last if on_cuda else torch.preserve_format
        self.network = network.to(self.device).to(memory_format=layout).train()  # pyright: ignore
        self._x = x.to(device=self.device, dtype=torch.float32, memory_format=layout)
        self._y = y.to(device=self.device, dtype=torch.int64)
        with torch.no_grad(), evaluation_mode(network):
            self._n_classes = k = network(self._x[:1]).shape[1]
        if int(y.min()) < 0 or int(y.max()) >= k:
            raise ValueError(
                f"RobustTrainer: y must be from 0 to {k - 1}, as the network has {k} "
                f"outputs, got {int(y.min())} to {int(y.max())}."
            )
        self._draws = Draws(recipe, seed=seed, device=self.device)
        self._optimizer = torch.optim.SGD(
            network.parameters(),
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
        )
        for parameter in network.parameters():  # so that checkpoints always have them
            momentum = {"momentum_buffer": torch.zeros_like(parameter)}
            self._optimizer.state[parameter] = momentum
        self.averaged: nn.Module | None = None
        if recipe.averaging > 0:
            self.averaged = copy.deepcopy(network).eval().requires_grad_(False)
        n_attack_steps = recipe.n_steps * recipe.epochs * (len(x) // recipe.batch_size)
        self._step = Step(
            network, recipe, compile=on_cuda and n_attack_steps >= _MANY_STEPS
        )
        self._tables = {
            # Mean probabilities by class in the last epoch, and their sums in this one.
            "class_weights": torch.full((k, k), 1 / k, device=self.device),
            "class_sums": torch.zeros(k, k, device=self.device),
            "loss": torch.zeros((), dtype=torch.float64, device=self.device),
            "n_correct": torch.zeros((), dtype=torch.int64, device=self.device),
        }
        self._batches = math.ceil(len(x) / recipe.batch_size)  # of an epoch
        self._n_steps = self._n_epochs = 0  # done so far
        self._order: Tensor | None = None
        self._seconds = 0.0
        self._history = History()
        # Computed before the first step, which changes the weights.
        weights = {"weights": list(network.state_dict().values())}
        self._initial = identify_run("RobustTrainer", weights)

    def train(
        self,
        *,
        evaluate: Callable[[int], bool] | None = None,
        measure: Measure | None = None,
        checkpoint: Path | None = None,
        checkpoint_seconds: float = 60.0,
        progress: Callable[[int, Row | None], None] | None = None,
    ) -> History:
        """Train to the last epoch and return the history.

        A row has ``epoch``, ``loss`` and ``seen_accuracy`` (means over the epoch, in
        training mode, of the images as attacked), ``learning_rate``, ``seconds`` of
        training so far, and the columns of ``measure``.

        Parameters
        ----------
        evaluate : callable, optional
            ``evaluate(epoch)``: whether the epoch gets a row. The last one always does.
        measure : callable, optional
            Further columns, from the network in evaluation mode.
        checkpoint : Path, optional
            The file that the state is written to, and resumed from.
        checkpoint_seconds : float
            Time between two checkpoints; up to ten times longer where writing would
            otherwise take more than a twentieth of the time.
        progress : callable, optional
            ``progress(epoch, row)`` after each epoch.

        Raises
        ------
        KeyboardInterrupt
            On Ctrl-C, between two steps, after writing the checkpoint.
        TrainingDiverged
            If the loss, or at the end an output, is no longer finite.
        ValueError
            If the checkpoint is damaged, or of another run.
        TypeError
            If a checkpoint cannot identify the network or ``measure``: see
            :func:`normalign.training.train_together`.
        """
        epochs = self.recipe.epochs
        evaluated = {epochs} | {
            epoch for epoch in range(1, epochs) if evaluate and evaluate(epoch)
        }
        identity: dict[str, str] = {}
        if checkpoint is not None:
            identity = self._identity(evaluated, measure)
            if checkpoint.exists():
                self._resume(checkpoint, identity)
        saved, pause = time.monotonic(), checkpoint_seconds
        with Interrupts() as interrupts:
            while self._n_epochs < epochs:
                # Ctrl-C can also stop between an epoch's last step and its evaluation,
                # which may take longer than the time a process is given to stop.
                begun = time.perf_counter()
                if self._n_steps < (self._n_epochs + 1) * self._batches:
                    self._take_step()
                    self._seconds += time.perf_counter() - begun
                else:
                    loss, accuracy = self._finish_epoch()
                    self._seconds += time.perf_counter() - begun
                    epoch, row = self._n_epochs, None
                    if epoch in evaluated:
                        row = self._row(loss, accuracy, measure)
                        self._history.append(row)
                    if progress is not None:
                        progress(epoch, row)
                late = time.monotonic() - saved > pause
                if checkpoint is not None and (late or interrupts.came):
                    begun = time.monotonic()
                    self._save(checkpoint, identity)
                    saved = time.monotonic()
                    longest = 10 * checkpoint_seconds
                    pause = max(checkpoint_seconds, min(20 * (saved - begun), longest))
                if interrupts.came:
                    raise KeyboardInterrupt
        self._step.release()
        with torch.no_grad(), evaluation_mode(self.network):
            outputs = self.network(self._x[: self.recipe.batch_size])
        if not bool(outputs.isfinite().all()):
            raise _diverged("the network's outputs", "others at the end")
        self._history.seconds = self._seconds
        return self._history

    def _take_step(self) -> None:
        """Attack the next batch, update the weights and add up the statistics."""
        recipe, step = self.recipe, self._n_steps
        epoch, i = step // self._batches + 1, step % self._batches
        if i == 0 or self._order is None:
            self._order = self._draws.order(epoch, len(self._x))
        index = self._order[i * recipe.batch_size : (i + 1) * recipe.batch_size]
        x, y = self._draws.images(self._x[index], step), self._y[index]
        attacked = x
        if recipe.attacks:
            radius, step_size = recipe.reach(epoch)
            start = self._draws.starts(x, step, radius)
            attacked = self._step.attack(x, y, start, radius, step_size)
        probes = self._draws.probes(x, self._n_classes, step)
        loss, n_correct, class_sums = self._step.gradients(
            Batch(x, attacked, y, self._tables["class_weights"], probes),
            perturbed=recipe.perturbation > 0 and epoch >= recipe.perturbed_from,
            penalised=recipe.penalty_weight > 0 and step % recipe.penalty_every == 0,
        )
        for group in self._optimizer.param_groups:
            group["lr"] = recipe.rate(epoch)
        self._optimizer.step()
        self._tables["loss"] += loss.double() * len(x)
        self._tables["n_correct"] += n_correct
        self._tables["class_sums"] += class_sums
        if self.averaged is not None and epoch >= recipe.first_averaged:
            first = epoch == recipe.first_averaged
            decay = 0.0 if first else recipe.averaging
            update_average(self.averaged, self.network, decay=decay)
        self._n_steps += 1

    def _finish_epoch(self) -> tuple[float, float]:
        """Return loss and accuracy of the epoch; set the class weights of the next."""
        self._n_epochs += 1
        tables, n = self._tables, len(self._x)
        totals = tables["class_sums"].sum(1, keepdim=True)
        means = tables["class_sums"] / totals.clamp_min(1e-30)
        # A class without images keeps its row.
        weights = torch.where(totals > 0, means, tables["class_weights"])
        tables["class_weights"].copy_(weights)
        loss, accuracy = float(tables["loss"]) / n, float(tables["n_correct"]) / n
        for name in ("class_sums", "loss", "n_correct"):
            tables[name].zero_()
        if not math.isfinite(loss):
            raise _diverged("the loss", f"{loss} in epoch {self._n_epochs}")
        return loss, accuracy

    def _row(self, loss: float, accuracy: float, measure: Measure | None) -> Row:
        row: Row = {
            "epoch": self._n_epochs,
            "loss": loss,
            "seen_accuracy": accuracy,
            "learning_rate": self.recipe.rate(self._n_epochs),
            "seconds": self._seconds,
        }
        if measure is not None:
            with evaluation_mode(self.network):
                row.update(measure(self.network))
        return row

    def _identity(
        self, evaluated: Collection[int], measure: Measure | None
    ) -> dict[str, str]:
        """Return hashes of all that determines the run."""
        name = "RobustTrainer.train"
        settings = {
            **{f"recipe.{key}": value for key, value in asdict(self.recipe).items()},
            "seed": self.seed,
            "x": self._x,
            "y": self._y,
            "evaluate": sorted(evaluated),
            "measure": measure,
        }
        structure = identify_structure(name, "network", self.network)
        return {"network": structure, **self._initial, **identify_run(name, settings)}

    def _state(self) -> dict[str, Tensor]:
        """Return all tensors of the state by name, not copied."""
        state = {f"table.{k}": v for k, v in self._tables.items()}
        state |= {f"network.{k}": v for k, v in self.network.state_dict().items()}
        if self.averaged is not None:
            averaged = self.averaged.state_dict()
            state |= {f"averaged.{k}": v for k, v in averaged.items()}
        for i, parameter in enumerate(self.network.parameters()):
            state[f"momentum.{i}"] = self._optimizer.state[parameter]["momentum_buffer"]
        return state

    def _save(self, path: Path, identity: dict[str, str]) -> None:
        if self.device.type == "cuda":  # unfinished steps count as training
            begun = time.perf_counter()
            torch.cuda.synchronize(self.device)
            self._seconds += time.perf_counter() - begun
        record = {
            "identity": identity,
            "steps": self._n_steps,
            "epochs": self._n_epochs,
            "seconds": self._seconds,
            "history": self._history.to_dict(),
        }
        write_checkpoint(path, self._state(), record)

    def _resume(self, path: Path, identity: dict[str, str]) -> None:
        found = read_checkpoint(path, device=self.device)
        stored = found.record.get("identity")
        require_same_run("RobustTrainer.train", path, stored, identity)
        with torch.no_grad():
            for name, tensor in self._state().items():
                tensor.copy_(found.tensors[name])
        self._n_steps, self._n_epochs = found.record["steps"], found.record["epochs"]
        self._seconds = found.record["seconds"]
        self._history = History.from_dict(found.record["history"])
        self._order = None


@torch.no_grad()
def update_average(averaged: nn.Module, network: nn.Module, *, decay: float) -> None:
    """Update a moving average of weights and buffers, in place; integers are copied."""
    pairs = zip(
        averaged.state_dict().values(), network.state_dict().values(), strict=True
    )
    means, values = [], []
    for mean, value in pairs:
        if mean.is_floating_point():
            means.append(mean)
            values.append(value)
        else:
            mean.copy_(value)
    get_ema_multi_avg_fn(decay)(means, values, None)


def _diverged(name: str, got: str) -> TrainingDiverged:
    return TrainingDiverged(
        f"RobustTrainer.train: {name} must be finite, got {got}. "
        "Lower the learning rate or a weight of the recipe."
    )


def _check(network: nn.Module, x: Tensor, y: Tensor) -> None:
    for name, value in [*network.named_parameters(), *network.named_buffers()]:
        if value.is_floating_point() and value.dtype != torch.float32:
            raise ValueError(
                "RobustTrainer: network must be all in float32, got "
                f"{name} in {value.dtype}. Call network.float(); for fast passes set "
                "the recipe's precision."
            )
    if x.ndim != 4 or len(x) == 0:
        raise ValueError(
            "RobustTrainer: x must have shape (n, c, h, w) with n > 0, "
            f"got {tuple(x.shape)}."
        )
    low, high = float(x.min()), float(x.max())
    if not (low >= 0 and high <= 1):
        raise ValueError(
            "RobustTrainer: x must have values in [0, 1], got values from "
            f"{low:g} to {high:g}. Divide by 255; do not standardise."
        )
    if y.is_floating_point() or y.dtype == torch.bool or y.shape != (len(x),):
        raise ValueError(
            f"RobustTrainer: y must be integers of shape ({len(x)},), "
            f"got {y.dtype} of shape {tuple(y.shape)}."
        )
