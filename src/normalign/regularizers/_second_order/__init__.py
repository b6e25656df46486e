"""Layers whose second derivative costs what it must, and no more.

A penalty on ``J^T v`` is differentiated twice. torch's own rule for the second
derivative of a convolution is several times slower than the two convolutions that it
amounts to, batch normalisation in training mode has no Jacobian of one sample, and the
last backward pass computes a gradient in the input that nobody asked for.
:func:`lean_operations` mends these three while a model runs, and leaves the model as
it is.
"""

from normalign.regularizers._second_order.mode import LeanOperations, lean_operations

__all__ = ["LeanOperations", "lean_operations"]
