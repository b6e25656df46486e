"""What a fitted kernel machine predicts, from state that is numpy alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import softmax
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from normalign._errors import describe, require, require_kind
from normalign.estimators._inputs import Origin, checked_features
from normalign.estimators._partition import assembled
from normalign.estimators._scaling import DTYPES, Frame, farthest, power_of_two
from normalign.kernels import KERNELS, Kernel, Machine, metric_root
from normalign.kernels._pull_back import Cotangent, jacobian_pull_back
from normalign.kernels.metric import through_metric

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


def kernel_named(name: str, *, exponent: float, bandwidth: float) -> Kernel:
    """The kernel of an estimator's parameters.

    Examples
    --------
    >>> kernel_named("gaussian", exponent=1.0, bandwidth=2.0)
    Gaussian(bandwidth=2.0)
    """
    more = {"exponent": float(exponent)} if name == "laplace" else {}
    return KERNELS[name](bandwidth=float(bandwidth), **more)


def _narrowed(answer: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Numbers in the precision of a table; as they are where it cannot hold them."""
    if answer.dtype == dtype:
        return answer
    largest = np.abs(answer).max(initial=0.0)
    return answer.astype(dtype) if largest <= np.finfo(dtype).max else answer


def machine_bandwidth(machine: Any) -> float:
    """The bandwidth of a machine, whole or in parts."""
    part = machine if isinstance(machine, Machine) else machine.machines[0]
    return part.kernel.bandwidth


class FittedMachine(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Outputs and Jacobians of a machine whose arrays a subclass has learned.

    The arrays are in the caller's units; the machine of tensors, in the frame of the
    training table, is made of them when it is first needed and is never pickled, so
    that what was fitted on a GPU can be loaded anywhere.
    """

    metric_: np.ndarray
    dual_coef_: np.ndarray
    intercept_: np.ndarray
    X_fit_: np.ndarray
    location_: np.ndarray
    unit_: float
    bandwidth_: float
    exponent_: float
    kernel_: str
    dtype_: str
    device_: str

    def transform(self, X: Any) -> Any:
        r"""Rows in coordinates in which the learned distance is the plain one.

        .. math:: x \mapsto M^{1/2} (x - m)

        With the symmetric root, which leaves every column as near to itself as can be,
        and m the ``location_``. Euclidean distances are then those of the metric (for
        "product_laplace" sums of absolute differences are those of the kernel), so a
        model that goes by distance, such as neighbours or clusters, sees what the
        machine sees. Directions in which the metric is hardly more than rounding are
        left out. ``set_output`` makes frames of the rows.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        array of shape (n, d)
            Of the kind of X.
        """
        x, finish = self._entered(X)
        # An update is right to some hundred roundings; in roots they would be seen.
        rounding = torch.finfo(DTYPES[self.dtype_]).eps ** 0.7
        metric = torch.tensor(self.metric_, dtype=torch.float64, device="cpu")
        root = metric_root(metric, least=rounding)
        return finish(through_metric(x.cpu().double(), root).numpy() * self.unit_)

    def jacobian(self, X: Any) -> Any:
        r"""Jacobians of the outputs, in closed form.

        .. math:: J_x = \partial f(x) / \partial x

        One row per target, or per class: the outputs whose largest is the predicted
        class (two of them for two classes; ``decision_function`` is then their
        difference). At a training row its own kernel, which has a kink there,
        contributes nothing, as in Algorithm 1.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        array of shape (n, k, d)
            Of the kind of X.
        """
        x, finish = self._entered(X)
        machine, scale = self._model()
        jacobian = machine.jacobian(x).cpu().double().numpy()
        return finish(jacobian * (scale / self.unit_))

    def pull_back(self, X: Tensor, cotangent: Cotangent) -> tuple[Tensor, Tensor]:
        r"""Outputs and :math:`J_x^\top v(f(x))` at every row: what an attack asks for.

        Parameters
        ----------
        X : Tensor of shape (n, d)
            In the caller's units, numbers only; on any device.
        cotangent : callable
            From the outputs of some rows, and a slice that says which rows, to the
            gradient of a loss in these outputs; float64, where the machine computes.

        Returns
        -------
        tuple of Tensor of shape (n, k) and (n, d)
            Float64, on the device of X. Two outputs for two classes.

        Raises
        ------
        TypeError
            If X is no floating tensor.
        ValueError
            If X is not finite or has other columns than the training table, or the
            cotangent gives another shape than that of the outputs.
        """
        check_is_fitted(self)
        self._require_points(X)
        machine, scale = self._model()
        dtype, bandwidth = machine.dtype, machine_bandwidth(machine)
        far, place = farthest(dtype, bandwidth), self._device_here()
        # copies: arrays that are maps of a file cannot be written to
        location = torch.tensor(self.location_, device=place)
        intercept = torch.tensor(self.intercept_, device=place)
        inside = (X.detach().to(place, torch.float64) - location) / self.unit_
        inside = inside.clamp(-far, far).to(dtype)

        def outer(found: Tensor, rows: slice) -> Tensor:
            given = cotangent(found.double() * scale + intercept, rows)
            rule = f"one that gives the outputs' shape, {tuple(found.shape)}"
            fits = isinstance(given, Tensor) and given.shape == found.shape
            require(fits, type(self).__name__, "cotangent", rule, describe(given))
            return given.to(dtype)

        if isinstance(machine, Machine):
            outputs, gradient = machine.pull_back(inside, outer)
        else:
            outputs, gradient = jacobian_pull_back(
                inside, outer, outputs=machine, jacobian=machine.jacobian
            )
        outputs = outputs.double() * scale + intercept
        gradient = gradient.double() * (scale / self.unit_)
        return outputs.to(X.device), gradient.to(X.device)

    def _require_points(self, X: Any) -> None:
        callee, d = type(self).__name__, len(self.location_)
        kind = isinstance(X, Tensor) and X.is_floating_point()
        require_kind(kind, callee, "X", "a floating tensor", X, "Use torch.tensor(X).")
        fits = X.ndim == 2 and X.shape[1] == d
        require(fits, callee, "X", f"of shape (n, {d}), as in fit", X)
        finite = bool(torch.isfinite(X).all())
        require(finite, callee, "X", "finite", "NaN or infinity")

    def __getstate__(self) -> dict[str, Any]:
        """The state without tensors: they are rebuilt from the arrays."""
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_machine"}

    def _outputs(self, X: Any) -> tuple[np.ndarray, Callable[[np.ndarray], Any]]:
        """Outputs in float64, and how numbers made of them go back to the caller."""
        x, finish = self._entered(X)
        return self._outputs_inside(x), finish

    def _outputs_inside(self, x: Tensor) -> np.ndarray:
        machine, scale = self._model()
        return machine(x).cpu().double().numpy() * scale + self.intercept_

    def _entered(self, X: Any) -> tuple[Tensor, Callable[[np.ndarray], Any]]:
        check_is_fitted(self)
        table = checked_features(self, X, reset=False)
        origin = Origin.of(X)

        def finish(answer: np.ndarray) -> Any:
            return origin.restored(_narrowed(answer, table.dtype))

        machine, _ = self._model()
        frame = Frame(self.location_, self.unit_)
        bandwidth = machine_bandwidth(machine)
        inside = frame.enter(table, machine.dtype, bandwidth=bandwidth)
        return torch.as_tensor(inside, device=self._device_here()), finish

    def _model(self) -> tuple[Any, float]:
        """The machine, and what its outputs are to be multiplied by.

        Made when it is first asked for, into a list that ``fit`` has left empty: to
        predict must leave the estimator's attributes as they are.
        """
        held = vars(self).setdefault("_machine", [])
        if not held:
            held.append(self._rebuilt())
        return held[0]

    def _rebuilt(self) -> tuple[Any, float]:
        leaves = getattr(self, "leaves_", None)
        return self._whole() if leaves is None else self._blended(leaves)

    def _whole(self) -> tuple[Machine, float]:
        dtype, device, scale = DTYPES[self.dtype_], self._device_here(), self._scale()

        def tensor(array: np.ndarray) -> Tensor:
            return torch.tensor(array, dtype=dtype, device=device)

        machine = Machine(
            tensor(Frame(self.location_, self.unit_).enter(self.X_fit_, dtype)),
            tensor(self.dual_coef_ / scale),
            tensor(self.metric_),
            self._kernel_inside(),
            tensor(np.zeros(self.dual_coef_.shape[1])),
        )
        return machine, scale

    def _blended(self, leaves: dict[str, np.ndarray]) -> tuple[Any, float]:
        scale = self._scale()
        machine = assembled(
            leaves["centers"],
            leaves,
            self.dual_coef_ / scale,
            self.metric_,
            self._kernel_inside(),
            dtype=DTYPES[self.dtype_],
            device=self._device_here(),
        )
        return machine, scale

    def _scale(self) -> float:
        """A number by which coefficients are divided to be of the size of one."""
        return power_of_two(float(np.abs(self.dual_coef_).max(initial=0.0)))

    def _kernel_inside(self) -> Kernel:
        return kernel_named(
            self.kernel_,
            exponent=self.exponent_,
            bandwidth=self.bandwidth_ / self.unit_,
        )

    def _device_here(self) -> torch.device:
        """The device of the fit, or the processor where that is not to be had."""
        device = torch.device(self.device_)
        if device.type == "cuda" and not torch.cuda.is_available():
            return torch.device("cpu")
        return device
