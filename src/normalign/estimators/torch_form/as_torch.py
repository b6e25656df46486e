"""Fitted scikit-learn estimators as torch modules with the same decision function."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn import linear_model, neural_network, svm
from sklearn.base import is_classifier
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from normalign._errors import complaint, require, require_kind
from normalign.estimators.fitted import FittedMachine
from normalign.estimators.torch_form.machine import machine_module
from normalign.estimators.torch_form.modules import (
    Columns,
    KernelExpansion,
    TwoClassScores,
    dense,
    linear_layer,
)
from normalign.estimators.torch_form.preprocessing import TRANSFORMERS, transformer

__all__ = ["as_torch"]

_LINEAR = (
    linear_model.ElasticNet, linear_model.ElasticNetCV, linear_model.Lasso,
    linear_model.LassoCV, linear_model.LinearRegression,
    linear_model.LogisticRegression, linear_model.LogisticRegressionCV,
    linear_model.Perceptron, linear_model.Ridge, linear_model.RidgeClassifier,
    linear_model.RidgeClassifierCV, linear_model.RidgeCV, linear_model.SGDClassifier,
    linear_model.SGDRegressor, svm.LinearSVC, svm.LinearSVR,
)  # fmt: skip
_MLP = (neural_network.MLPClassifier, neural_network.MLPRegressor)
_SVM = (svm.SVC, svm.SVR, svm.NuSVC, svm.NuSVR)
_SEARCHES = (GridSearchCV, RandomizedSearchCV)
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "identity": nn.Identity,
    "logistic": nn.Sigmoid,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
}
_REMEDY = (
    "Supported: "
    + ", ".join(
        kind.__name__
        for kind in (
            *_LINEAR, *_MLP, *_SVM, KernelRidge, OneVsRestClassifier, *_SEARCHES,
            Pipeline,
        )
    )
    + ", RFM and RFAM estimators; in a Pipeline also "
    + ", ".join(kind.__name__ for kind in TRANSFORMERS)
    + "."
)  # fmt: skip


def as_torch(fitted: Any) -> nn.Module:
    r"""Return a float64 module that computes what a fitted estimator computes.

    The module maps ``(n, d)`` to ``(n, k)``, so that the local geometry of a model
    that was never a network can be measured. A regressor's outputs equal ``predict``;
    a classifier's equal ``decision_function`` (for ``MLPClassifier`` the logits), and
    their argmax is the index into ``classes_``.

    A binary classifier has one score :math:`s`, but competition between classes takes
    two outputs. They are

    .. math:: f(x) = (-s(x) / 2, \; s(x) / 2)

    whose difference is the score and whose softmax, for logistic models, is
    ``predict_proba``. The outputs sum to zero, so the power-diagram centroid
    :math:`J^\top 1` of such a module is zero and only the alignment of the normal,
    not of the centroid, says something. RFM and RFAM classifiers have an output for
    each class already, and keep them.

    Nothing is pickled and nothing refers back to the estimator: the numbers are
    copied into parameters and buffers. A pipeline becomes a ``Sequential`` whose
    children carry the names of its steps, so ``at="clf"`` measures the map behind
    the preprocessing.

    Parameters
    ----------
    fitted : estimator
        A fitted linear model, multi-layer perceptron, support vector machine
        (``rbf``, ``linear``, ``poly`` or ``sigmoid``; ``SVC`` with two classes only,
        since its decision function for more counts votes: wrap it in
        ``OneVsRestClassifier``), ``KernelRidge`` (also ``laplacian``), RFM or RFAM
        estimator, one of these in ``OneVsRestClassifier`` or a finished search, or a
        ``Pipeline`` of scalers and ``PCA`` before one of them.

    Returns
    -------
    nn.Module
        In evaluation mode, on the CPU. For another dtype or device use ``.to``.

    Raises
    ------
    TypeError
        If there is no conversion for this kind of estimator.
    ValueError
        If an option of the estimator has none (kernel, output activation, several
        labels per sample).
    sklearn.exceptions.NotFittedError
        If the estimator is not fitted.

    Examples
    --------
    >>> line = linear_model.LinearRegression().fit([[0.0], [1.0]], [1.0, 3.0])
    >>> as_torch(line)(torch.tensor([[2.0]], dtype=torch.float64)).detach().round()
    tensor([[5.]], dtype=torch.float64)
    """
    _require_fitted(fitted)
    # whatever is set outside: tensors of inference mode cannot be differentiated
    with torch.inference_mode(False), torch.device("cpu"):
        return _converted(fitted).double().eval()


def _converted(fitted: Any) -> nn.Module:
    if isinstance(fitted, _SEARCHES):
        best = fitted.best_estimator_
        _refuse_tables(best, "search.best_estimator_")
        return _converted(best)
    if isinstance(fitted, Pipeline):
        _refuse_tables(fitted, "pipeline")
        return _steps(fitted, _converted)
    if isinstance(fitted, OneVsRestClassifier):
        return _one_vs_rest(fitted)
    if isinstance(fitted, FittedMachine):
        return machine_module("as_torch", fitted)
    scores = _scores(fitted)
    if not is_classifier(fitted):
        return scores
    _require_one_label(fitted)
    return _two_class(scores) if len(fitted.classes_) == 2 else scores


def _scores(fitted: Any) -> nn.Module:
    """One output per target, or per class; a single one for two classes."""
    if isinstance(fitted, _LINEAR):
        return linear_layer(fitted.coef_, fitted.intercept_)
    if isinstance(fitted, _MLP):
        return _mlp(fitted)
    if isinstance(fitted, _SVM):
        return _support_vectors(fitted)
    if isinstance(fitted, KernelRidge):
        return _kernel_ridge(fitted)
    raise TypeError(
        complaint(
            "as_torch", "fitted", "an estimator with a conversion",
            f"a {type(fitted).__name__}", _REMEDY,
        )
    )  # fmt: skip


def _require_fitted(fitted: Any) -> None:
    require_kind(
        hasattr(fitted, "fit") and not isinstance(fitted, type), "as_torch", "fitted",
        "a fitted scikit-learn estimator", fitted, _REMEDY,
    )  # fmt: skip
    try:
        check_is_fitted(fitted)
    except NotFittedError as error:
        raise NotFittedError(
            complaint(
                "as_torch", "fitted", "fitted",
                f"a {type(fitted).__name__} that is not", "Call fit first.",
            )
        ) from error  # fmt: skip


def _require_one_label(fitted: Any) -> None:
    with warnings.catch_warnings():  # of columns without the names they had in fit
        warnings.simplefilter("ignore", UserWarning)
        one = fitted.predict(np.zeros((1, fitted.n_features_in_)))
    require(
        np.ndim(one) == 1, "as_torch", "fitted",
        "a classifier with one label per sample",
        f"a {type(fitted).__name__} with several", "Convert one classifier per label.",
    )  # fmt: skip


def _two_class(scores: nn.Module) -> nn.Module:
    # A last linear layer absorbs the doubling, so a linear model stays one layer.
    last = scores[-1] if isinstance(scores, nn.Sequential) else scores
    if not isinstance(last, nn.Linear):
        return nn.Sequential(OrderedDict(scores=scores, classes=TwoClassScores()))
    halves = torch.tensor([[-0.5], [0.5]], dtype=torch.float64)
    doubled = linear_layer(
        (halves * last.weight.detach()).numpy(), (halves[:, 0] * last.bias).detach()
    )
    if not isinstance(scores, nn.Sequential):
        return doubled
    children = OrderedDict(scores.named_children())
    children[next(reversed(children))] = doubled
    return nn.Sequential(children)


def _mlp(fitted: Any) -> nn.Module:
    require(
        fitted.out_activation_ in ("identity", "logistic", "softmax"), "as_torch",
        "fitted", "a perceptron with identity, logistic or softmax output",
        f"{fitted.out_activation_!r}",
    )  # fmt: skip
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    depth = len(fitted.coefs_)
    for i, (coef, intercept) in enumerate(
        zip(fitted.coefs_, fitted.intercepts_, strict=True), start=1
    ):
        parts[f"linear{i}"] = linear_layer(coef.T, intercept)
        if i < depth:
            parts[f"{fitted.activation}{i}"] = _ACTIVATIONS[fitted.activation]()
    return nn.Sequential(parts)


def _support_vectors(fitted: Any) -> nn.Module:
    require(
        not is_classifier(fitted) or len(fitted.classes_) == 2, "as_torch", "fitted",
        f"a {type(fitted).__name__} with two classes",
        f"one with {len(getattr(fitted, 'classes_', ()))}",
        "Fit it inside sklearn.multiclass.OneVsRestClassifier.",
    )  # fmt: skip
    if fitted.kernel == "linear":
        return linear_layer(fitted.coef_, fitted.intercept_)
    # The only trace of gamma="scale" and "auto" that a fitted machine keeps.
    gamma = getattr(fitted, "_gamma", None)
    return _kernel(
        fitted, fitted.support_vectors_, dense(fitted.dual_coef_).T,
        gamma=gamma, bias=fitted.intercept_,
    )  # fmt: skip


def _kernel_ridge(fitted: Any) -> nn.Module:
    weights = dense(fitted.dual_coef_)
    weights = weights[:, None] if weights.ndim == 1 else weights
    if fitted.kernel == "linear":
        return linear_layer((dense(fitted.X_fit_).T @ weights).T, 0.0)
    gamma = 1 / fitted.X_fit_.shape[1] if fitted.gamma is None else fitted.gamma
    return _kernel(fitted, fitted.X_fit_, weights, gamma=gamma, bias=0.0)


def _kernel(
    fitted: Any, points: Any, weights: Tensor, *, gamma: float | None, bias: Any
) -> KernelExpansion:
    allowed = ["rbf", "poly", "polynomial", "sigmoid"]
    if isinstance(fitted, KernelRidge):
        allowed.append("laplacian")
    known = isinstance(fitted.kernel, str) and fitted.kernel in allowed
    require(
        known and gamma is not None,
        "as_torch", "fitted", f"a {type(fitted).__name__} with kernel linear, "
        + ", ".join(allowed), f"kernel={fitted.kernel!r}",
    )  # fmt: skip
    return KernelExpansion(
        "poly" if fitted.kernel == "polynomial" else fitted.kernel,
        dense(points),
        weights,
        dense(bias).expand(weights.shape[1]).clone(),
        gamma=float(gamma or 0.0),
        degree=float(fitted.degree),
        coef0=float(fitted.coef0),
    )


def _one_vs_rest(fitted: OneVsRestClassifier) -> nn.Module:
    _require_one_label(fitted)
    scores = [_binary_score(part) for part in fitted.estimators_]
    if len(scores) == 1:
        return _two_class(scores[0])
    return Columns(scores)


def _binary_score(part: Any) -> nn.Module:
    """One column: the score of the positive class against the rest."""
    require(
        is_classifier(part) and hasattr(part, "decision_function"), "as_torch",
        "fitted", "a OneVsRestClassifier over classifiers with a decision_function",
        f"one over {type(part).__name__}",
    )  # fmt: skip
    if isinstance(part, Pipeline):
        return _steps(part, _binary_score)
    if isinstance(part, FittedMachine):
        against = linear_layer([[-1.0, 1.0]], 0.0)
        return nn.Sequential(machine_module("as_torch", part), against)
    return _scores(part)


def _refuse_tables(fitted: Any, name: str) -> None:
    """Complain of a pipeline that takes mixed tables, which are no tensors."""
    steps = fitted.steps if isinstance(fitted, Pipeline) else []
    for _, step in steps[:-1]:
        last = f'as_torch({name}["{steps[-1][0]}"])'
        require_kind(
            not isinstance(step, ColumnTransformer), "as_torch", "fitted",
            "a Pipeline of steps with a conversion", f"the step {type(step).__name__}",
            f"Convert its last step: {last} at {name}[:-1].transform(X).",
        )  # fmt: skip


def _steps(fitted: Pipeline, last: Callable[[Any], nn.Module]) -> nn.Module:
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    *before, (final_name, final) = fitted.steps
    for name, step in before:
        if step is not None and step != "passthrough":
            parts[_child_name(name)] = _before(step)
    parts[_child_name(final_name)] = last(final)
    return nn.Sequential(parts)


def _child_name(name: str) -> str:
    return name.replace(".", "_")  # torch keeps the dot for paths


def _before(step: Any) -> nn.Module:
    if isinstance(step, Pipeline):
        return _steps(step, _before)
    return transformer("as_torch", step, remedy=_REMEDY)
