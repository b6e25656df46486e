"""How a network is trained against an attacker: every number of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from normalign_reproduction._errors import require

__all__ = ["OBJECTIVES", "Recipe"]

OBJECTIVES = ("dkl", "trades", "pgd", "plain")
AUGMENTATIONS = ("basic", "none")
PRECISIONS = ("float32", "bf16")


@dataclass(frozen=True)
class Recipe:
    r"""What decides the course of training, but for network, images and seed.

    The attacker moves each image within an L-infinity ball, inside [0, 1]; the network
    is trained on what it finds. Stochastic gradient descent with momentum and coupled
    decay, at the rate of epoch e

    .. math:: \tfrac12 \text{rate}\,\big(1 + \cos \pi e / (\text{epochs} + 1)\big)

    The defaults are those of Cui et al. [1]_ as their command line has them. What their
    scripts then do is ``Recipe.released()``.

    Parameters
    ----------
    objective : {"dkl", "trades", "pgd", "plain"}
        See the module ``objectives``; ``"plain"`` has no attacker.
    epochs, batch_size : int
        The last batch of an epoch may be smaller.
    learning_rate, momentum, weight_decay : float
    radius, step_size : float
        Of the attack, in units of the pixels.
    n_steps : int
    ramp : bool
        Whether radius and step grow linearly over the epochs, up to the last.
    augment : {"basic", "none"}
        ``"basic"``: shifts of up to four pixels and flips.
    soft_weight, square_weight, temperature : float
        Of ``"dkl"``.
    trades_weight : float
        Of ``"trades"``.
    perturbation : float
        Strength of adversarial weight perturbation [2]_; 0 for none.
    perturbed_from : int
        The first epoch with it.
    averaging : float
        How much of the averaged weights stays at each step; 0 for no average.
    averaged_from : float
        When averaging begins, as a share of the epochs.
    precision : {"float32", "bf16"}
        Of the products in both passes; weights and updates are float32.
    penalty_weight : float
        Of :class:`~normalign.GrokAlign`, on the images that the network is trained on;
        with ``"plain"`` only.
    penalty_every : int

    Raises
    ------
    ValueError
        If a number is out of its range.

    References
    ----------
    .. [1] Cui et al., Decoupled Kullback-Leibler divergence loss, 2024.
    .. [2] Wu et al., Adversarial weight perturbation helps robust generalization, 2020.

    Examples
    --------
    >>> Recipe("trades", epochs=100).rate(50)
    0.05077...
    """

    objective: str = "dkl"
    epochs: int = 200
    batch_size: int = 128
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    radius: float = 8 / 255
    n_steps: int = 10
    step_size: float = 2 / 255
    ramp: bool = False
    augment: str = "basic"
    soft_weight: float = 4.0
    square_weight: float = 20.0
    temperature: float = 4.0
    trades_weight: float = 6.0
    perturbation: float = 0.0
    perturbed_from: int = 10
    averaging: float = 0.9996
    averaged_from: float = 0.75
    precision: str = "float32"
    penalty_weight: float = 0.0
    penalty_every: int = 4

    def __post_init__(self) -> None:
        for name, known in (
            ("objective", OBJECTIVES), ("augment", AUGMENTATIONS),
            ("precision", PRECISIONS),
        ):  # fmt: skip
            value = getattr(self, name)
            rule = f"one of {', '.join(map(repr, known))}"
            require(value in known, "Recipe", name, rule, repr(value))
        for name in ("epochs", "batch_size", "perturbed_from", "penalty_every"):
            value = getattr(self, name)
            require(value >= 1, "Recipe", name, "at least 1", value)
        require(self.n_steps >= 0, "Recipe", "n_steps", "at least 0", self.n_steps)
        for name in (
            "learning_rate", "weight_decay", "radius", "step_size", "soft_weight",
            "square_weight", "trades_weight", "perturbation", "penalty_weight",
        ):  # fmt: skip
            value = getattr(self, name)
            require(0 <= value < math.inf, "Recipe", name, "0 or more", value)
        for name in ("momentum", "averaging"):
            value = getattr(self, name)
            require(0 <= value < 1, "Recipe", name, "in [0, 1)", value)
        share = self.averaged_from
        require(0 <= share <= 1, "Recipe", "averaged_from", "in [0, 1]", share)
        warm = self.temperature
        require(0 < warm < math.inf, "Recipe", "temperature", "above 0", warm)
        require(
            self.objective == "plain" or self.penalty_weight == 0,
            "Recipe", "penalty_weight", "0 where an attacker trains the network",
            self.penalty_weight, "GrokAlign goes with objective='plain'.",
        )  # fmt: skip

    @classmethod
    def released(cls, *, epochs: int = 200, precision: str = "float32") -> Recipe:
        """Return what the released scripts of Cui et al. do by default.

        Two steps, each as long as the radius, which grows from epoch to epoch; and
        weights perturbed from the tenth epoch on. The ten steps of 2/255 that their
        command line declares are used by none of them.
        """
        return cls(
            epochs=epochs, precision=precision, n_steps=2, step_size=8 / 255, ramp=True,
            perturbation=0.005,
        )  # fmt: skip

    @property
    def attacks(self) -> bool:
        """Whether there is an attacker at all."""
        return self.objective != "plain"

    def rate(self, epoch: int) -> float:
        """Return the learning rate of an epoch, counted from 1."""
        turn = math.pi * epoch / (self.epochs + 1)
        return 0.5 * self.learning_rate * (1 + math.cos(turn))

    def reach(self, epoch: int) -> tuple[float, float]:
        """Return radius and step of the attack in an epoch, counted from 1."""
        share = epoch / self.epochs if self.ramp else 1.0
        return share * self.radius, share * self.step_size

    @property
    def first_averaged(self) -> int:
        """The epoch whose weights the average begins with."""
        # 0.57 * 100 is 56.99..., and no epoch is to be lost to that.
        return max(1, int(round(self.averaged_from * self.epochs, 9)))
