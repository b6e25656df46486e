"""What a fitted kernel machine predicts, from state that is numpy alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import softmax
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    MultiOutputMixin,
    OneToOneFeatureMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from normalign._errors import describe
from normalign.estimators._inputs import (
    Origin,
    Targets,
    as_numpy,
    check_features,
    check_weights,
    label_targets,
    numbers,
    plain_labels,
    side_by_side,
    split_blocks,
)
from normalign.estimators._partition import blend_machine
from normalign.estimators._scaling import DTYPES, Scaling, clip_limit, power_of_two
from normalign.kernels import KERNELS, Kernel, Machine, metric_root
from normalign.kernels._expansion import Cotangent, jacobian_pull_back
from normalign.kernels._metric import through_metric

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
    The factor stays in ``[0.01, 10000]``; one for outputs that do not differ. Weights
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


def _to_dtype(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Numbers in the precision of a table; as they are where it cannot hold them."""
    if values.dtype == dtype:
        return values
    largest = np.abs(values).max(initial=0.0)
    return values.astype(dtype) if largest <= np.finfo(dtype).max else values


def machine_bandwidth(machine: Any) -> float:
    """The bandwidth of a machine, single or blended."""
    part = machine if isinstance(machine, Machine) else machine.machines[0]
    return part.kernel.bandwidth


class FittedMachine(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Outputs and Jacobians of a machine whose arrays a subclass has learned.

    The arrays are in the caller's units. The machine of tensors, in those of the scaled
    table, is made of them when it is first needed and is never pickled, so that what
    was fitted on a GPU can be loaded anywhere.
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
        x, to_caller = self._scale_rows(X)
        # An update is right to some hundred roundings; in roots they would be seen.
        rounding = torch.finfo(DTYPES[self.dtype_]).eps ** 0.7
        metric = torch.tensor(self.metric_, dtype=torch.float64, device="cpu")
        root = metric_root(metric, least=rounding)
        return to_caller(through_metric(x.cpu().double(), root).numpy() * self.unit_)

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
        x, to_caller = self._scale_rows(X)
        machine, scale = self._model()
        jacobian = machine.jacobian(x).cpu().double().numpy()
        return to_caller(jacobian * (scale / self.unit_))

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
        callee = type(self).__name__
        machine, scale = self._model()
        dtype, bandwidth = machine.dtype, machine_bandwidth(machine)
        far, device = clip_limit(dtype, bandwidth), self._available_device()
        # copies: arrays that are maps of a file cannot be written to
        location = torch.tensor(self.location_, device=device)
        intercept = torch.tensor(self.intercept_, device=device)
        scaled = (X.detach().to(device, torch.float64) - location) / self.unit_
        scaled = scaled.clamp(-far, far).to(dtype)

        def scaled_cotangent(outputs: Tensor, rows: slice) -> Tensor:
            given = cotangent(outputs.double() * scale + intercept, rows)
            if not (isinstance(given, Tensor) and given.shape == outputs.shape):
                raise ValueError(
                    f"{callee}: cotangent must be one that gives the outputs' shape, "
                    f"{tuple(outputs.shape)}, got {describe(given)}."
                )
            return given.to(dtype)

        if isinstance(machine, Machine):
            outputs, gradient = machine.pull_back(scaled, scaled_cotangent)
        else:
            outputs, gradient = jacobian_pull_back(
                scaled, scaled_cotangent, outputs=machine, jacobian=machine.jacobian
            )
        outputs = outputs.double() * scale + intercept
        gradient = gradient.double() * (scale / self.unit_)
        return outputs.to(X.device), gradient.to(X.device)

    def _require_points(self, X: Any) -> None:
        callee, d = type(self).__name__, len(self.location_)
        if not (isinstance(X, Tensor) and X.is_floating_point()):
            raise TypeError(
                f"{callee}: X must be a floating tensor, got {describe(X)}. "
                "Use torch.tensor(X)."
            )
        if X.ndim != 2 or X.shape[1] != d:
            raise ValueError(
                f"{callee}: X must be of shape (n, {d}), as in fit, got {describe(X)}."
            )
        if not torch.isfinite(X).all():
            raise ValueError(f"{callee}: X must be finite, got NaN or infinity.")

    def __getstate__(self) -> dict[str, Any]:
        """The state without tensors: they are rebuilt from the arrays."""
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_machine"}

    def _outputs(self, X: Any) -> tuple[np.ndarray, Callable[[np.ndarray], Any]]:
        """Outputs in float64, and a function that returns arrays of the kind of X."""
        x, to_caller = self._scale_rows(X)
        return self._outputs_of_scaled(x), to_caller

    def _outputs_of_scaled(self, x: Tensor) -> np.ndarray:
        machine, scale = self._model()
        return machine(x).cpu().double().numpy() * scale + self.intercept_

    def _scale_rows(self, X: Any) -> tuple[Tensor, Callable[[np.ndarray], Any]]:
        check_is_fitted(self)
        table = check_features(self, X, reset=False)
        origin = Origin.of(X)

        def to_caller(values: np.ndarray) -> Any:
            return origin.restore(_to_dtype(values, table.dtype))

        machine, _ = self._model()
        scaled = Scaling(self.location_, self.unit_).apply(
            table, machine.dtype, bandwidth=machine_bandwidth(machine)
        )
        return torch.as_tensor(scaled, device=self._available_device()), to_caller

    def _model(self) -> tuple[Any, float]:
        """The machine, and the factor of its outputs.

        It is made on first use and stored in a list that ``fit`` has left empty: to
        predict must not change the estimator's attributes.
        """
        stored = vars(self).setdefault("_machine", [])
        if not stored:
            stored.append(self._build())
        return stored[0]

    def _build(self) -> tuple[Any, float]:
        dtype, device = DTYPES[self.dtype_], self._available_device()
        # Coefficients are divided by it to be of the size of one.
        scale = power_of_two(float(np.abs(self.dual_coef_).max(initial=0.0)))
        coef, leaves = self.dual_coef_ / scale, getattr(self, "leaves_", None)
        kernel = kernel_named(
            self.kernel_,
            exponent=self.exponent_,
            bandwidth=self.bandwidth_ / self.unit_,
        )
        if leaves is not None:
            centers = leaves["centers"]
            return blend_machine(
                centers, leaves, coef, self.metric_, kernel, dtype=dtype, device=device
            ), scale

        def tensor(array: np.ndarray) -> Tensor:
            return torch.tensor(array, dtype=dtype, device=device)

        machine = Machine(
            tensor(Scaling(self.location_, self.unit_).apply(self.X_fit_, dtype)),
            tensor(coef),
            tensor(self.metric_),
            kernel,
            tensor(np.zeros(coef.shape[1])),
        )
        return machine, scale

    def _available_device(self) -> torch.device:
        """The device of the fit, or the processor where that is not available."""
        device = torch.device(self.device_)
        if device.type == "cuda" and not torch.cuda.is_available():
            return torch.device("cpu")
        return device


def _has_one_output(estimator: Any) -> bool:
    return not isinstance(getattr(estimator, "classes_", None), list)


def _length(X: Any) -> int | None:
    return len(X) if hasattr(X, "__len__") else None


def _sort(labels: np.ndarray) -> str:
    """What labels are, so that those of one sort can be compared."""
    kind = labels.dtype.kind
    return {"U": "text", "O": "text"}.get(kind, "number" if kind in "biuf" else kind)


def _require_indicators(callee: str, labels: np.ndarray) -> None:
    numeric = labels.dtype.kind in "biuf"
    if not (numeric and type_of_target(labels) == "multilabel-indicator"):
        raise ValueError(
            f"{callee}: y must be one column of labels, or indicators of 0 and 1, got "
            f"{labels.shape[1]} label columns. Compare them one by one: "
            "(predict(X) == y).mean(axis=0)."
        )


class ClassifierPredictions(ClassifierMixin, FittedMachine):
    """Classes, probabilities and scores of a machine fitted to class indicators."""

    def predict(self, X: Any) -> Any:
        """Classes of the rows: those with the largest output.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        array of shape (n,), or (n, o) for several label columns
            Of the library of X, texts of numpy; in the labels' own dtype. Label columns
            of several kinds come back as objects.
        """
        outputs, _ = self._outputs(X)
        found = [
            classes[block.argmax(axis=1)]
            for classes, block in zip(self._classes, self._blocks(outputs), strict=True)
        ]
        # labels are names: in the precision of X they may be those of no class
        labels = found[0] if _has_one_output(self) else side_by_side(found)
        return Origin.of(X).restore(labels, exact=True)

    def predict_proba(self, X: Any) -> Any:
        r"""Probabilities of the classes.

        .. math:: p_c(x) = e^{t f_c(x)} / \sum_{c'} e^{t f_{c'}(x)}

        The temperature t makes the labels of at most 500 training rows (64 by conjugate
        gradients; the same ones in every fit) most likely, each under the machine
        fitted without it (in closed form, with the metric held fixed), or those of the
        rows held out by ``validation_fraction``. It does not change which class is
        the likeliest.

        The metric and the intercept (the shares of the classes) have still seen the
        row. Where few rows have noisy labels the probabilities are therefore too sure:
        with a fifth of the labels of a line in five columns wrong, by 0.2 on average
        at 30 rows, 0.07 at 90, and 0.01 at 300. ``validation_fraction`` and
        scikit-learn's ``CalibratedClassifierCV`` have no such flaw.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        array of shape (n, k), or a list of them for several label columns
        """
        outputs, to_caller = self._outputs(X)
        found = [
            to_caller(probabilities(block, float(factor)))
            for factor, block in zip(
                np.atleast_1d(self.temperature_), self._blocks(outputs), strict=True
            )
        ]
        return found[0] if _has_one_output(self) else found

    @available_if(_has_one_output)
    def decision_function(self, X: Any) -> Any:
        """Outputs of the machine; not there for several label columns, as in trees.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        array of shape (n, k), or (n,) for two classes
            For two classes the second output less the first: positive for the second.
        """
        outputs, to_caller = self._outputs(X)
        two = outputs.shape[1] == 2
        return to_caller(outputs[:, 1] - outputs[:, 0] if two else outputs)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy on rows and their labels.

        Several label columns must be multi-label indicators, as in scikit-learn, of
        which a row must have all right.
        """
        callee = type(self).__name__
        labels = plain_labels(callee, y, n=_length(X))
        if labels.ndim == 2 and labels.shape[1] > 1:
            _require_indicators(callee, labels)
        # not by scikit-learn, to which some labels that can be fitted are no labels
        found = self.predict(as_numpy(X))
        found, truth = (part.reshape(len(part), -1) for part in (found, labels))
        if _sort(found) != _sort(truth) or found.shape != truth.shape:
            raise ValueError(
                f"{callee}: y must be labels like those of fit, got {describe(labels)}."
            )
        weights = check_weights(callee, sample_weight, len(truth))
        return float(np.average((found == truth).all(axis=1), weights=weights))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        if tags.classifier_tags is not None:
            tags.classifier_tags.multi_label = True
        return tags

    classes_: Any

    @property
    def _classes(self) -> list[np.ndarray]:
        return [self.classes_] if _has_one_output(self) else self.classes_

    def _blocks(self, outputs: np.ndarray) -> list[np.ndarray]:
        return split_blocks(outputs, tuple(len(part) for part in self._classes))

    def _targets(self, y: Any, n: int, used: np.ndarray | None) -> Targets:
        targets = label_targets(type(self).__name__, y, n=n, used=used)
        self.classes_ = targets.classes[0] if targets.flat else list(targets.classes)
        return targets

    def _calibrate(
        self, outputs: np.ndarray, targets: np.ndarray, weights: np.ndarray | None
    ) -> None:
        self.temperature_ = self._temperature(outputs, targets, weights)

    def _temperature(
        self, outputs: np.ndarray, targets: np.ndarray, weights: np.ndarray | None
    ) -> float | np.ndarray:
        """The factor of ``predict_proba``, or one for each label column."""
        found = [
            temperature(block, wanted, weights=weights)
            for block, wanted in zip(
                self._blocks(outputs), self._blocks(targets), strict=True
            )
        ]
        return found[0] if _has_one_output(self) else np.array(found)


class RegressorPredictions(MultiOutputMixin, RegressorMixin, FittedMachine):
    """Predictions and scores of a machine fitted to numbers."""

    def predict(self, X: Any) -> Any:
        """Predicted numbers.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        array of shape (n,) or (n, k), as the targets were
            Of the kind of X; float64 if single precision would make infinity of them.
        """
        outputs, to_caller = self._outputs(X)
        return to_caller(outputs[:, 0] if self.flat_ else outputs)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R squared on rows and their targets."""
        targets = numbers(type(self).__name__, y, n=_length(X))
        truth = targets.columns[:, 0] if targets.flat else targets.columns
        return super().score(as_numpy(X), truth, as_numpy(sample_weight))

    def _targets(self, y: Any, n: int, used: np.ndarray | None) -> Targets:
        targets = numbers(type(self).__name__, y, n=n, used=used)
        self.flat_ = targets.flat
        return targets
