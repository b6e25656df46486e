"""Training one network or a hundred at once, and what was measured on the way."""

from normalign.training import randomness, rules
from normalign.training.attack import measures, robust_accuracy, stacked_pgd
from normalign.training.batches import Attacked, Augmented
from normalign.training.centroids import stacked_centroid_alignment
from normalign.training.checkpoint import (
    CheckpointRefused,
    read_checkpoint,
    write_checkpoint,
)
from normalign.training.ensemble import Ensemble, Member
from normalign.training.history import History
from normalign.training.identity import (
    identify_run,
    identify_structure,
    require_same_run,
)
from normalign.training.interrupts import Interrupts
from normalign.training.loop import (
    Split,
    accuracy,
    evaluation_mode,
    is_evaluated,
    train,
)
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
    "Interrupts",
    "Measure",
    "Member",
    "SpanReduction",
    "Split",
    "Stack",
    "Trained",
    "TunedWeight",
    "accuracy",
    "evaluation_mode",
    "identify_run",
    "identify_structure",
    "is_evaluated",
    "measures",
    "randomness",
    "read_checkpoint",
    "require_same_run",
    "robust_accuracy",
    "rules",
    "span_reduction",
    "stacked_centroid_alignment",
    "stacked_geometry",
    "stacked_pgd",
    "train",
    "train_together",
    "tune_weight",
    "write_checkpoint",
]
