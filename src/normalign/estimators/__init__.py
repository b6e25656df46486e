"""Where scikit-learn's contract is known: kernel machines, models seen by torch."""

from normalign.estimators._export import as_torch
from normalign.estimators._pipeline import make_tabular_pipeline
from normalign.estimators._rfm import (
    RFAMClassifier,
    RFAMRegressor,
    RFMClassifier,
    RFMRegressor,
)
from normalign.estimators._search import RFAMClassifierCV, RFAMRegressorCV
from normalign.kernels import estimate_memory

__all__ = [
    "RFAMClassifier",
    "RFAMClassifierCV",
    "RFAMRegressor",
    "RFAMRegressorCV",
    "RFMClassifier",
    "RFMRegressor",
    "as_torch",
    "estimate_memory",
    "make_tabular_pipeline",
]
