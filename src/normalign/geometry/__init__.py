"""The local geometry of a model: what its input-output Jacobian says at each sample.

=======================  ===========================================================
`_jacobian.py`           `local_affine`: Jacobian and offset
`_alignment.py`          `normal_alignment`, `alignment_ratio`, `centroid_alignment`
`_rank.py`               `effective_rank`, `participation_rank`
`_power_diagram.py`      `power_diagram`: centroid and radius
`_margin.py`             `local_robustness`
`_local_geometry.py`     `local_geometry`: all of them at once
`_exact.py`              ... from the Jacobian's rows, a few samples at a time
`_matrix_free.py`        ... from products with J and J^T, for many outputs
`_layer_profile.py`      `layer_profile`: all of them at several places of a network
`_stages.py`             ... where the stages of a network begin
`_shared_pass.py`        ... products with J^T of several places in one pass
`_partition/`            `partition`: the tiles of a 2-D slice, exactly
`_ntk.py`                `ntk`: the empirical neural tangent kernel
`_independence.py`       does a sample's output depend on the rest of its batch?
`_spectrum.py`           the leading singular vector, safely differentiable
=======================  ===========================================================
"""

from normalign._hooks import At
from normalign.geometry._alignment import (
    alignment_ratio,
    centroid_alignment,
    normal_alignment,
)
from normalign.geometry._jacobian import LocalAffine, local_affine
from normalign.geometry._layer_profile import LayerProfile, ProfileRun, layer_profile
from normalign.geometry._local_geometry import LocalGeometry, local_geometry
from normalign.geometry._margin import local_robustness
from normalign.geometry._matrix_free import MatrixFreeOptions
from normalign.geometry._ntk import ntk
from normalign.geometry._partition import Partition, Residual, Slice, partition
from normalign.geometry._power_diagram import PowerDiagram, power_diagram
from normalign.geometry._rank import effective_rank, participation_rank

__all__ = [
    "At",
    "LayerProfile",
    "LocalAffine",
    "LocalGeometry",
    "MatrixFreeOptions",
    "Partition",
    "PowerDiagram",
    "ProfileRun",
    "Residual",
    "Slice",
    "alignment_ratio",
    "centroid_alignment",
    "effective_rank",
    "layer_profile",
    "local_affine",
    "local_geometry",
    "local_robustness",
    "normal_alignment",
    "ntk",
    "participation_rank",
    "partition",
    "power_diagram",
]
