"""Penalties that pull a network towards normal alignment."""

from normalign.regularizers.estimators import augmented_norm

__all__ = ["augmented_norm"]
