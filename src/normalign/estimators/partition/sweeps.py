"""Algorithm 1 on the leaves of a tree: one sweep over all leaves per iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normalign.estimators.partition.blended import Partitioned
from normalign.estimators.partition.parts import (
    CutJob,
    PartJob,
    SolvedPart,
    cut_axes,
    solve_part,
)
from normalign.estimators.partition.tree import Grown
from normalign.estimators.problem import LeftOut, same_rows
from normalign.estimators.recipe import Recipe, Report
from normalign.estimators.workers import jobs_at_once, parallel
from normalign.kernels import Kernel, initial_metric, median_distance
from normalign.kernels._metric import scaled_update

__all__ = ["CutAxes", "Rows", "Sweeps", "Units"]

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]

# How a cut is found: rows of its sample, updates of their metric.
_CUT_ROWS = 2000
_CUT_ITER = 1


class CutAxes:
    """Axes of the nodes of each level, by machines on samples of their rows."""

    def __init__(
        self, rows: Rows, recipe: Recipe, n_jobs: int | None, seed: int
    ) -> None:
        self.rows, self.n_jobs = rows, n_jobs
        # Always the same number: the tree must not depend on how long the recursion
        # will go on.
        self.recipe = replace(recipe, n_iter=_CUT_ITER)
        self.random = np.random.default_rng([seed, 0])

    def __call__(self, nodes: Sequence[Tensor]) -> list[Tensor]:
        """Candidate axes of each node, best first."""
        jobs = []
        for node in nodes:
            chosen = self.random.permutation(len(node))[:_CUT_ROWS]
            inside = node.numpy()[np.sort(chosen)]
            jobs.append(
                CutJob(
                    self.recipe,
                    *(part[inside] for part in self.rows),
                    seed=int(self.random.integers(2**31)),
                    n_jobs=jobs_at_once(self.n_jobs),
                )
            )
        return [
            torch.from_numpy(axes) for axes in parallel(cut_axes, jobs, self.n_jobs)
        ]


@dataclass(frozen=True)
class Units:
    """What was asked of each merged row: its answers, and how often each was given.

    Parameters
    ----------
    rows : array of int of shape (n,)
        The merged row that each given row became a part of; sorted after ``of``.
    targets : array of shape (n, k)
    weights : array of shape (n,)
    """

    rows: np.ndarray
    targets: np.ndarray
    weights: np.ndarray

    def of(self, asked: np.ndarray) -> Units:
        """Distinct answers of some merged rows, which are counted from 0 then."""
        among = np.isin(self.rows, asked)
        places = np.searchsorted(asked, self.rows[among])
        keys = np.column_stack([places, self.targets[among]])
        found, inverse = np.unique(keys, axis=0, return_inverse=True)
        weights = np.bincount(inverse.ravel(), weights=self.weights[among])
        return Units(found[:, 0].astype(int), found[:, 1:], weights)


class Sweeps:
    """The iterations of Algorithm 1 on all leaves, one after the other."""

    def __init__(
        self,
        grown: Grown,
        rows: Rows,
        recipe: Recipe,
        n_jobs: int | None,
        seed: int,
        n_left_out: int,
        units: Units,
    ) -> None:
        self.grown, self.rows, self.recipe, self.n_jobs = grown, rows, recipe, n_jobs
        self.random = np.random.default_rng([seed, 1])
        # Merged rows have an order of their own, so these are the same in every fit.
        self.asked = same_rows(len(rows[0]), n_left_out)
        self.units = units.of(self.asked) if n_left_out else None
        self.leaves = [leaf.numpy() for leaf in grown.leaves]
        self.precise = [False] * len(self.leaves)
        self.unweighted = bool((rows[2] == 1).all())
        self.gates = [np.zeros(len(leaf)) for leaf in self.leaves]
        for leaf, reached, gate, _ in grown.tree.visits(torch.from_numpy(rows[0])):
            inside = np.isin(reached.numpy(), self.leaves[leaf])
            place = np.searchsorted(self.leaves[leaf], reached.numpy()[inside])
            self.gates[leaf][place] = gate.numpy()[inside]
        x, weights = recipe.tensor(rows[0]), recipe.tensor(rows[2])
        self.metric = initial_metric(
            x,
            identity_weight=recipe.identity_weight,
            weights=None if self.unweighted else weights,
            diagonal=recipe.diagonal,
        )

    def advance(self, index: int, *, last: bool, bar: Any) -> Partitioned:
        """Solve all leaves in the present metric, and learn the next one."""
        recipe = replace(self.recipe, kernel=self._kernel())
        n, metric = len(self.rows[0]), self.metric.cpu().numpy()
        sampled = np.zeros(n, dtype=bool)
        if not last:
            sampled[self.random.permutation(n)[: recipe.agop_samples]] = True
        jobs = [
            self._job(
                replace(recipe, dtype=torch.float64) if precise else recipe,
                metric,
                leaf,
                gate,
                sampled,
            )
            for leaf, gate, precise in zip(
                self.leaves, self.gates, self.precise, strict=True
            )
        ]
        parts = []
        for part in parallel(solve_part, jobs, self.n_jobs):
            parts.append(part)
            bar.update()
        self.precise = [part.coef.dtype == np.float64 for part in parts]
        outer = scaled_update(
            torch.from_numpy(np.sum([part.outer for part in parts], axis=0))
        )
        if outer is not None:
            self.metric = outer.to(self.metric)
        return self._collected(index, recipe, metric, parts)

    def _kernel(self) -> Kernel:
        recipe = self.recipe
        if recipe.bandwidth_rule == "fixed":
            return recipe.kernel
        factor = median_distance(
            recipe.tensor(self.rows[0]),
            recipe.kernel,
            metric=self.metric,
            weights=None if self.unweighted else recipe.tensor(self.rows[2]),
            generator=torch.Generator().manual_seed(int(self.random.integers(2**31))),
        )
        return recipe.kernel.rescaled(factor)

    def _job(
        self,
        recipe: Recipe,
        metric: np.ndarray,
        leaf: np.ndarray,
        gate: np.ndarray,
        sampled: np.ndarray,
    ) -> PartJob:
        x, y, weights = (part[leaf] for part in self.rows)
        at = np.flatnonzero(sampled[leaf] & (gate > 0))
        return PartJob(
            recipe,
            x,
            y,
            None if self.unweighted else weights,
            metric,
            gradients_at=at,
            shares=(weights * gate)[at],
            left_out=np.flatnonzero(np.isin(leaf, self.asked)),
            n_jobs=jobs_at_once(self.n_jobs),
        )

    def _collected(
        self, index: int, recipe: Recipe, metric: np.ndarray, parts: list[SolvedPart]
    ) -> Partitioned:
        tree = self.grown.tree
        coef = np.concatenate([part.coef for part in parts])
        return Partitioned(
            x_fit=self.rows[0].astype(coef.dtype),
            leaves={
                "rows": np.concatenate(self.leaves),
                "offsets": np.cumsum([0, *(len(leaf) for leaf in self.leaves)]),
                "directions": tree.directions.numpy(),
                "bands": tree.bands.numpy(),
                "children": tree.children.numpy(),
            },
            coef=coef,
            metric=metric,
            kernel=recipe.kernel,
            report=Report.together([part.report for part in parts], n_iter=index),
            left_out=None if self.units is None else self._left_out(parts, self.units),
        )

    def _left_out(self, parts: list[SolvedPart], units: Units) -> LeftOut:
        """Leave-one-out outputs of the leaves, blended by the gates at their rows.

        A unit of weight goes with its own target: a row that was given twice with two
        answers must not learn one of them from the other.
        """
        outputs = np.zeros_like(units.targets)
        total = self.rows[2][self.asked][units.rows]
        # parts of less than one unit are left out whole, as lighter rows are
        share = np.minimum(units.weights, 1) / np.minimum(total, 1)
        for leaf, gate, part in zip(self.leaves, self.gates, parts, strict=True):
            known = np.flatnonzero(np.isin(leaf, self.asked))
            place = np.full(len(self.asked), -1)
            place[np.searchsorted(self.asked, leaf[known])] = np.arange(len(known))
            here = place[units.rows] >= 0
            at, mine = place[units.rows[here]], share[here]
            targets = units.targets[here]
            room = 1 - mine + mine * part.room[at]
            found = targets - (targets - part.fitted[at]) / room[:, None]
            outputs[here] += gate[known][at, None] * found
        return LeftOut(outputs, units.targets, units.weights)
