"""Where scikit-learn's contract is known: kernel machines, models seen by torch."""

from normalign.estimators.rfam import RFAMClassifier, RFAMRegressor
from normalign.estimators.rfm import RFMClassifier, RFMRegressor
from normalign.estimators.selection import RFAMClassifierCV, RFAMRegressorCV
from normalign.estimators.tables.tabular import make_tabular_pipeline
from normalign.estimators.torch_form.as_torch import as_torch
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
