r"""Metrics: the feature matrix of a machine, full or diagonal, and where it starts.

A full metric is a symmetric positive semidefinite ``(d, d)`` tensor; a diagonal one
is the ``(d,)`` tensor of its diagonal. Every metric has trace ``d``, so bandwidths
mean the same at every iteration.
"""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor

from normalign._errors import describe, require, require_kind

__all__ = [
    "initial_metric",
    "learned",
    "metric_diagonal",
    "metric_root",
    "normalised",
    "through_metric",
]


def through_metric(x: Tensor, metric: Tensor | None) -> Tensor:
    """Rows of a table times the metric."""
    if metric is None:
        return x
    return x * metric if metric.ndim == 1 else x @ metric


def metric_diagonal(metric: Tensor) -> Tensor:
    """The diagonal of a metric, whichever way it is stored."""
    return metric if metric.ndim == 1 else metric.diagonal()


def metric_root(metric: Tensor, *, least: float = 0.0) -> Tensor:
    """The symmetric root, by a float64 eigendecomposition; negative noise is zero.

    Of a full metric, what is below the share ``least`` of its largest eigenvalue is
    taken for zero, too: the root of rounding has half as many digits, and is no longer
    small.

    Examples
    --------
    >>> metric_root(torch.tensor([4.0, 9.0]))
    tensor([2., 3.])
    """
    _require_metric("metric_root", metric)
    if metric.ndim == 1:
        return metric.clamp(min=0).sqrt()
    spectrum, axes = torch.linalg.eigh(metric.double())
    spectrum = spectrum.where(spectrum > least * spectrum[-1], 0).clamp(min=0)
    root = (axes * spectrum.sqrt()) @ axes.T
    return root.to(metric.dtype)


def normalised(metric: Tensor) -> Tensor:
    """Return the metric scaled to trace ``d``; one without a trace stays as it is.

    Examples
    --------
    >>> normalised(torch.tensor([1.0, 3.0]))
    tensor([0.5000, 1.5000])
    """
    _require_metric("normalised", metric)
    trace = metric_diagonal(metric).sum()
    usable = (trace > 0) & torch.isfinite(trace)
    return metric * torch.where(
        usable, metric.shape[-1] / trace, torch.ones_like(trace)
    )


def learned(update: Tensor) -> Tensor | None:
    """An update scaled to trace ``d``; None if it has none in its precision.

    A trace that is nearly too small to be a number has lost digits, and gradients whose
    squares are not numbers have none.
    """
    limits, trace = torch.finfo(update.dtype), float(metric_diagonal(update).sum())
    usable = limits.tiny / limits.eps < trace < math.inf
    return update * (len(update) / trace) if usable else None


def initial_metric(
    x: Tensor,
    *,
    identity_weight: float,
    weights: Tensor | None = None,
    diagonal: bool = False,
) -> Tensor:
    r"""Return the metric with which a Recursive Feature Alignment Machine starts.

    .. math:: M_{\mathrm{init}} = (1 - a) \, \mathrm{Cov}(X) + a I

    (the section on RFAMs; :math:`a` is the paper's alpha), then scaled to trace
    ``d``. With :math:`a = 1` it is the identity, and the machine an RFM. By
    Proposition 3 (the feature matrix stays a combination of outer products of the
    data) a machine that starts in the span of the data stays there.

    Where the covariance is zero (one row, constant columns) the identity is returned.

    Parameters
    ----------
    x : Tensor of shape (n, d)
    identity_weight : float in [0, 1]
    weights : Tensor of shape (n,), optional
        Rows count that many times.
    diagonal : bool, default=False
        Keep the variances only.

    Returns
    -------
    Tensor of shape (d, d), or (d,) if ``diagonal``

    Examples
    --------
    >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> initial_metric(x, identity_weight=0.0)
    tensor([[2., 0.],
            [0., 0.]])
    """
    callee = "initial_metric"
    _require_floats(callee, "x", x)
    require(x.ndim == 2, callee, "x", "of shape (n, d)", x)
    number, told = isinstance(identity_weight, Real), describe(identity_weight)
    require_kind(number, callee, "identity_weight", "a number", told)
    require(0 <= identity_weight <= 1, callee, "identity_weight", "in [0, 1]", told)
    if weights is not None:
        _require_floats(callee, "weights", weights)
        fits = weights.shape == (len(x),) and weights.dtype == x.dtype
        rule = f"of shape ({len(x)},) in {str(x.dtype)[6:]}, like x"
        require(fits, callee, "weights", rule, weights)
    width = x.shape[1]
    if diagonal:
        identity = x.new_ones(width)
    else:
        identity = torch.eye(width, dtype=x.dtype, device=x.device)
    if identity_weight == 1:
        return identity
    mass = x.new_ones(len(x)) if weights is None else weights
    centred = x - (mass @ x) / mass.sum()
    # The n - 1 of textbooks, n being the sum of weights if weights are repetitions;
    # below two that would be no divisor for weights that are shares.
    total = mass.sum()
    share = mass / torch.maximum(total - 1, total / 2)
    if diagonal:
        covariance = share @ centred.square()
    else:
        covariance = (centred * share[:, None]).T @ centred
    blend = (1 - identity_weight) * covariance + identity_weight * identity
    trace = metric_diagonal(covariance).sum()
    degenerate = ~((trace > 0) & torch.isfinite(trace))
    return torch.where(degenerate, identity, normalised(blend))


def _require_floats(callee: str, argument: str, value: object) -> None:
    kind = isinstance(value, Tensor) and value.is_floating_point()
    require_kind(kind, callee, argument, "a floating tensor", describe(value))


def _require_metric(callee: str, metric: Tensor) -> None:
    _require_floats(callee, "metric", metric)
    shape = metric.shape
    fits = len(shape) == 1 or (len(shape) == 2 and shape[0] == shape[1])
    require(fits, callee, "metric", "of shape (d, d), or (d,)", metric)
