"""Penalties that pull a network towards normal alignment."""

from normalign.regularizers._call import penalised
from normalign.regularizers._estimators import (
    augmented_norm,
    exact_norm,
    finite_noise,
    input_probes,
    nuclear_split,
    orthogonal_probes,
    output_probes,
)
from normalign.regularizers._formulas import PenaltyForm
from normalign.regularizers._grokalign import GrokAlign

__all__ = [
    "GrokAlign",
    "PenaltyForm",
    "augmented_norm",
    "exact_norm",
    "finite_noise",
    "input_probes",
    "nuclear_split",
    "orthogonal_probes",
    "output_probes",
    "penalised",
]
