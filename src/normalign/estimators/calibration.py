"""From the outputs of a machine fitted to indicators to probabilities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import softmax

__all__ = ["probabilities", "temperature"]

# A machine that predicts nothing gets nearly uniform probabilities, never reversed
# ones: they keep the order of the outputs.
_BOUNDS = (1e-2, 1e4)


def probabilities(outputs: np.ndarray, temperature: float) -> np.ndarray:
    r"""Return class probabilities from outputs.

    .. math:: p_c(x) = e^{t f_c(x)} / \sum_{c'} e^{t f_{c'}(x)}

    The largest output has the largest probability.

    Parameters
    ----------
    outputs : ndarray of shape (n, k)
    temperature : float
        The factor t, from :func:`temperature`.

    Returns
    -------
    ndarray of shape (n, k), float64

    Examples
    --------
    >>> probabilities(np.array([[0.0, 0.0]]), 3.0)
    array([[0.5, 0.5]])
    """
    with np.errstate(under="ignore"):  # to zero
        return softmax(temperature * np.asarray(outputs, dtype=np.float64), axis=1)


def temperature(
    outputs: np.ndarray, targets: np.ndarray, *, weights: np.ndarray | None = None
) -> float:
    r"""Return the factor that makes the softmax of outputs most likely.

    .. math::

        \min_t \; - \sum_i w_i \sum_c q_{ic} \log p_c(x_i),
        \qquad q_{ic} = (1 - \epsilon) \, y_{ic} + \epsilon / k

    a convex problem in one number. The outputs must be of rows that the machine has
    not learned from (left out, or held out), or the factor says how well it
    remembers. The smoothing :math:`\epsilon = 1 / (2 + \sum_i w_i)` is Platt's idea:
    without it a machine that makes no mistake on few rows would be infinitely sure.
    The answer stays in ``[0.01, 10000]``; one for outputs that do not differ. Weights
    act as repetitions.

    Parameters
    ----------
    outputs : ndarray of shape (n, k)
    targets : ndarray of shape (n, k)
        Indicators of each row's class, or the shares of classes among equal rows.
    weights : ndarray of shape (n,), optional

    References
    ----------
    J. Platt, Probabilistic outputs for support vector machines, 1999;
    C. Guo et al., On calibration of modern neural networks, 2017 (arXiv 1706.04599).

    Examples
    --------
    Half of the rows are on the wrong side: the outputs say nothing.

    >>> temperature(np.array([[0.0, 1.0], [0.0, 1.0]]), np.eye(2))
    0.01
    """
    scores = np.asarray(outputs, dtype=np.float64)
    scores = scores - scores.max(axis=1, keepdims=True)
    if not np.ptp(scores):
        return 1.0
    mass = np.ones(len(scores)) if weights is None else np.asarray(weights)
    total = mass.sum()
    smoothing = 1 / (2 + total)
    right = (targets * scores).sum(axis=1)
    wanted = (1 - smoothing) * right + smoothing * scores.mean(axis=1)

    def slope(log_factor: float) -> float:
        with np.errstate(under="ignore"):  # to zero
            shares = softmax(math.exp(log_factor) * scores, axis=1)
            expected = (shares * scores).sum(axis=1)
        return float(mass @ (expected - wanted)) / float(total)

    low, high = math.log(_BOUNDS[0]), math.log(_BOUNDS[1])
    if slope(low) >= 0:
        return _BOUNDS[0]
    if slope(high) <= 0:
        return _BOUNDS[1]
    root: Any = brentq(slope, low, high, xtol=1e-13, rtol=np.float64(1e-13))
    return math.exp(root)
