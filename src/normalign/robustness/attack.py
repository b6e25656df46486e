"""What an attack found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor

from normalign._errors import module_of_extra
from normalign.robustness.balls import distance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Attack", "attack_success_rate"]


@overload
def attack_success_rate(accuracy: float, robust_accuracy: float) -> float: ...


@overload
def attack_success_rate(
    accuracy: float | Tensor, robust_accuracy: Tensor
) -> Tensor: ...


@overload
def attack_success_rate(accuracy: Tensor, robust_accuracy: float) -> Tensor: ...


def attack_success_rate(
    accuracy: float | Tensor, robust_accuracy: float | Tensor
) -> float | Tensor:
    r"""Share of the rightly classified samples that an attack turns, in percent.

    .. math:: 100 \, \frac{\mathrm{acc} - \mathrm{acc}_\mathrm{attacked}}
        {\mathrm{acc}} \quad \text{(Table 2)}

    Between 0 and 100 where samples wrong from the start count as wrong under attack;
    not a number for a model that is never right.

    Parameters
    ----------
    accuracy : float or Tensor
    robust_accuracy : float or Tensor
        Accuracy under attack; it broadcasts with ``accuracy``.

    Returns
    -------
    float, or Tensor where one of them is a tensor

    Examples
    --------
    >>> attack_success_rate(0.5, 0.125)
    75.0
    """
    if not isinstance(accuracy, Tensor):
        if accuracy > 0:
            return 100 * (accuracy - robust_accuracy) / accuracy
        return robust_accuracy * math.nan
    rate = 100 * (accuracy - robust_accuracy) / accuracy
    return torch.where(accuracy > 0, rate, torch.nan)


@dataclass(frozen=True, repr=False)
class Attack:
    """What an attack found at each of R radii for each of n samples.

    Attributes
    ----------
    radii : Tensor of shape (R,)
        As they were given, in float64 on the processor.
    points : Tensor of shape (R, n, ...)
        Where the attack ended; misclassified wherever ``broken``.
    clean : bool Tensor of shape (n,)
        Whether a sample is right at x itself.
    broken : bool Tensor of shape (R, n)
        Whether a sample is wrong at its point; true for all that are wrong at x.
    reached : bool Tensor of shape (R, n)
        Whether a run ended where the answer is wrong, whatever it is at x. A run may
        lead a sample that is wrong at x to where it is right, and the released
        scripts then count it as right: their accuracy under attack is
        ``(~attack.reached).double().mean(1)``.
    losses : Tensor of shape (R, n)
        The raised loss at the points.
    x : Tensor of shape (n, ...)
        What was attacked.
    norm : str
    """

    radii: Tensor
    points: Tensor
    clean: Tensor
    broken: Tensor
    reached: Tensor
    losses: Tensor
    x: Tensor
    norm: str

    @property
    def accuracy(self) -> float:
        """Share of samples that are right at x."""
        return float(self.clean.double().mean())

    @property
    def robust_accuracy(self) -> Tensor:
        """Share of samples that no point found turns, (R,), in float64."""
        return (~self.broken).double().mean(1)

    @property
    def success_rate(self) -> Tensor:
        """Attack success rate for each radius, (R,); see attack_success_rate."""
        return attack_success_rate(self.accuracy, self.robust_accuracy)

    def distances(self) -> Tensor:
        """Return how far the points lie from x, (R, n), in the attack's norm."""
        each = [distance(points, self.x, self.norm) for points in self.points]
        return torch.stack(each)

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame, one row for each radius and sample."""
        pd = module_of_extra("Attack.to_frame", "pandas", "frames")
        r, n = self.broken.shape
        # In float64, for arrays have no bfloat16.
        columns = {
            "radius": self.radii.repeat_interleave(n),
            "sample": torch.arange(n).repeat(r),
            "clean": self.clean.repeat(r),
            "broken": self.broken.flatten(),
            "loss": self.losses.double().flatten(),
            "distance": self.distances().double().flatten(),
        }
        return pd.DataFrame({k: v.cpu().numpy() for k, v in columns.items()})

    def __len__(self) -> int:
        return len(self.clean)

    def __repr__(self) -> str:
        lines = [f"Attack on {len(self)} samples ({self.norm})"]
        lines[0] += f", accuracy {self.accuracy:.4g}"
        lines.append(f"{'radius':>12}{'robust accuracy':>18}{'success rate':>15}")
        columns = self.radii, self.robust_accuracy.cpu(), self.success_rate.cpu()
        for radius, robust, success in zip(*columns, strict=True):
            lines.append(f"{radius:12.4g}{robust:18.4g}{success:14.4g}%")
        return "\n".join(lines)
