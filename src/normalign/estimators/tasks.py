"""The two tasks of a kernel machine: telling classes apart, and predicting numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import type_of_target

from normalign._errors import describe, require
from normalign.estimators.base import KernelMachine
from normalign.estimators.calibration import probabilities, temperature
from normalign.estimators.tables.arrays import Origin, as_numpy, checked_weights
from normalign.estimators.tables.targets import (
    Answers,
    class_labels,
    numbers,
    plain_labels,
    side_by_side,
    split_blocks,
)

__all__ = ["KernelClassifier", "KernelRegressor"]


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
    require(
        numeric and type_of_target(labels) == "multilabel-indicator", callee, "y",
        "one column of labels, or indicators of 0 and 1",
        f"{labels.shape[1]} label columns",
        "Compare them one by one: (predict(X) == y).mean(axis=0).",
    )  # fmt: skip


class KernelClassifier(ClassifierMixin, KernelMachine):
    """A machine fitted to indicators of classes."""

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
        return Origin.of(X).restored(labels, exact=True)

    def predict_proba(self, X: Any) -> Any:
        r"""Probabilities of the classes.

        .. math:: p_c(x) = e^{t f_c(x)} / \sum_{c'} e^{t f_{c'}(x)}

        The temperature t makes the labels of at most 500 training rows (64 by conjugate
        gradients; the same ones in every fit) most likely, each under the machine
        fitted without it (in closed form, with the metric held fixed), or those of the
        rows kept apart by ``validation_fraction``. It does not change which class is
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
        outputs, finish = self._outputs(X)
        found = [
            finish(probabilities(block, float(factor)))
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
        outputs, finish = self._outputs(X)
        two = outputs.shape[1] == 2
        return finish(outputs[:, 1] - outputs[:, 0] if two else outputs)

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
        alike = _sort(found) == _sort(truth) and found.shape == truth.shape
        require(alike, callee, "y", "labels like those of fit", describe(labels))
        weights = checked_weights(callee, sample_weight, len(truth))
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

    def _answers(self, y: Any, n: int, kept: np.ndarray | None) -> Answers:
        answers = class_labels(type(self).__name__, y, n=n, kept=kept)
        self.classes_ = answers.classes[0] if answers.flat else list(answers.classes)
        return answers

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


class KernelRegressor(MultiOutputMixin, RegressorMixin, KernelMachine):
    """A machine fitted to numbers."""

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
        outputs, finish = self._outputs(X)
        return finish(outputs[:, 0] if self.flat_ else outputs)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R squared on rows and their targets."""
        answers = numbers(type(self).__name__, y, n=_length(X))
        truth = answers.columns[:, 0] if answers.flat else answers.columns
        return super().score(as_numpy(X), truth, as_numpy(sample_weight))

    def _answers(self, y: Any, n: int, kept: np.ndarray | None) -> Answers:
        answers = numbers(type(self).__name__, y, n=n, kept=kept)
        self.flat_ = answers.flat
        return answers
