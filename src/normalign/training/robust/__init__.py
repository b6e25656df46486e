"""Training deep networks against an attacker, for images in [0, 1]."""

from normalign.training.robust.evaluation import evaluated
from normalign.training.robust.objectives import decoupled_kl, divergence
from normalign.training.robust.recipe import Recipe
from normalign.training.robust.trainer import RobustTrainer, TrainingDiverged

__all__ = [
    "Recipe",
    "RobustTrainer",
    "TrainingDiverged",
    "decoupled_kl",
    "divergence",
    "evaluated",
]
