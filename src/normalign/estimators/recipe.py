"""The parameters of Algorithm 1 as the recursion takes them, and how a fit went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normalign.estimators.workers import memory_share
from normalign.kernels import Iteration, Kernel, Solver, initial_metric
from normalign.kernels._recursion import iterate

__all__ = ["Recipe", "Report"]

_ARRAYS = {torch.float32: np.float32, torch.float64: np.float64}


@dataclass(frozen=True)
class Recipe:
    """What machines are made by, whole ones and those of parts.

    Parameters
    ----------
    kernel, ridge, n_iter, bandwidth_rule, solver, agop_samples
        As :func:`normalign.kernels.recursions` takes them.
    diagonal : bool
        Whether the metric is.
    identity_weight : float
        Of the initial metric; 1 is an RFM.
    dtype : torch.dtype
    device : str
    centred : bool
        Whether rows come with medians near zero, as a whole table in its frame does.
    """

    kernel: Kernel
    ridge: float = 1e-3
    n_iter: int = 5
    identity_weight: float = 1.0
    bandwidth_rule: str = "fixed"
    diagonal: bool = False
    solver: Solver = field(default_factory=Solver)
    agop_samples: int = 20000
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    centred: bool = False

    def sharing(self, n_jobs: int) -> Recipe:
        """Return the recipe with its memory divided among workers at one time."""
        share = memory_share(self.solver.memory_limit, n_jobs, self.device)
        return replace(self, solver=replace(self.solver, memory_limit=share))

    def tensor(self, array: np.ndarray) -> Tensor:
        """Copy an array, which may be a read-only map of a file, to the device."""
        copied = np.array(array, dtype=_ARRAYS[self.dtype])
        return torch.from_numpy(copied).to(self.device)

    def iterations(
        self,
        x: Any,
        y: Any,
        weights: Any,
        seed: int,
        *,
        metric: Any = None,
    ) -> Iterator[Iteration]:
        """Algorithm 1 on these rows, in float64 from where float32 does not do.

        Parameters
        ----------
        x, y, weights : arrays or tensors
            Finer ones than `dtype` are rounded to it first. Where the recursion has to
            go on in float64 it does so with the rows as they were given: a machine with
            rounded centers would find no row where it learned one.
        metric : array or tensor, optional
            Where to start; by default as `identity_weight` says.
        """
        generator = torch.Generator().manual_seed(seed)
        coarse = x.dtype.itemsize > self.dtype.itemsize
        first = 0
        for iteration in self._run(x, y, weights, metric, 0, generator):
            if not coarse or iteration.machine.coef.dtype == self.dtype:
                yield iteration
                continue
            metric, first = iteration.machine.metric, iteration.index
            break
        else:
            return
        del iteration  # and its factor
        finer = replace(self, dtype=torch.float64)
        yield from finer._run(x, y, weights, metric, first, generator)

    def _run(
        self,
        x: Any,
        y: Any,
        weights: Any,
        metric: Any,
        first: int,
        generator: Any,
    ) -> Iterator[Iteration]:
        rows, mass = self._placed(x), None if weights is None else self._placed(weights)
        if metric is None:
            metric = initial_metric(
                rows,
                identity_weight=self.identity_weight,
                weights=mass,
                diagonal=self.diagonal,
            )
        steps = iterate(
            rows,
            self._placed(y),
            kernel=self.kernel,
            ridge=self.ridge,
            metric=self._placed(metric),
            n_iter=self.n_iter - first,
            weights=mass,
            bandwidth_rule=self.bandwidth_rule,
            solver=self.solver,
            agop_samples=self.agop_samples,
            generator=generator,
            centred=self.centred,
        )
        if first == 0:
            yield from steps
            return
        for step in steps:
            yield replace(step, index=step.index + first)

    def _placed(self, values: Any) -> Tensor:
        if isinstance(values, Tensor):
            return values.to(dtype=self.dtype, device=self.device)
        return self.tensor(values)


@dataclass(frozen=True)
class Report:
    """How a fit went, in plain types.

    Parameters
    ----------
    n_iter : int
        Updates behind the machine.
    bandwidth : float
        Of its kernel, in the frame of the table.
    solver, dtype : str
        Who solved its system, and in which precision.
    jitter : float
        What had to be added to the diagonal.
    converged : bool
    caution : str
        What a user should know of, or nothing.
    scores : tuple of float
        Of all iterations made, on rows kept apart.
    cut_short : bool
        Whether time was up before the last iteration.
    """

    n_iter: int
    bandwidth: float
    solver: str
    dtype: str
    jitter: float
    converged: bool
    caution: str
    scores: tuple[float, ...] = ()
    cut_short: bool = False

    @classmethod
    def of(cls, iteration: Iteration) -> Report:
        """The report of one solve."""
        solved = iteration.solved
        return cls(
            n_iter=int(iteration.index),
            bandwidth=float(iteration.machine.kernel.bandwidth),
            solver=solved.solver,
            dtype=str(solved.dtype).removeprefix("torch."),
            jitter=float(solved.jitter),
            converged=bool(solved.converged),
            caution=solved.caution,
        )

    @classmethod
    def together(cls, parts: Sequence[Report], *, n_iter: int) -> Report:
        """The report of many solves in one metric: the worst of each."""
        return cls(
            n_iter=n_iter,
            bandwidth=parts[0].bandwidth,
            solver="+".join(sorted({part.solver for part in parts})),
            dtype=max(part.dtype for part in parts),
            jitter=max(part.jitter for part in parts),
            converged=all(part.converged for part in parts),
            caution=max(part.caution for part in parts),
        )
