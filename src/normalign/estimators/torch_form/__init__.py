"""Fitted models as torch modules."""
