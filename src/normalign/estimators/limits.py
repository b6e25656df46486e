"""What is said before a fit begins: it will not fit into memory, or not learn."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial.distance import pdist

from normalign._checks import require
from normalign.estimators.placement import rounding_noise, rounding_share
from normalign.estimators.problem import Problem
from normalign.kernels import Kernel, estimate_memory
from normalign.kernels.functions import Radial
from normalign.kernels.memory import available_bytes

__all__ = ["Look", "require_memory", "warn_of_rounding", "warn_of_scale"]

# Distances, in bandwidths, between which a kernel tells rows apart.
_TELLING = (1e-4, 100.0)
_SAMPLE = 32
# Bytes for which nobody is asked what is free.
_NEVER_MIND = 1 << 26
# Share of small distances that rounding may be without a word, and how far below that
# a quick look must find it.
_ROUNDING, _MARGIN = 1e-3, 4


def require_memory(
    callee: str, problem: Problem, *, solver: str, limit: int | None, most: int | None
) -> None:
    """Complain if a fit will not fit, before anything is allocated.

    Parameters
    ----------
    solver : {"auto", "cholesky", "cg"}
        "auto" needs what its last resort needs.
    limit : int, optional
        Bytes above the data; by default most of what is free.
    most : int, optional
        Rows of one part.

    Raises
    ------
    ValueError
        With three remedies.
    """
    n, d = problem.table.shape
    rows = n if most is None else min(n, int(most))
    name = "cholesky" if solver == "cholesky" else "cg"
    needed = estimate_memory(
        rows, d, problem.k, solver=name, dtype=problem.dtype, device=problem.device,
        rank=1,
    )  # fmt: skip
    if limit is None and needed <= _NEVER_MIND:
        return
    allowed = limit or available_bytes(problem.device)
    instead = (
        'solver="cg" to keep no kernel matrix'
        if name == "cholesky"
        else 'dtype="float32" to halve it'
    )
    require(
        needed <= allowed, callee, "memory_limit",
        f"at least {needed / 1e6:.3g} MB to fit {rows} rows by {name}",
        f"{allowed / 1e6:.3g} MB",
        f"Set max_leaf_size to fit the rows in parts, or {instead}, or a larger "
        "memory_limit.",
    )  # fmt: skip


@dataclass(frozen=True)
class Look:
    """A quick look at how far some rows are apart, which most tables need no more than.

    Parameters
    ----------
    some : ndarray of shape (m, d)
        At most 32 rows, in their frame.
    squares : tuple of float
        Squared distances of pairs (a row and itself among them): above a twentieth, a
        quarter and three quarters of all. They are right to about 1e-15.
    """

    some: np.ndarray
    squares: tuple[float, float, float]

    @classmethod
    def at(cls, inside: np.ndarray) -> Look:
        """Look at rows evenly drawn from a table."""
        some = inside[:: max(len(inside) // _SAMPLE, 1)][:_SAMPLE]
        gram = some @ some.T
        norms = gram.diagonal()
        squares = (norms + norms[:, None] - 2 * gram).ravel()
        places = [squares.size // 20, squares.size // 4, 3 * squares.size // 4]
        few, quarter, most = np.partition(squares, places)[places].tolist()
        return cls(some, (few, quarter, most))

    def tells(self, bandwidth: float) -> bool:
        """Whether surely the middle half of all distances is in a kernel's range."""
        _, low, high = self.squares
        # squares of numbers up to two are right to a thousandth of the lowest here
        least = max((_TELLING[0] * bandwidth) ** 2, 1e-9)
        return least < low and high < (_TELLING[1] * bandwidth) ** 2


def warn_of_scale(callee: str, look: Look, kernel: Kernel) -> None:
    """Warn if a kernel of that bandwidth finds all rows alike, or none like another."""
    if isinstance(kernel, Radial) and look.tells(kernel.bandwidth):
        return
    if not np.ptp(look.some, axis=0).any():
        return
    norm = "euclidean" if isinstance(kernel, Radial) else "cityblock"
    distances = pdist(look.some, norm)
    if not distances.any():
        return
    apart = float(np.median(distances[distances > 0])) / kernel.bandwidth
    if _TELLING[0] <= apart <= _TELLING[1]:
        return
    finding = "all rows alike" if apart < 1 else "no row like another"
    warnings.warn(
        f"{callee}: rows are {apart:.1g} bandwidths apart, so the kernel finds "
        f"{finding}. Scale the columns (StandardScaler), or set "
        'bandwidth_rule="median".',
        UserWarning,
        stacklevel=4,
    )


def warn_of_rounding(callee: str, problem: Problem, kernel: Kernel, look: Look) -> None:
    """Warn if float32 was asked for and distances between rows are lost in it."""
    if problem.dtype == torch.float64:
        return
    squares, inside = isinstance(kernel, Radial), problem.inside()
    # Far from the limit the few rows of a look will do; by squares more is lost.
    largest = float(np.einsum("ij,ij->i", inside, inside).max())
    noise = rounding_noise(problem.dtype, inside.shape[1])
    if _MARGIN * noise * largest <= _ROUNDING * look.squares[0]:
        return
    lost = rounding_share(inside, problem.dtype, squares=squares)
    if lost <= _ROUNDING:
        return
    warnings.warn(
        f"{callee}: rows are so far apart that {lost:.1g} of a small distance between "
        'them may be rounding in float32. Set dtype="float64", or scale the columns '
        "(StandardScaler; RobustScaler if there are outliers).",
        UserWarning,
        stacklevel=4,
    )
