"""Training one network against an attacker: kept, resumed, and heard."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from normalign._errors import require, require_kind
from normalign._torch_compat import override
from normalign.training.checkpoint import read_checkpoint, write_checkpoint
from normalign.training.history import History
from normalign.training.identity import (
    digest,
    identify_run,
    identify_structure,
    require_same_run,
)
from normalign.training.interrupts import Interrupts
from normalign.training.loop import evaluation_mode
from normalign.training.robust.averaging import AveragedWeights
from normalign.training.robust.draws import Draws
from normalign.training.robust.keeping import pause_after
from normalign.training.robust.recipe import Recipe
from normalign.training.robust.refusals import (
    TrainingDiverged,
    check_data,
    check_network,
    diverged,
)
from normalign.training.robust.step import Batch, Step

__all__ = ["RobustTrainer", "TrainingDiverged"]

Row = dict[str, float]

# Gradients in the images beyond which compiling the attacked copy pays.
_WORTH_COMPILING = 10_000


def _at_the_end(epoch: int) -> bool:
    return False


class RobustTrainer:
    """Trains a network on images that an attacker moves, by a :class:`Recipe`.

    On CUDA a step is recorded as a graph and replayed, convolutions work on channels
    last, and where many steps are to come the attacker's copy is compiled. The same
    seed gives the same run, on a CPU bit for bit, however often it was interrupted.

    Parameters
    ----------
    network : nn.Module
        Trained in place, after it was brought to the device. In float32; its outputs
        are logits.
    x : Tensor of shape (n, c, h, w)
        Images with values in [0, 1].
    y : integer Tensor of shape (n,)
        Classes from 0.
    recipe : Recipe
    seed : int
    device : torch.device or str, optional
        By default that of the network.
    compile : bool or "auto"

    Attributes
    ----------
    network : nn.Module
    averaged : nn.Module or None
        A network with the averaged weights, if the recipe has an average; before it
        began, with the initial ones.

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
        compile: bool | str = "auto",
    ) -> None:
        check_network(network)
        check_data(x, y)
        known = compile == "auto" or isinstance(compile, bool)
        rule = "True, False or 'auto'"
        require_kind(known, "RobustTrainer", "compile", rule, repr(compile))
        if device is None:
            device = next((p.device for p in network.parameters()), torch.device("cpu"))
        self.device, self.recipe, self.seed = torch.device(device), recipe, seed
        layout = torch.preserve_format
        if self.device.type == "cuda":
            layout = torch.channels_last
        self.network = network.to(self.device).to(memory_format=layout).train()  # pyright: ignore
        self._x = x.to(device=self.device, dtype=torch.float32, memory_format=layout)
        self._y = y.to(device=self.device, dtype=torch.int64)
        with torch.no_grad(), evaluation_mode(network):
            n_classes = network(self._x[:1]).shape[1]
        fits = int(y.max()) < n_classes
        rule = f"classes below {n_classes}, the network's outputs"
        require(fits, "RobustTrainer", "y", rule, int(y.max()))
        self._draws = Draws(recipe, seed=seed, device=self.device)
        self._optimizer = torch.optim.SGD(
            network.parameters(), lr=recipe.learning_rate, momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
        )  # fmt: skip
        self._average = None
        if recipe.averaging > 0:
            self._average = AveragedWeights(network, decay=recipe.averaging)
        self._steps = -(-len(x) // recipe.batch_size)  # of an epoch
        slopes = recipe.n_steps * recipe.epochs * (len(x) // recipe.batch_size)
        if compile == "auto":
            compile = self.device.type == "cuda" and slopes >= _WORTH_COMPILING
        self._step = Step(network, recipe, n_classes=n_classes, compile=bool(compile))
        k = n_classes
        self._tables = {
            # Of the last epoch: mean probabilities of each class; and of this one, the
            # sums of which the next are made.
            "class_weights": torch.full((k, k), 1 / k, device=self.device),
            "class_sums": torch.zeros(k, k, device=self.device),
            "loss": torch.zeros((), dtype=torch.float64, device=self.device),
            "right": torch.zeros((), dtype=torch.int64, device=self.device),
        }
        self._done = 0  # steps
        self._closed = 0  # epochs whose means are taken
        self._seconds = 0.0
        self._history = History()
        # Taken now: a run that goes on has other weights than at its start.
        self._start = [digest(value) for value in network.state_dict().values()]
        self._identity: dict[str, str] | None = None

    @property
    def averaged(self) -> nn.Module | None:
        """A network with the averaged weights."""
        return None if self._average is None else self._average.module

    def train(
        self,
        *,
        evaluate: Callable[[int], bool] = _at_the_end,
        measure: Callable[[nn.Module], Mapping[str, float]] | None = None,
        checkpoint: Path | None = None,
        checkpoint_seconds: float = 60.0,
        progress: Callable[[int, Row | None], None] | None = None,
    ) -> History:
        """Train to the last epoch and return what was measured on the way.

        A row has ``epoch``, ``loss`` and ``seen_accuracy`` (means over the epoch, in
        training mode, of the images that the loss is about: the attacked ones where
        there is an attacker), ``learning_rate``, ``seconds`` of training so far, and
        the columns of ``measure``.

        Parameters
        ----------
        evaluate : callable
            Says after which epochs a row is made; the last one always has one.
        measure : callable, optional
            Further columns, from the network in evaluation mode.
        checkpoint : Path, optional
            The run's state is kept there, and taken up from there.
        checkpoint_seconds : float
            How often; up to ten times as rarely where writing it would else take more
            than a twentieth of the time.
        progress : callable
            ``progress(epoch, row)`` after each epoch.

        Raises
        ------
        KeyboardInterrupt
            On Ctrl-C, between two steps; the checkpoint is written then.
        TrainingDiverged
            If the loss is no longer finite, or at the end the network's answers.
        ValueError
            If the checkpoint is of another run, or damaged.
        TypeError
            If there is a checkpoint, and it cannot identify the network or ``measure``:
            see :func:`normalign.training.train_together`.
        """
        if checkpoint is not None:
            self._identify(evaluate, measure)
            if checkpoint.exists():
                self._resume(checkpoint)
        kept, pause = time.monotonic(), checkpoint_seconds
        with Interrupts() as interrupts:
            while self._closed < self.recipe.epochs:
                # A look may take longer than a process has after Ctrl-C: between the
                # last step of an epoch and the look there is a moment to stop, too.
                if self._done < (self._closed + 1) * self._steps:
                    self._advance()
                else:
                    self._look(evaluate, measure, progress)
                late = time.monotonic() - kept > pause
                if checkpoint is not None and (late or interrupts.came):
                    begun = time.monotonic()
                    self._keep(checkpoint)
                    kept = time.monotonic()
                    pause = pause_after(kept - begun, wanted=checkpoint_seconds)
                if interrupts.came:
                    raise KeyboardInterrupt
        self._step.forget()
        self._require_answers()
        self._history.seconds = self._seconds
        return self._history

    def _advance(self) -> None:
        """Take the next step."""
        begun = time.perf_counter()
        epoch, i = self._done // self._steps + 1, self._done % self._steps
        # cuDNN tries its convolutions out on shapes that it has not seen.
        with override(cudnn_benchmark=True):
            self._take(epoch, i)
        self._done += 1
        self._seconds += time.perf_counter() - begun

    def _look(
        self,
        evaluate: Callable[[int], bool],
        measure: Callable[[nn.Module], Mapping[str, float]] | None,
        progress: Callable[[int, Row | None], None] | None,
    ) -> None:
        """End an epoch, and say what there is to be said of it."""
        begun, epoch = time.perf_counter(), self._closed + 1
        means = self._close(epoch)
        self._seconds += time.perf_counter() - begun
        self._closed, row = epoch, None
        if epoch == self.recipe.epochs or evaluate(epoch):
            row = self._row(epoch, *means, measure)
            self._history.append(row)
        if progress is not None:
            progress(epoch, row)

    def _take(self, epoch: int, i: int) -> None:
        """Take step ``i`` of an epoch, counted from 1."""
        recipe, size = self.recipe, self.recipe.batch_size
        if i == 0:
            self._order = self._draws.order(epoch, len(self._x))
        index = self._order[i * size : (i + 1) * size]
        x, y = self._draws.images(self._x[index], self._done), self._y[index]
        attacked = x
        if recipe.attacks:
            radius, step = recipe.reach(epoch)
            start = self._draws.starts(x, self._done, radius)
            attacked = self._step.attacked(x, y, start, radius, step)
        probes = self._draws.probes(x, self._step.n_classes, self._done)
        loss, right, sums = self._step.gradients(
            Batch(x, attacked, y, self._tables["class_weights"], probes),
            perturbed=recipe.perturbation > 0 and epoch >= recipe.perturbed_from,
            penalised=recipe.penalty_weight > 0
            and self._done % recipe.penalty_every == 0,
        )  # fmt: skip
        for group in self._optimizer.param_groups:
            group["lr"] = recipe.rate(epoch)
        self._optimizer.step()
        self._tables["loss"] += loss.double() * len(x)
        self._tables["right"] += right
        self._tables["class_sums"] += sums
        if self._average is not None and epoch >= recipe.first_averaged:
            first = epoch == recipe.first_averaged
            self._average.take_over() if first else self._average.follow()

    def _close(self, epoch: int) -> tuple[float, float]:
        """Return loss and accuracy of an epoch; make the class weights of the next."""
        tables, n = self._tables, len(self._x)
        totals = tables["class_sums"].sum(1, keepdim=True)
        means = tables["class_sums"] / totals.clamp_min(1e-30)
        # A class that the epoch did not have keeps its row.
        tables["class_weights"].copy_(
            torch.where(totals > 0, means, tables["class_weights"])
        )
        loss, seen = float(tables["loss"]) / n, float(tables["right"]) / n
        for name in ("class_sums", "loss", "right"):
            tables[name].zero_()
        if not math.isfinite(loss):
            diverged("the loss", f"{loss} in epoch {epoch}")
        return loss, seen

    def _row(
        self,
        epoch: int,
        loss: float,
        seen: float,
        measure: Callable[[nn.Module], Mapping[str, float]] | None,
    ) -> Row:
        row: Row = {
            "epoch": epoch, "loss": loss, "seen_accuracy": seen,
            "learning_rate": self.recipe.rate(epoch), "seconds": self._seconds,
        }  # fmt: skip
        if measure is not None:
            with evaluation_mode(self.network):
                row.update(measure(self.network))
        return row

    def _require_answers(self) -> None:
        """Refuse a network whose last update was too long: no loss tells of it."""
        with torch.no_grad(), evaluation_mode(self.network):
            answers = self.network(self._x[: self.recipe.batch_size])
        if not bool(answers.isfinite().all()):
            diverged("the network's answers", "others at the end")

    def _identify(
        self,
        evaluate: Callable[[int], bool],
        measure: Callable[[nn.Module], Mapping[str, float]] | None,
    ) -> None:
        """Hash all that decides the run; it takes a look at all data, once."""
        callee = "RobustTrainer.train"
        if self._identity is None:
            settings = {
                **{f"recipe.{k}": v for k, v in asdict(self.recipe).items()},
                "seed": self.seed, "weights": self._start, "x": digest(self._x),
                "y": digest(self._y),
            }  # fmt: skip
            structure = identify_structure(callee, "network", self.network)
            self._identity = {"network": structure, **identify_run(callee, settings)}
        epochs = self.recipe.epochs
        due = [e for e in range(1, epochs + 1) if e == epochs or evaluate(e)]
        seen = {"evaluate": due, "measure": measure}
        self._identity |= identify_run(callee, seen)

    def _parts(self) -> dict[str, Tensor]:
        """Return all tensors of the state by name, as they are, not copies."""
        parts = {f"network.{k}": v for k, v in self.network.state_dict().items()}
        parts |= {f"table.{k}": v for k, v in self._tables.items()}
        if self._average is not None:
            averaged = self._average.module.state_dict()
            parts |= {f"averaged.{k}": v for k, v in averaged.items()}
        for i, parameter in enumerate(self.network.parameters()):
            state = self._optimizer.state.get(parameter, {})
            if state.get("momentum_buffer") is not None:
                parts[f"momentum.{i}"] = state["momentum_buffer"]
        return parts

    def _keep(self, path: Path) -> None:
        begun = time.perf_counter()
        if self.device.type == "cuda":  # steps that still run are no time of writing
            torch.cuda.synchronize(self.device)
        self._seconds += time.perf_counter() - begun
        record = {
            "identity": self._identity,
            "done": self._done, "closed": self._closed, "seconds": self._seconds,
            "history": self._history.to_dict(),
        }  # fmt: skip
        write_checkpoint(path, self._parts(), record)

    def _resume(self, path: Path) -> None:
        found = read_checkpoint(path, device=self.device)
        stored = found.record.get("identity")
        assert self._identity is not None
        require_same_run("RobustTrainer.train", path, stored, self._identity)
        for i, parameter in enumerate(self.network.parameters()):
            if f"momentum.{i}" in found.tensors:
                buffer = torch.empty_like(parameter)
                self._optimizer.state[parameter]["momentum_buffer"] = buffer
        with torch.no_grad():
            for name, tensor in self._parts().items():
                tensor.copy_(found.tensors[name])
        self._done, self._closed, self._seconds = (
            found.record[name] for name in ("done", "closed", "seconds")
        )
        self._history = History.from_dict(found.record["history"])
        epoch = self._done // self._steps + 1
        self._order = self._draws.order(epoch, len(self._x))
