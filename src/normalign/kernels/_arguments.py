"""What the functions of this folder ask of their arguments."""

from __future__ import annotations

import torch
from torch import Tensor

from normalign._errors import require, require_kind
from normalign.kernels._functions import Kernel

__all__ = ["require_expansion", "require_points", "require_table"]


def require_table(callee: str, argument: str, x: Tensor, d: int | None = None) -> None:
    """Complain unless an argument is a floating-point table of ``d`` columns."""
    require_kind(
        isinstance(x, Tensor) and x.dtype in (torch.float32, torch.float64),
        callee,
        argument,
        "a float32 or float64 tensor",
        x,
    )
    width = "d" if d is None else str(d)
    fits = x.ndim == 2 and (d is None or x.shape[1] == d)
    require(fits, callee, argument, f"of shape (n, {width})", x)
    require(
        not (x.requires_grad and torch.is_grad_enabled()),
        callee,
        argument,
        "without requires_grad, since tiles are overwritten",
        x,
        "Use .detach(), jacobian() in closed form, or estimators.as_torch.",
    )


def require_points(
    callee: str,
    x: Tensor,
    z: Tensor,
    kernel: Kernel,
    metric: Tensor | None,
    *,
    other: str = "z",
) -> None:
    """Complain unless two tables, a kernel and a metric fit together."""
    require_table(callee, "x", x)
    width = x.shape[1]
    require_table(callee, other, z, width)
    require_kind(
        isinstance(kernel, Kernel), callee, "kernel", "a Kernel, as Laplace()", kernel
    )
    tables = {other: z} if metric is None else {other: z, "metric": metric}
    for argument, value in tables.items():
        require_kind(isinstance(value, Tensor), callee, argument, "a tensor", value)
        require(
            (value.dtype, value.device) == (x.dtype, x.device),
            callee,
            argument,
            f"{str(x.dtype)[6:]} on {x.device}, like x",
            f"{str(value.dtype)[6:]} on {value.device}",
        )
    require(
        metric is None or metric.shape in {(width,), (width, width)},
        callee,
        "metric",
        f"of shape ({width}, {width}), or ({width},) for a diagonal one",
        metric,
    )


def require_expansion(
    callee: str,
    x: Tensor,
    centers: Tensor,
    coef: Tensor,
    kernel: Kernel,
    metric: Tensor | None,
) -> None:
    """Complain unless points and the parts of an expansion fit together."""
    require_points(callee, x, centers, kernel, metric, other="centers")
    require_table(callee, "coef", coef)
    require(
        len(coef) == len(centers) and coef.dtype == x.dtype,
        callee,
        "coef",
        f"of shape ({len(centers)}, k) in {str(x.dtype)[6:]}, one row per center",
        coef,
    )
