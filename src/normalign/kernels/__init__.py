"""Kernel machines that learn their metric: formulas, tiles, solvers, Algorithm 1."""

from normalign.kernels._agop import agop
from normalign.kernels._pull_back import Columns, pull_back
from normalign.kernels.distances import kernel_matrix, median_distance
from normalign.kernels.functions import (
    KERNELS,
    Gaussian,
    Kernel,
    Laplace,
    ProductLaplace,
)
from normalign.kernels.gradients import expansion, expansion_jacobian
from normalign.kernels.machine import Machine
from normalign.kernels.memory import estimate_memory
from normalign.kernels.metric import initial_metric, metric_root, normalised
from normalign.kernels.recursion import Iteration, recursions
from normalign.kernels.ridges import ridge_path
from normalign.kernels.system import Solved, Solver, System

__all__ = [
    "KERNELS",
    "Columns",
    "Gaussian",
    "Iteration",
    "Kernel",
    "Laplace",
    "Machine",
    "ProductLaplace",
    "Solved",
    "Solver",
    "System",
    "agop",
    "estimate_memory",
    "expansion",
    "expansion_jacobian",
    "initial_metric",
    "kernel_matrix",
    "median_distance",
    "metric_root",
    "normalised",
    "pull_back",
    "recursions",
    "ridge_path",
]
