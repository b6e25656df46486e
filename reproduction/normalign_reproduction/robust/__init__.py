"""Training deep networks against an attacker, for images in [0, 1]."""

from normalign_reproduction.robust.attack import evaluate
from normalign_reproduction.robust.checkpoint_names import (
    CheckpointReport,
    Normalisation,
    load_checkpoint,
    network_for,
)
from normalign_reproduction.robust.objectives import decoupled_kl, divergence
from normalign_reproduction.robust.recipe import Recipe
from normalign_reproduction.robust.trainer import RobustTrainer, TrainingDiverged

__all__ = [
    "CheckpointReport",
    "Normalisation",
    "Recipe",
    "RobustTrainer",
    "TrainingDiverged",
    "decoupled_kl",
    "divergence",
    "evaluate",
    "load_checkpoint",
    "network_for",
]
