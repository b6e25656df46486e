"""Networks that are normal-aligned to points on a circle, built by hand (App. A)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from normalign.geometry import local_geometry
from normalign.theory import last_layer_norms, normal_aligned_network
from normalign_reproduction.context import Context
from normalign_reproduction.spec import Run
from normalign_reproduction.training import round_digits

__all__ = ["batches", "circle_points", "compute"]


def batches(runs: Sequence[Run], device: torch.device) -> list[list[Run]]:
    """Return all runs at once: they take milliseconds."""
    return [list(runs)] if runs else []


def compute(batch: Sequence[Run], context: Context) -> list[dict[str, Any]]:
    """Return points, level sets, norms and local geometry of each construction."""
    results = []
    for i, run in enumerate(batch):
        results.append(_construct(run))
        context.progress((i + 1) / len(batch), f"{run['n_points']} points")
    return results


def circle_points(n: int, *, seed: int) -> Tensor:
    """Return n points, uniform on the unit circle, in float64.

    A larger n keeps the points of a smaller one and adds to them.

    Examples
    --------
    >>> torch.equal(circle_points(10, seed=3)[:5], circle_points(5, seed=3))
    True
    """
    generator = torch.Generator().manual_seed(seed)
    turns = [torch.rand((), generator=generator, dtype=torch.float64) for _ in range(n)]
    angles = 2 * math.pi * torch.stack(turns)
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def _construct(run: Run) -> dict[str, Any]:
    """Return one construction: for output 1 its norms, for random targets its geometry.

    With one output every Jacobian has rank one; that the construction's have it for
    any targets is seen with several.
    """
    n, k = run["n_points"], run["n_outputs"]
    x = circle_points(n, seed=run.seed)
    ones = torch.ones(n, dtype=x.dtype)
    single = normal_aligned_network(x, ones)
    generator = torch.Generator().manual_seed(run.seed)
    targets = torch.randn(n, k, generator=generator, dtype=x.dtype)
    geometry = local_geometry(normal_aligned_network(x, targets), x)
    with torch.no_grad():
        error = (single(x).flatten() - ones).abs().max()
        offsets = -single.get_parameter("0.bias")
    return {
        "points": _numbers(x),
        "offsets": _numbers(offsets),
        "norms": _numbers(last_layer_norms(x, ones)),
        # to the last digit: how far from one they are is the question
        "normal_alignment": geometry.normal_alignment.tolist(),
        "effective_rank": geometry.effective_rank.tolist(),
        "output_error": float(error),
    }


def _numbers(values: Tensor) -> Any:
    """Return a tensor as lists of rounded numbers."""
    if values.ndim > 1:
        return [_numbers(row) for row in values]
    return [round_digits(value) for value in values.tolist()]
