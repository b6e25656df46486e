"""Training one network, and what was measured on the way."""

from normalign.training.history import History
from normalign.training.loop import Split, accuracy, is_evaluated, train

__all__ = ["History", "Split", "accuracy", "is_evaluated", "train"]
