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

from normalign._errors import complaint
from normalign.estimators.problem import Problem
from normalign.estimators.recipe import Recipe
from normalign.estimators.scale.placement import (
    rounding_noise,
    rounding_share,
)
from normalign.kernels import Gaussian, Kernel, Laplace, estimate_memory, initial_metric
from normalign.kernels._functions import Radial
from normalign.kernels._memory import SMALL_BYTES, available_bytes, is_small_fit

__all__ = ["callers_level", "require_memory", "warn_of_rounding", "warn_of_scale"]

# Share of small distances that rounding may be without a word, and how far below that
# a quick look must find it.
_ROUNDING, _MARGIN = 1e-3, 4
# What a kernel may have in its exponent for rows at a middling distance.
_TELLING = (1e-4, 20.0)
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
    kernel: str,
    solver: str,
    limit: int | None,
    most: int | None,
    diagonal: bool = False,
    n_jobs: int = 1,
) -> None:
    """Complain if a fit will not fit, before anything is allocated.

    Parameters
    ----------
    kernel : str
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
    if limit is None and is_small_fit(rows, d, problem.k):
        return
    name = "cholesky" if solver == "cholesky" else "cg"
    needed = estimate_memory(
        rows, d, problem.k, solver=name, dtype=problem.dtype, device=problem.device,
        rank=1, diagonal=diagonal, kernel=kernel,
    )  # fmt: skip
    if limit is None and needed <= SMALL_BYTES:
        return
    allowed = limit or available_bytes(problem.device)
    if n_jobs * needed <= allowed:
        return
    remedies = ["max_leaf_size to fit the rows in parts"]
    if d > rows and not diagonal:
        remedies = ["diagonal=True to keep one number a column of the metric"]
    if name == "cholesky" and d <= rows:
        remedies.append('solver="cg" to keep no kernel matrix')
    elif problem.dtype == torch.float64:
        remedies.append('dtype="float32" to need less')
    else:
        remedies.append("fewer columns" if d > rows else "fewer rows")
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


def warn_of_scale(callee: str, problem: Problem, recipe: Recipe) -> None:
    """Warn if a kernel finds all rows alike, or none like another, to begin with.

    In the initial metric: the covariance makes columns of large numbers count more.
    """
    look, kernel = problem.look, recipe.kernel
    if recipe.bandwidth_rule != "fixed":
        return
    least, most = _telling(kernel)
    if isinstance(kernel, Radial) and look.lies_within(least, most):
        return
    some = torch.from_numpy(look.some)
    start = initial_metric(
        torch.from_numpy(problem.inside),
        identity_weight=recipe.identity_weight,
        weights=None if problem.weights is None else torch.from_numpy(problem.weights),
        diagonal=recipe.diagonal,
    )
    sides = kernel.sides(some, start)
    apart = kernel.distances_(sides, sides, some.new_empty(len(some), len(some)))
    apart = apart[apart > 0] * kernel.bandwidth
    if not len(apart) or least <= (middling := float(apart.median())) <= most:
        return
    finding = "all rows alike" if middling < least else "no row like another"
    warnings.warn(
        f"{callee}: rows are {middling / kernel.bandwidth:.1g} bandwidths apart, so "
        f"the kernel finds {finding}. Scale the columns (make_tabular_pipeline, or "
        "StandardScaler), or, if they are of one kind, set "
        'bandwidth_rule="median" and bandwidth=1.',
        UserWarning,
        stacklevel=callers_level(),
    )


def _telling(kernel: Kernel) -> tuple[float, float]:
    """Distances between which a kernel tells rows apart, by what is in its exponent."""
    if isinstance(kernel, Gaussian):
        low, high = (math.sqrt(2 * end) for end in _TELLING)
    else:
        power = kernel.exponent if isinstance(kernel, Laplace) else 1.0
        # of the flattest kernels everything is within
        low, high = (math.exp(min(math.log(end) / power, 99.0)) for end in _TELLING)
    return low * kernel.bandwidth, high * kernel.bandwidth


def warn_of_rounding(callee: str, problem: Problem) -> None:
    """Warn if single precision, which was asked for, takes distances between rows."""
    if problem.dtype == torch.float64:
        return
    inside = problem.inside
    # Far from the limit the few rows of a look will do.
    largest = float(np.einsum("ij,ij->i", inside, inside).max())
    noise = rounding_noise(problem.dtype, inside.shape[1])
    if (_MARGIN * noise) ** 2 * largest <= _ROUNDING**2 * problem.look.squares[0]:
        return
    lost = rounding_share(inside, problem.dtype)
    if lost <= _ROUNDING:
        return
    warnings.warn(
        f"{callee}: rows are so far apart that {lost:.1g} of a small distance between "
        'them may be rounding in float32. Set dtype="float64", or scale the columns '
        "(StandardScaler; RobustScaler if there are outliers).",
        UserWarning,
        stacklevel=callers_level(),
    )


def callers_level() -> int:
    """How far up the line is that called an estimator, a pipeline or a search."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame, level = frame.f_back, level + 1
    return level
