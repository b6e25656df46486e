"""What is said before a fit begins: it will not fit into memory, or not learn."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from scipy.spatial.distance import pdist

from normalign._checks import require
from normalign.estimators.placement import rounding_share
from normalign.estimators.problem import Problem
from normalign.kernels import Kernel, estimate_memory
from normalign.kernels.functions import Radial
from normalign.kernels.memory import available_bytes

__all__ = ["require_memory", "warn_of_rounding", "warn_of_scale"]

# Distances, in bandwidths, between which a kernel tells rows apart.
_TELLING = (1e-4, 100.0)
_SAMPLE = 64
# Share of small distances that rounding may be without a word.
_ROUNDING = 1e-3


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


def warn_of_scale(callee: str, problem: Problem, kernel: Kernel) -> None:
    """Warn if a kernel of that bandwidth finds all rows alike, or none like another."""
    some = problem.table[:: max(problem.n // _SAMPLE, 1)][:_SAMPLE]
    if not np.ptp(some, axis=0).any():
        return
    inside = problem.frame.enter(some, torch.float64)
    if isinstance(kernel, Radial) and _surely_tells(inside, kernel.bandwidth):
        return
    norm = "euclidean" if isinstance(kernel, Radial) else "cityblock"
    distances = pdist(inside, norm)
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


def _surely_tells(inside: np.ndarray, bandwidth: float) -> bool:
    """A quick look: the middle half of all squared distances is in the range."""
    gram = inside @ inside.T
    squares = gram.diagonal() + gram.diagonal()[:, None] - 2 * gram
    quarter = squares.size // 4
    middle = np.partition(squares.ravel(), (quarter, 3 * quarter))
    low, high = middle[quarter], middle[3 * quarter]
    # squares of numbers up to two are right to a thousandth of the lowest allowed here
    least = max((_TELLING[0] * bandwidth) ** 2, 1e-9)
    return bool(least < low and high < (_TELLING[1] * bandwidth) ** 2)


def warn_of_rounding(callee: str, problem: Problem, kernel: Kernel) -> None:
    """Warn if float32 was asked for and distances between rows are lost in it."""
    if problem.dtype == torch.float64:
        return
    squares = isinstance(kernel, Radial)
    lost = rounding_share(problem.inside(), problem.dtype, squares=squares)
    if lost <= _ROUNDING:
        return
    warnings.warn(
        f"{callee}: rows are so far apart that {lost:.1g} of a small distance between "
        'them may be rounding in float32. Set dtype="float64", or scale the columns '
        "(StandardScaler; RobustScaler if there are outliers).",
        UserWarning,
        stacklevel=4,
    )
