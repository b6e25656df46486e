"""Training one network or a hundred at once, and what was measured on the way."""

from normalign.training import rules
from normalign.training.ensemble import Ensemble, Member, Trained, train_together
from normalign.training.history import History
from normalign.training.loop import Split, accuracy, is_evaluated, train
from normalign.training.reduction import SpanReduction, span_reduction

__all__ = [
    "Ensemble",
    "History",
    "Member",
    "SpanReduction",
    "Split",
    "Trained",
    "accuracy",
    "is_evaluated",
    "rules",
    "span_reduction",
    "train",
    "train_together",
]
