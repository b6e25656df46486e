"""Where scikit-learn's contract is known: its models seen through normalign's eyes."""

from normalign.estimators.as_torch import as_torch

__all__ = ["as_torch"]
