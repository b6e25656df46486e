"""Algorithm 1 on a whole table: its last machine, or the best one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from normalign.estimators.problem import LeftOut, Validation, same_rows
from normalign.estimators.recipe import Recipe, Report
from normalign.estimators.workers import Clock, Pace
from normalign.kernels import Iteration

__all__ = ["CALIBRATION_ROWS", "WholeFit", "fit_whole", "kept", "left_out"]

# Rows that temperatures are fitted on: what they cost is then below the solve's cost.
CALIBRATION_ROWS = 500
# The same where each takes conjugate gradients of its own.
_BY_PRODUCTS = 64


@dataclass(frozen=True)
class WholeFit:
    """A machine and how it came about, in numpy.

    Parameters
    ----------
    coef : array of shape (n, k)
        In the machine's precision.
    metric : array of shape (d, d) or (d,)
    report : Report
    left_out : LeftOut or None
    """

    coef: np.ndarray
    metric: np.ndarray
    report: Report
    left_out: LeftOut | None


def fit_whole(
    recipe: Recipe,
    x: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    seed: int = 0,
    validation: Validation | None = None,
    asked: np.ndarray | None = None,
    clock: Clock | None = None,
) -> WholeFit:
    """Run the recursion and keep its last iteration, or the best one.

    Iteration 0 is always made. A later one is begun only if the slowest so far would
    still end in time.

    Parameters
    ----------
    validation : Validation, optional
        By which the best iteration is picked; the first of equals.
    asked : array of int, optional
        Rows to be left out, one by one, of the machine that is kept.
    clock : Clock, optional
    """
    clock = clock or Clock()
    pace, scores = Pace(clock.budget()), []
    best: tuple[float, WholeFit] | None = None
    last = cut_short = False
    for iteration in recipe.iterations(x, y, weights, seed):
        if validation is not None:
            scores.append(validation(iteration.machine))
        last = iteration.index == recipe.n_iter
        cut_short = not pace.another() and not last
        # Leaving rows out costs as much as a solve: asked only of what may be kept.
        if last or cut_short or scores:
            worth = scores[-1] if scores else 0.0
            if best is None or worth > best[0]:
                best = worth, kept(iteration, left_out(iteration, asked, y, weights))
        if cut_short:
            break
    if best is None or not (last or cut_short):
        raise RuntimeError("the recursion ended before its last iteration")
    report = replace(best[1].report, scores=tuple(scores), cut_short=cut_short)
    return replace(best[1], report=report)


def kept(iteration: Iteration, without: LeftOut | None = None) -> WholeFit:
    """An iteration as it is kept."""
    machine = iteration.machine
    return WholeFit(
        coef=machine.coef.cpu().numpy(),
        metric=machine.metric.cpu().numpy(),
        report=Report.of(iteration),
        left_out=without,
    )


def left_out(
    iteration: Iteration,
    asked: np.ndarray | None,
    y: np.ndarray,
    weights: np.ndarray | None,
) -> LeftOut | None:
    """What machines fitted without some rows answer there, in float64.

    Fewer rows than asked for where each costs as much as a solve.
    """
    if asked is None:
        return None
    if iteration.solved.solver == "cg":
        asked = asked[same_rows(len(asked), _BY_PRODUCTS)]
    rows = torch.as_tensor(asked, device=iteration.machine.device)
    outputs = iteration.left_out(rows).cpu().double().numpy()
    return LeftOut(outputs, y[asked], None if weights is None else weights[asked])
