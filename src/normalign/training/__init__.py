"""Training one network or a hundred at once, and what was measured on the way."""

from normalign.training import randomness, rules
from normalign.training._attack import (
    Attacked,
    Augmented,
    measures,
    robust_accuracy,
    stacked_pgd,
)
from normalign.training._checkpoint import (
    CheckpointRefused,
    identify_run,
    identify_structure,
    read_checkpoint,
    require_same_run,
    write_checkpoint,
)
from normalign.training._measures import stacked_centroid_alignment, stacked_geometry
from normalign.training._scheduler import Interrupts, Trained, train_together
from normalign.training._span_reduction import SpanReduction, span_reduction
from normalign.training._stack import Measure, Stack
from normalign.training.ensemble import Ensemble, Member
from normalign.training.history import History
from normalign.training.loop import (
    Split,
    accuracy,
    evaluation_mode,
    is_evaluated,
    train,
)
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
