"""Adversarial training of image networks, and checkpoints of other repositories."""

from normalign_reproduction.robust._attack import evaluate
from normalign_reproduction.robust._checkpoint_names import (
    CheckpointReport,
    load_checkpoint,
    network_for,
)
from normalign_reproduction.robust._objectives import decoupled_kl, divergence
from normalign_reproduction.robust._recipe import Recipe
from normalign_reproduction.robust._trainer import RobustTrainer, TrainingDiverged

__all__ = [
    "CheckpointReport",
    "Recipe",
    "RobustTrainer",
    "TrainingDiverged",
    "decoupled_kl",
    "divergence",
    "evaluate",
    "load_checkpoint",
    "network_for",
]
