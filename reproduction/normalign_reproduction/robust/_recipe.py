"""The hyperparameters of adversarial training."""

from __future__ import annotations

import math
from dataclasses import dataclass

PRECISIONS = ("float32", "bf16")
_CHOICES = {
    "objective": ("dkl", "trades", "pgd", "plain"),
    "augment": ("basic", "none"),
    "precision": PRECISIONS,
}
_RANGES = (
    ("at least 1", lambda v: v >= 1, "epochs batch_size perturbed_from penalty_every"),
    (
        "at least 0 and finite",
        lambda v: 0 <= v < math.inf,
        "n_steps learning_rate weight_decay radius step_size soft_weight square_weight "
        "trades_weight perturbation penalty_weight",
    ),
    ("above 0 and finite", lambda v: 0 < v < math.inf, "temperature"),
    ("in [0, 1)", lambda v: 0 <= v < 1, "momentum averaging"),
    ("in [0, 1]", lambda v: 0 <= v <= 1, "averaged_from"),
)


@dataclass(frozen=True)
class Recipe:
    r"""The hyperparameters of adversarial training.

    An attacker moves each image within an L-infinity ball, inside [0, 1], and the
    network is trained on the result by SGD with momentum. The learning rate of epoch e
    is

    .. math:: \tfrac12 \text{rate}\,\big(1 + \cos \pi e / (\text{epochs} + 1)\big)

    The defaults are those of the command line of Cui et al. [1]_;
    :meth:`released` has the settings of their scripts.

    Parameters
    ----------
    objective : {"dkl", "trades", "pgd", "plain"}
        The loss: decoupled KL divergence, TRADES, cross-entropy of attacked images, or
        cross-entropy without an attacker.
    epochs, batch_size : int
        The last batch of an epoch may be smaller.
    learning_rate, momentum, weight_decay : float
    radius, step_size : float
        Of the attack, for pixel values in [0, 1].
    n_steps : int
        Steps of the attack.
    ramp : bool
        Let radius and step size grow linearly over the epochs.
    augment : {"basic", "none"}
        ``"basic"``: shifts of up to four pixels and horizontal flips.
    soft_weight, square_weight, temperature : float
        Of ``"dkl"``: weights of its two terms, temperature of its class weights.
    trades_weight : float
        Weight of the divergence in ``"trades"``.
    perturbation : float
        Strength of adversarial weight perturbation [2]_; 0 for none.
    perturbed_from : int
        The first epoch with perturbed weights.
    averaging : float
        Decay of the moving average of the weights; 0 for no average.
    averaged_from : float
        The share of the epochs after which averaging starts.
    precision : {"float32", "bf16"}
        Of the forward and backward passes; weights and updates are float32.
    penalty_weight : float
        Weight of :class:`~normalign.GrokAlign`; only with ``"plain"``.
    penalty_every : int
        Steps from one penalty to the next.

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
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                rule = f"one of {', '.join(map(repr, choices))}"
                raise ValueError(f"Recipe: {name} must be {rule}, got {value!r}.")
        for rule, holds, names in _RANGES:
            for name in names.split():
                if not holds(value := getattr(self, name)):
                    raise ValueError(f"Recipe: {name} must be {rule}, got {value}.")
        if self.penalty_weight > 0 and self.attacks:
            raise ValueError(
                "Recipe: penalty_weight must be 0 unless objective='plain', "
                f"got {self.penalty_weight} with objective={self.objective!r}."
            )

    @classmethod
    def released(cls, *, epochs: int = 200, precision: str = "float32") -> Recipe:
        """Return the settings of the released scripts of Cui et al.

        Two attack steps as long as the radius, which grows from epoch to epoch, and
        weight perturbation from epoch 10. None of the scripts uses the ten steps of
        2/255 that the command line declares.
        """
        return cls(
            epochs=epochs,
            n_steps=2,
            step_size=8 / 255,
            ramp=True,
            perturbation=0.005,
            precision=precision,
        )

    @property
    def attacks(self) -> bool:
        """Whether training images are attacked."""
        return self.objective != "plain"

    def rate(self, epoch: int) -> float:
        """Return the learning rate of an epoch, counted from 1."""
        turn = math.pi * epoch / (self.epochs + 1)
        return 0.5 * self.learning_rate * (1 + math.cos(turn))

    def reach(self, epoch: int) -> tuple[float, float]:
        """Return radius and step size of the attack in an epoch, counted from 1."""
        share = epoch / self.epochs if self.ramp else 1.0
        return share * self.radius, share * self.step_size

    @property
    def first_averaged(self) -> int:
        """The epoch that the average of the weights starts from."""
        # Rounded first: 0.57 * 100 is 56.99... in floating point.
        return max(1, int(round(self.averaged_from * self.epochs, 9)))
