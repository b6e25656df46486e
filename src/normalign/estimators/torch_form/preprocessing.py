"""Fitted scalers and projections as torch modules."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from sklearn import preprocessing
from sklearn.decomposition import PCA
from torch import nn

from normalign._errors import require_kind
from normalign.estimators.torch_form.modules import Scaling, dense, linear_layer

__all__ = ["TRANSFORMERS", "transformer"]

_SCALERS = (
    preprocessing.MaxAbsScaler, preprocessing.MinMaxScaler,
    preprocessing.RobustScaler, preprocessing.StandardScaler,
)  # fmt: skip
TRANSFORMERS = (*_SCALERS, PCA)


def transformer(callee: str, step: Any, *, remedy: str) -> nn.Module:
    """Return the module of a fitted scaler or PCA.

    Raises
    ------
    TypeError
        If there is no conversion for this kind of step; `remedy` says which have one.
    """
    if isinstance(step, PCA):
        return _pca(step)
    require_kind(
        isinstance(step, _SCALERS), callee, "fitted",
        "a Pipeline of steps with a conversion", f"the step {type(step).__name__}",
        remedy,
    )  # fmt: skip
    return _scaling(step)


def _scaling(step: Any) -> Scaling:
    d = step.n_features_in_
    low, high = -np.inf, np.inf
    if isinstance(step, preprocessing.MinMaxScaler):
        centre, scale, shift = 0.0, 1 / step.scale_, step.min_
        if step.clip:
            low, high = step.feature_range
    elif isinstance(step, preprocessing.MaxAbsScaler):
        centre, scale, shift = 0.0, step.scale_, 0.0
        if getattr(step, "clip", False):  # newer than the oldest release we support
            low, high = -1.0, 1.0
    else:
        robust = isinstance(step, preprocessing.RobustScaler)
        moves = step.with_centering if robust else step.with_mean
        centre = (step.center_ if robust else step.mean_) if moves else 0.0
        scale, shift = (1.0 if step.scale_ is None else step.scale_), 0.0
    return Scaling(
        *(dense(v).expand(d).clone() for v in (centre, scale, shift)),
        low=float(low),
        high=float(high),
    )


def _pca(step: Any) -> nn.Module:
    components = step.components_
    if step.whiten:
        # as scikit-learn: a direction without variance is not blown up
        deviation = np.sqrt(step.explained_variance_)
        smallest = np.finfo(deviation.dtype).eps
        components = components / np.maximum(deviation, smallest)[:, None]
    layer = linear_layer(components, 0.0)
    d = components.shape[1]
    centring = Scaling(
        dense(step.mean_).expand(d).clone(),
        torch.ones(d, dtype=torch.float64),
        torch.zeros(d, dtype=torch.float64),
    )
    return nn.Sequential(OrderedDict(centring=centring, rotation=layer))
