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

from normalign._errors import describe

__all__ = [
    "initial_metric",
    "metric_diagonal",
    "metric_root",
    "normalised",
    "scaled_update",
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


def scaled_update(update: Tensor) -> Tensor | None:
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
    _require_floats("initial_metric", "x", x)
    if x.ndim != 2:
        raise ValueError(
            f"initial_metric: x must be of shape (n, d), got {describe(x)}."
        )
    if not isinstance(identity_weight, Real):
        raise TypeError(
            "initial_metric: identity_weight must be a number, "
            f"got {describe(identity_weight)}."
        )
    if not 0 <= identity_weight <= 1:
        raise ValueError(
            "initial_metric: identity_weight must be in [0, 1], "
            f"got {describe(identity_weight)}."
        )
    if weights is not None:
        _require_floats("initial_metric", "weights", weights)
        if weights.shape != (len(x),) or weights.dtype != x.dtype:
            raise ValueError(
                f"initial_metric: weights must be of shape ({len(x)},) in "
                f"{str(x.dtype)[6:]}, like x, got {describe(weights)}."
            )
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
    if not (isinstance(value, Tensor) and value.is_floating_point()):
        raise TypeError(
            f"{callee}: {argument} must be a floating tensor, got {describe(value)}."
        )


def _require_metric(callee: str, metric: Tensor) -> None:
    _require_floats(callee, "metric", metric)
    if metric.ndim not in (1, 2) or len(set(metric.shape)) != 1:
        raise ValueError(
            f"{callee}: metric must be of shape (d, d), or (d,), "
            f"got {describe(metric)}."
        )
