"""What is said before a fit begins: it will not fit into memory, or not learn."""

from __future__ import annotations

import inspect
import math
import os
import warnings
from pathlib import Path

import joblib
import numpy as np
import sklearn
import torch
from scipy.spatial.distance import pdist

from normalign._checks import complaint
from normalign.estimators.problem import Problem
from normalign.estimators.scale.look import TELLING
from normalign.estimators.scale.placement import (
    neighbours_rounding,
    rounding_noise,
    rounding_share,
)
from normalign.kernels import Kernel, estimate_memory
from normalign.kernels.functions import Radial
from normalign.kernels.memory import UNASKED, available_bytes

__all__ = ["callers_level", "require_memory", "warn_of_rounding", "warn_of_scale"]

# Share of small distances that rounding may be without a word, and how far below that
# a quick look must find it.
_ROUNDING, _MARGIN = 1e-3, 4
# What the kernel of neighbours may be off by without a word.
_BLUR = 1e-4
# Folders whose lines are not the caller's: of all estimators, and of those who call
# them for others (pipelines, searches, workers).
_BETWEEN = tuple(
    str(Path(file).parent) + os.sep
    for file in (Path(__file__).parent, sklearn.__file__, joblib.__file__)
)


def require_memory(
    callee: str,
    problem: Problem,
    *,
    solver: str,
    limit: int | None,
    most: int | None,
    diagonal: bool = False,
    n_jobs: int = 1,
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
    diagonal : bool, default=False
        Whether the metric is.
    n_jobs : int, default=1
        How many such fits share the limit at one time.

    Raises
    ------
    ValueError
        With three remedies, or four.
    """
    n, d = problem.table.shape
    rows = n if most is None else min(n, int(most))
    name = "cholesky" if solver == "cholesky" else "cg"
    needed = estimate_memory(
        rows, d, problem.k, solver=name, dtype=problem.dtype, device=problem.device,
        rank=1, diagonal=diagonal,
    )  # fmt: skip
    if limit is None and needed <= UNASKED:
        return
    allowed = limit or available_bytes(problem.device)
    if n_jobs * needed <= allowed:
        return
    remedies = ["max_leaf_size to fit the rows in parts"]
    if d > rows and not diagonal:
        remedies = ["diagonal=True to keep one number a column of the metric"]
    if name == "cholesky" and d <= rows:
        remedies.append('solver="cg" to keep no kernel matrix')
    else:
        remedies.append('dtype="float32" to halve it')
    remedies.append("a larger memory_limit")
    times = ""
    if n_jobs > 1:
        times, remedies = f", {n_jobs} times at once", ["fewer n_jobs", *remedies]
    raise ValueError(
        complaint(
            callee, "memory_limit",
            f"at least {n_jobs * needed / 1e6:.3g} MB to fit {rows} rows and {d} "
            f"columns by {name}{times}", f"{allowed / 1e6:.3g} MB",
            f"Set {', or '.join(remedies)}.",
        )
    )  # fmt: skip


def warn_of_scale(callee: str, problem: Problem, kernel: Kernel) -> None:
    """Warn if a kernel of that bandwidth finds all rows alike, or none like another."""
    look = problem.look
    if isinstance(kernel, Radial) and look.tells(kernel.bandwidth):
        return
    if not np.ptp(look.some, axis=0).any():
        return
    norm = "euclidean" if isinstance(kernel, Radial) else "cityblock"
    distances = pdist(look.some, norm)
    if not distances.any():
        return
    apart = float(np.median(distances[distances > 0])) / kernel.bandwidth
    if TELLING[0] <= apart <= TELLING[1]:
        return
    finding = "all rows alike" if apart < 1 else "no row like another"
    warnings.warn(
        f"{callee}: rows are {apart:.1g} bandwidths apart, so the kernel finds "
        f"{finding}. Scale the columns (StandardScaler), or set "
        'bandwidth_rule="median".',
        UserWarning,
        stacklevel=callers_level(),
    )


def warn_of_rounding(
    callee: str, problem: Problem, kernel: Kernel, *, fixed: bool = True
) -> None:
    """Warn if distances between rows are lost: in float32 asked for, or in any.

    Parameters
    ----------
    fixed : bool, default=True
        Whether the kernel's bandwidth is one, and no multiple of a median distance.
    """
    inside = problem.inside
    largest = float(np.einsum("ij,ij->i", inside, inside).max())
    if problem.dtype == torch.float64:
        if isinstance(kernel, Radial):
            _warn_of_lost_neighbours(callee, problem, kernel, largest, fixed)
        return
    squares = isinstance(kernel, Radial)
    # Far from the limit the few rows of a look will do; by squares more is lost.
    noise = rounding_noise(problem.dtype, inside.shape[1])
    if _MARGIN * noise * largest <= _ROUNDING * problem.look.squares[0]:
        return
    lost = rounding_share(inside, problem.dtype, squares=squares)
    if lost <= _ROUNDING:
        return
    warnings.warn(
        f"{callee}: rows are so far apart that {lost:.1g} of a small distance between "
        'them may be rounding in float32. Set dtype="float64", or scale the columns '
        "(StandardScaler; RobustScaler if there are outliers).",
        UserWarning,
        stacklevel=callers_level(),
    )


def _warn_of_lost_neighbours(
    callee: str, problem: Problem, kernel: Radial, largest: float, fixed: bool
) -> None:
    noise = rounding_noise(torch.float64, problem.inside.shape[1])
    bandwidth = kernel.bandwidth
    if not fixed:
        apart = pdist(problem.look.some)
        bandwidth *= float(np.median(apart[apart > 0])) if apart.any() else 1.0
    if math.sqrt(noise * largest) <= _BLUR * bandwidth:
        return  # no kernel is off by more
    off = neighbours_rounding(problem.inside, torch.float64, bandwidth)
    if off <= _BLUR:
        return
    warnings.warn(
        f"{callee}: rows are so far apart that the kernel of neighbours may be off by "
        f"{off:.1g}, even in float64. Scale the columns (StandardScaler; RobustScaler "
        "if there are outliers).",
        UserWarning,
        stacklevel=callers_level(),
    )


def callers_level() -> int:
    """How far up the line is that called an estimator, a pipeline or a search."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame, level = frame.f_back, level + 1
    return level
