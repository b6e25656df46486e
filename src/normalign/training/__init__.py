"""Training one network or a hundred at once, and what was measured on the way."""

from normalign.training import robust, rules
from normalign.training.attack import measures, robust_accuracy, stacked_pgd
from normalign.training.batches import Attacked, Augmented
from normalign.training.centroids import stacked_centroid_alignment
from normalign.training.checkpoint import CheckpointRefused
from normalign.training.ensemble import Ensemble, Member
from normalign.training.history import History
from normalign.training.loop import Split, accuracy, is_evaluated, train
from normalign.training.reduction import SpanReduction, span_reduction
from normalign.training.stack import Measure, Stack
from normalign.training.stack_geometry import stacked_geometry
from normalign.training.together import Trained, train_together
from normalign.training.tuning import TunedWeight, tune_weight

__all__ = [
    "Attacked",
    "Augmented",
    "CheckpointRefused",
    "Ensemble",
    "History",
    "Measure",
    "Member",
    "SpanReduction",
    "Split",
    "Stack",
    "Trained",
    "TunedWeight",
    "accuracy",
    "is_evaluated",
    "measures",
    "robust",
    "robust_accuracy",
    "rules",
    "span_reduction",
    "stacked_centroid_alignment",
    "stacked_geometry",
    "stacked_pgd",
    "train",
    "train_together",
    "tune_weight",
]
