"""Where scikit-learn's contract is known: kernel machines, models seen by torch."""

from normalign.estimators.as_torch import as_torch
from normalign.estimators.rfam import RFAMClassifier, RFAMRegressor
from normalign.estimators.rfm import RFMClassifier, RFMRegressor
from normalign.estimators.selection import RFAMClassifierCV, RFAMRegressorCV
from normalign.estimators.tabular import make_tabular_pipeline

__all__ = [
    "RFAMClassifier",
    "RFAMClassifierCV",
    "RFAMRegressor",
    "RFAMRegressorCV",
    "RFMClassifier",
    "RFMRegressor",
    "as_torch",
    "make_tabular_pipeline",
]
