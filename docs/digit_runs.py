"""Two networks on digits, with and without the penalty, for the pages and figures."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

import normalign
from normalign.data import Dataset, load_digits_5000
from normalign.geometry import local_geometry
from normalign.nn import mlp
from normalign.regularizers import augmented_norm
from normalign.training import History, read_checkpoint, train, write_checkpoint
from normalign_reproduction._errors import require
from normalign_reproduction.files import settings_hash

__all__ = ["RUNS", "DigitRun", "DigitSettings", "digits", "trained"]

_log = logging.getLogger(__name__)

MEASURES = (
    "normal_alignment", "effective_rank", "centroid_alignment", "local_robustness",
    "jacobian_norm",
)  # fmt: skip


@dataclass(frozen=True)
class DigitSettings:
    """Everything a run depends on.

    Network, loss, optimizer and start are those of the released MNIST experiment with
    squared error; the data are fewer and the numbers single precision. The penalty is
    ``weight * mean(|J|_F^2 + |b|^2)``, the constraint of Theorem 1, estimated with one
    probe: both norms squared, where the released code squares the second only.

    Parameters
    ----------
    weight : float
        Of the penalty; 0 trains without.
    n_measured : int
        Training points on which the local geometry is measured.
    memorised, generalised : float
        Accuracy on training and on test data above which a run counts as such; both
        are needed for the second, as in the paper's criteria.
    """

    weight: float = 0.0
    seed: int = 0
    epochs: int = 1500
    n_train: int = 1000
    n_test: int = 1000
    hidden: tuple[int, ...] = (200, 200, 200)
    init_scale: float = 8.0
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.99)
    epsilon: float = 1e-25
    weight_decay: float = 0.01
    batch_size: int = 196
    n_measured: int = 64
    memorised: float = 0.99
    generalised: float = 0.80

    def key(self) -> str:
        """Return the name under which a finished run is stored."""
        return settings_hash({"version": normalign.__version__, **asdict(self)})


RUNS = {"baseline": 0.0, "with penalty": 0.1}


@dataclass(frozen=True)
class DigitRun:
    """One trained network: its settings, its course and its states on the way.

    ``states`` holds the parameters at ``"start"``, ``"memorised"``, ``"generalised"``
    and ``"end"``; those that were not reached are missing.
    """

    settings: DigitSettings
    history: History
    states: dict[str, dict[str, Tensor]]

    def network(self, state: str = "end") -> nn.Sequential:
        """Return the network as it was in one of the states."""
        known = state in self.states
        rule = f"one of {', '.join(self.states)}"
        require(known, "DigitRun.network", "state", rule, repr(state))
        network = _untrained(self.settings)
        network.load_state_dict(self.states[state])
        return network.eval()

    def epoch(self, state: str) -> int | None:
        """Return the epoch at which a state was reached, or ``None``."""
        if state not in ("memorised", "generalised"):
            return int(self.history["epoch"][0 if state == "start" else -1])
        found = self.history.first(lambda row: state in _reached(row, self.settings))
        return None if found is None else int(found["epoch"])


def trained(
    settings: DigitSettings, data: Dataset, folder: Path, label: str = ""
) -> DigitRun:
    """Return the finished run with these settings, from the folder or by training it.

    Parameters
    ----------
    folder : Path
        Where finished runs are kept, one checkpoint for each.
    label : str
        Name on the progress bar; empty for no bar.

    Raises
    ------
    KeyboardInterrupt
        If training was interrupted; nothing is stored then.
    """
    stored = _stored(settings, folder)
    if stored is not None:
        return stored
    run = _train(settings, data, label)
    if run.history.interrupted:
        raise KeyboardInterrupt
    flat = {
        f"{state}/{name}": value
        for state, tensors in run.states.items()
        for name, value in tensors.items()
    }
    record = {"settings": asdict(settings), "history": run.history.to_dict()}
    write_checkpoint(_path(settings, folder), flat, record)
    return run


def _path(settings: DigitSettings, folder: Path) -> Path:
    return folder / f"{settings.key()}.safetensors"


def _stored(settings: DigitSettings, folder: Path) -> DigitRun | None:
    path = _path(settings, folder)
    if not path.is_file():
        return None
    try:
        checkpoint = read_checkpoint(path)
    except ValueError as error:
        _log.warning("%s; its run is done again", error)
        return None
    history = History.from_dict(checkpoint.record["history"])
    states: dict[str, dict[str, Tensor]] = {}
    for name, tensor in checkpoint.tensors.items():
        state, parameter = name.split("/", 1)
        states.setdefault(state, {})[parameter] = tensor
    return DigitRun(settings, history, states)


def _train(settings: DigitSettings, data: Dataset, label: str) -> DigitRun:
    network = _untrained(settings)
    optimizer = torch.optim.AdamW(
        network.parameters(),
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
    )
    x, y = data.x_train[: settings.n_measured], data.y_train[: settings.n_measured]

    def measure(model: nn.Module) -> dict[str, float]:
        mean = local_geometry(model, x, y).mean()
        return {name: mean[name] for name in MEASURES}

    states = {"start": _copy(network)}
    bar = tqdm(
        total=settings.epochs, desc=label, unit="epoch", disable=None if label else True
    )

    def follow(epoch: int, row: dict[str, float] | None) -> None:
        bar.update(epoch - bar.n)
        if row is not None:
            for state in _reached(row, settings):
                states.setdefault(state, _copy(network))
            bar.set_postfix_str(f"test accuracy {row['test_accuracy']:.3f}")

    with bar, _quick_arithmetic():
        history = train(
            network,
            data,
            loss=_squared_error,
            optimizer=optimizer,
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            seed=settings.seed,
            penalty=_penalty(settings) if settings.weight > 0 else None,
            evaluate=_is_looked_at,
            measure=measure,
            callback=follow,
        )
    states["end"] = _copy(network)
    return DigitRun(settings, history, states)


def digits(settings: DigitSettings) -> Dataset:
    """Return the digits, normalised and flattened to 784 numbers."""
    return load_digits_5000(
        n_train=settings.n_train,
        n_test=settings.n_test,
        seed=settings.seed,
        normalise=True,
        flatten=True,
    )


def _untrained(settings: DigitSettings) -> nn.Sequential:
    generator = torch.Generator().manual_seed(settings.seed)
    widths = [784, *settings.hidden, 10]
    return mlp(widths, init_scale=settings.init_scale, generator=generator)


def _squared_error(output: Tensor, label: Tensor) -> Tensor:
    """Return the mean over batch and classes of the distance to one-hot, squared."""
    target = functional.one_hot(label, output.shape[1]).to(output.dtype)
    return functional.mse_loss(output, target)


def _penalty(
    settings: DigitSettings,
) -> Callable[[nn.Module, Tensor], tuple[Tensor, Tensor]]:
    # A stream of its own: the seed itself draws the initial weights.
    generator = torch.Generator().manual_seed(settings.seed + 1)

    def penalty(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        output, squared_norm = augmented_norm(model, x, generator=generator)
        return output, settings.weight * squared_norm.mean()

    return penalty


def _reached(row: dict[str, float], settings: DigitSettings) -> list[str]:
    """Return which of the two states a row of the history has reached."""
    memorised = row["train_accuracy"] > settings.memorised
    generalised = memorised and row["test_accuracy"] > settings.generalised
    return ["memorised"] * memorised + ["generalised"] * generalised


def _is_looked_at(epoch: int) -> bool:
    """Say whether to evaluate: the first ten epochs, then forty in each decade."""
    if epoch <= 10:
        return True
    return math.floor(40 * math.log10(epoch)) > math.floor(40 * math.log10(epoch - 1))


def _copy(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


@contextmanager
def _quick_arithmetic() -> Iterator[None]:
    """Use one thread, and round numbers below the normal range to zero.

    Matrices this small are not worth a second thread, least of all on a busy machine.
    And once the loss is nearly zero, gradients and the optimizer's averages fall into
    that range, where each operation of the processor takes many times as long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)
