"""Kernel machines that learn their metric: formulas, tiles, solvers, Algorithm 1."""

from normalign.kernels._agop import agop
from normalign.kernels._distances import kernel_matrix, median_distance
from normalign.kernels._expansion import (
    Columns,
    Machine,
    expansion,
    expansion_jacobian,
    pull_back,
)
from normalign.kernels._functions import (
    KERNELS,
    Gaussian,
    Kernel,
    Laplace,
    ProductLaplace,
)
from normalign.kernels._memory import estimate_memory
from normalign.kernels._metric import initial_metric, metric_root, normalised
from normalign.kernels._recursion import Iteration, recursions
from normalign.kernels._solve import ridge_path
from normalign.kernels._system import Solved, Solver, System

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
