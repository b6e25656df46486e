r"""Machines for large tables: Algorithm 1 with many small systems instead of one.

.. math:: f(x) = \sum_\ell g_\ell(x) f_\ell(x), \qquad \sum_\ell g_\ell = 1

A tree of smooth cuts (:mod:`normalign.estimators.partition.tree`) divides the rows; a
cut goes through the median along the top direction of the metric that a machine on a
sample of its rows learns. In every iteration each leaf solves its own system, and the
next metric is the mean of the gradient outer products over the rows of all leaves, each
row counted once:

.. math:: M \leftarrow \frac{1}{n} \sum_\ell \sum_i
          g_\ell(x_i) \, J_\ell(x_i)^\top J_\ell(x_i)

One metric for all leaves was more accurate than one for each: a leaf's few rows make
a noisy metric. With one leaf this is Algorithm 1.

The work grows like ``n * max_leaf_size^2`` and not like ``n^3``, the memory is that of
one leaf per worker. The leaves of an iteration are independent, so ``joblib`` spreads
them over processes, or over a cluster under ``joblib.parallel_config("dask")``.

Equal rows are merged first, with their weights added and their targets averaged. The
machines of merged and unmerged rows are the same function, and a row of weight two and
the row twice then give the same tree, too.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy import sparse
from tqdm import tqdm

from normalign.estimators.partition.blended import Partitioned
from normalign.estimators.partition.sweeps import (
    CutAxes,
    Rows,
    Sweeps,
    Units,
)
from normalign.estimators.partition.tree import grow, widest_overlap
from normalign.estimators.problem import Validation
from normalign.estimators.recipe import Recipe
from normalign.estimators.workers import Clock, Pace, jobs_at_once

__all__ = ["fit_partitioned", "merged", "partitioned_iterations"]


def merged(
    x: np.ndarray, y: np.ndarray, weights: np.ndarray | None
) -> tuple[Rows, Units]:
    """Distinct rows in an order of their own, mean targets, sums of weights.

    And what each of them was made of.

    Parameters
    ----------
    x : array of shape (n, d)
    y : array of shape (n, k)
    weights : array of shape (n,), optional

    Examples
    --------
    >>> rows, units = merged(np.array([[7.0], [7.0]]), np.array([[0.0], [1.0]]), None)
    >>> tuple(part.tolist() for part in rows)
    ([[7.0]], [[0.5]], [2.0])
    """
    x = np.ascontiguousarray(x + 0.0)  # a negative zero is a zero
    weights = np.ones(len(x)) if weights is None else weights.astype(np.float64)
    keys = x.view(np.dtype((np.void, x.dtype.itemsize * x.shape[1]))).ravel()
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    y = y.astype(np.float64)
    units = Units(inverse.ravel(), y, weights)
    if len(first) == len(x):
        return (x[first], y[first], weights[first]), units
    shape = len(first), len(x)
    members = sparse.csr_array((weights, (units.rows, np.arange(len(x)))), shape=shape)
    total = members @ np.ones(len(x))
    return (x[first], (members @ y) / total[:, None], total), units


def partitioned_iterations(
    x: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    recipe: Recipe,
    max_leaf_size: int,
    overlap: float = 0.2,
    n_left_out: int = 0,
    n_jobs: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Generator[Partitioned, None, None]:
    """Divide the rows and yield the partition of every iteration of Algorithm 1.

    With at most ``max_leaf_size`` distinct rows there is one leaf, and the machines
    are the direct ones. Results depend on the seed and not on ``n_jobs`` or the backend
    (up to rounding: other numbers of threads add in another order).

    Parameters
    ----------
    x : array of shape (n, d)
    y : array of shape (n, k)
    weights : array of shape (n,), optional
        Positive; repetitions.
    recipe : Recipe
    max_leaf_size : int
        Most rows of a leaf, counted after merging; more only if no cut can tell them
        apart.
    overlap : float in [0, 1)
        Least share of a node's rows on which both children are fitted and between
        which they are blended; see ``tree.widest_overlap``.
    n_left_out : int
        Most rows for which leave-one-out outputs are made.
    n_jobs : int, optional
        As in joblib, whose active backend is used.
    seed : int
    progress : bool
        Show a bar over the leaves on stderr.

    Yields
    ------
    Partitioned
    """
    rows, units = merged(x, y, weights)
    recipe = recipe.sharing(jobs_at_once(n_jobs))
    grown = grow(
        torch.from_numpy(rows[0]),
        max_leaf_size=max_leaf_size,
        overlap=widest_overlap(len(rows[0]), max_leaf_size, least=overlap),
        axes=CutAxes(rows, recipe, n_jobs, seed),
    )
    sweeps = Sweeps(grown, rows, recipe, n_jobs, seed, n_left_out, units)
    total = len(grown.leaves) * (recipe.n_iter + 1)
    with tqdm(total=total, desc="leaves", disable=not progress) as bar:
        for index in range(recipe.n_iter + 1):
            yield sweeps.advance(index, last=index == recipe.n_iter, bar=bar)


def fit_partitioned(
    x: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    recipe: Recipe,
    max_leaf_size: int,
    validation: Validation | None = None,
    clock: Clock | None = None,
    **options: Any,
) -> Partitioned:
    """Return the best, or the last, of :func:`partitioned_iterations`.

    Parameters
    ----------
    x, y, weights, recipe, max_leaf_size, **options
        As there.
    validation : Validation, optional
        By which the best iteration is picked; the first of equals.
    clock : Clock, optional
        An iteration is begun only if it would end in time; the first always is.

    Returns
    -------
    Partitioned
    """
    pace, scores = Pace((clock or Clock()).budget()), []
    best: tuple[float, Partitioned] | None = None
    cut_short = False
    steps = partitioned_iterations(
        x, y, weights, recipe=recipe, max_leaf_size=max_leaf_size, **options
    )
    for index, found in enumerate(steps):
        worth = float(index)
        if validation is not None:
            worth = validation(found.machine(device=recipe.device))
            scores.append(worth)
        if best is None or worth > best[0]:
            best = worth, found
        cut_short = not pace.another() and index < recipe.n_iter
        if cut_short:
            break
    steps.close()
    if best is None:
        raise RuntimeError("no iteration was made")
    report = replace(best[1].report, scores=tuple(scores), cut_short=cut_short)
    return replace(best[1], report=report)
