"""What a CUDA device does faster by kernels of our own than by a library."""

from normalign.kernels.cuda.kernels import HALVES, Kernels, kernels_for

__all__ = ["HALVES", "Kernels", "kernels_for"]
