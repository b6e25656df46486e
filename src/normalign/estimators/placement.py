"""Where a table's numbers are put before a kernel sees them, and how precisely.

A kernel sees differences, in units of its bandwidth. So a table may be shifted and
divided by a power of two, and the bandwidth with it, without changing the machine; it
then neither overflows nor loses the digits in which its rows differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from normalign._checks import complaint, require

__all__ = ["Frame", "chosen_device", "chosen_dtype", "power_of_two"]

DTYPES = {"float32": torch.float32, "float64": torch.float64}

# Rows up to which double precision costs nothing that anybody would notice.
_PRECISE_ROWS = 1000
# Rows from which an accelerator pays for its launches and transfers.
_DEVICE_ROWS = 2000
# Spreads of a table, in bandwidths, whose squares a precision can hold.
_SPREADS = {torch.float32: 1e12, torch.float64: 1e120}
# Spreads of a table whose inverse and whose multiples are numbers.
_SIZES = (1e-200, 1e300)
# Beyond that many spreads of the training rows every kernel is zero.
_FAR = {torch.float32: 1e15, torch.float64: 1e150}


def power_of_two(size: float) -> float:
    """The smallest power of two that is at least as large; one for zero.

    Examples
    --------
    >>> power_of_two(5.0), power_of_two(0.25), power_of_two(0.0)
    (8.0, 0.25, 1.0)
    """
    if size == 0:
        return 1.0
    mantissa, exponent = math.frexp(size)
    exponent = exponent - 1 if mantissa == 0.5 else exponent
    return math.ldexp(1.0, max(min(exponent, 1023), -1022))


@dataclass(frozen=True)
class Frame:
    r"""A table's middle and spread: :math:`x \mapsto (x - m) / u`.

    The middle of each column's range and one power of two for all, so that repeated
    or reordered rows have the very same frame and the division rounds nothing.

    Parameters
    ----------
    location : ndarray of shape (d,)
    unit : float

    Examples
    --------
    >>> frame = Frame.around(np.array([[1.0, 0.0], [3.0, 8.0]]))
    >>> frame.location, frame.unit
    (array([2., 4.]), 4.0)
    """

    location: np.ndarray
    unit: float

    @classmethod
    def around(cls, table: np.ndarray) -> Frame:
        """The frame in which a table lies in ``[-1, 1]``.

        In ``[-2, 2]`` at worst: the middle of two neighbouring numbers is one of them.
        """
        low = table.min(axis=0).astype(np.float64)
        high = table.max(axis=0).astype(np.float64)
        half = high / 2 - low / 2
        return cls(low / 2 + high / 2, power_of_two(float(half.max())))

    def require_size(self, callee: str) -> None:
        """Complain if bandwidths and derivatives could not be told in these units."""
        require(
            _SIZES[0] < self.unit < _SIZES[1], callee, "X",
            f"spread over {_SIZES[0]:g} to {_SIZES[1]:g}", f"{self.unit:.1g}",
            "Scale the columns (StandardScaler).",
        )  # fmt: skip

    def enter(self, table: np.ndarray, dtype: torch.dtype) -> np.ndarray:
        """The table in this frame; rows too far to matter come nearer, but not near."""
        with np.errstate(over="ignore"):  # to infinity, which is far
            inside = (table.astype(np.float64) - self.location) / self.unit
        far = _FAR[dtype]
        np.clip(inside, -far, far, out=inside)
        return inside.astype(str(dtype).removeprefix("torch."), copy=False)

    def identity_weight(self, identity_weight: float) -> float:
        r"""The weight of the identity against the covariance of a table in this frame.

        .. math:: (1 - a) u^2 \mathrm{Cov}' + a I \;\propto\; (1 - a') \mathrm{Cov}'
                  + a' I
        """
        if identity_weight in (0.0, 1.0):
            return float(identity_weight)
        odds = self.unit * self.unit * (1 - identity_weight) / identity_weight
        return 1 / (1 + odds)


def chosen_dtype(callee: str, name: str, n: int, *, spread: float) -> torch.dtype:
    """The working precision for n rows whose spread is so many bandwidths.

    Raises
    ------
    ValueError
        If the precision asked for, or any, cannot hold the squares of such distances.
    """
    enough = [dtype for dtype, limit in _SPREADS.items() if 1 / limit < spread < limit]
    wanted = DTYPES.get(name)
    if wanted is None and enough:
        precise = n <= _PRECISE_ROWS or torch.float32 not in enough
        wanted = torch.float64 if precise else torch.float32
    if wanted is None or wanted not in enough:
        raise ValueError(
            complaint(
                callee, "X", "on a scale near the bandwidth",
                f"columns that spread over {spread:.1g} bandwidths",
                "Scale the columns (StandardScaler), or set bandwidth to their spread.",
            )
        )  # fmt: skip
    return wanted


def chosen_device(callee: str, name: Any, n: int, *, given: Any = None) -> torch.device:
    """The device for n rows: as named, where the table is, or where it pays.

    Parameters
    ----------
    name : str or torch.device
        "auto", or a device of torch.
    given : torch.device, optional
        Where the caller's tensor is.

    Raises
    ------
    ValueError
        If there is no such device here.
    """
    if isinstance(name, str) and name == "auto":
        if isinstance(given, torch.device) and given.type == "cuda":
            return given
        pays = n >= _DEVICE_ROWS and torch.cuda.is_available()
        return torch.device("cuda" if pays else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, TypeError, AssertionError) as error:
        raise ValueError(
            complaint(
                callee, "device", '"auto" or a device of torch that is here', repr(name)
            )
        ) from error  # fmt: skip
    require(
        device.type != "meta", callee, "device", "a device that computes", repr(name)
    )
    return device
