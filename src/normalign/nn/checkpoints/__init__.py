"""Weights of others in our networks: read safely, renamed, and accounted for.

``files`` reads a state dict, ``namings`` translates its names, ``loading`` compares it
with a network and fills it, ``report`` says what became of it, and ``forms`` builds the
network that a file is of.
"""

from normalign.nn.checkpoints.forms import BUILT_IN, network_for
from normalign.nn.checkpoints.loading import load_checkpoint, load_weights_of
from normalign.nn.checkpoints.report import CheckpointReport, Normalisation

__all__ = [
    "BUILT_IN",
    "CheckpointReport",
    "Normalisation",
    "load_checkpoint",
    "load_weights_of",
    "network_for",
]
