"""The theorems of the paper as functions; the tests are their numerical proofs.

========================  ==========================================================
`optimal.py`              Theorem 1: the Jacobian of least loss under a norm budget
`ball.py`                 ... for any convex loss: minimisation over a ball
`robustness.py`           Theorem 2: the largest local robustness, and who attains it
`construction.py`         Appendix A: a network normal-aligned to any sample
`dynamics.py`             Proposition 2, Theorem 3: centroids under gradient descent
`centroids.py`            Theorems 5 and 6: power diagrams, layer by layer
`projection.py`           Proposition 4, Lemmas 3 and 4: the energy off alignment
========================  ==========================================================

``docs/paper-map.md`` leads from each statement to its function and its test.
"""

from normalign.theory._ball import ball_minimizer
from normalign.theory._centroids import (
    laguerre_distance,
    layer_power_diagram,
    network_power_diagrams,
)
from normalign.theory._construction import last_layer_norms, normal_aligned_network
from normalign.theory._dynamics import (
    CentroidAcceleration,
    centroid_acceleration,
    centroid_velocity,
    two_layer_centroid,
    two_layer_ntk,
    two_layer_velocity,
)
from normalign.theory._optimal import (
    AlignedMap,
    optimal_coefficients,
    optimal_jacobian,
)
from normalign.theory._projection import (
    aligned_coefficients,
    factored_energy,
    orthogonal_energy,
    probed_energy,
)
from normalign.theory._robustness import (
    boundary_perturbation,
    distance_to_boundary,
    most_robust_classifier,
    offset_ratio,
    offset_ratio_bound,
    robustness_bound,
)

__all__ = [
    "AlignedMap",
    "CentroidAcceleration",
    "aligned_coefficients",
    "ball_minimizer",
    "boundary_perturbation",
    "centroid_acceleration",
    "centroid_velocity",
    "distance_to_boundary",
    "factored_energy",
    "laguerre_distance",
    "last_layer_norms",
    "layer_power_diagram",
    "most_robust_classifier",
    "network_power_diagrams",
    "normal_aligned_network",
    "offset_ratio",
    "offset_ratio_bound",
    "optimal_coefficients",
    "optimal_jacobian",
    "orthogonal_energy",
    "probed_energy",
    "robustness_bound",
    "two_layer_centroid",
    "two_layer_ntk",
    "two_layer_velocity",
]
