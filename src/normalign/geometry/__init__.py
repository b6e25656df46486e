"""The local geometry of a model: what its input-output Jacobian says at each sample.

========================  ==========================================================
`jacobian.py`             `local_affine`: Jacobian and offset
`alignment.py`            `normal_alignment`, `alignment_ratio`, `centroid_alignment`
`rank.py`                 `effective_rank`, `participation_rank`
`diagram.py`              `power_diagram`: centroid and radius
`margin.py`               `local_robustness`
`report.py`               `local_geometry`: all of them at once
`exact.py`                ... from the Jacobian's rows, a few samples at a time
`matrix_free.py`          ... from products with J and J^T, for many outputs
`krylov.py`               ... the space that these products span
`profile.py`              `layer_profile`: all of them at several places of a network
`profile_run.py`          ... step by step
`places.py`               ... where the stages of a network begin
`shared.py`               ... products with J^T of several places in one pass
`tiling/`                 `partition`: the tiles of a 2-D slice, exactly
`tangent_kernel.py`       `ntk`: the empirical neural tangent kernel
`local_map.py`            which map is measured: `At`, the output
`quirks.py`               what is peculiar about models: compiled, BatchNorm, attention
`independence.py`         do samples of a batch stay apart?
`linearize.py`            products with J and J^T
`output_range.py`         the outputs that a model can move at all
`chunks.py`               how many samples at a time
`spectrum.py`             the leading singular vector, safely differentiable
========================  ==========================================================
"""

from normalign._hooks import At
from normalign.geometry.alignment import (
    alignment_ratio,
    centroid_alignment,
    normal_alignment,
)
from normalign.geometry.diagram import PowerDiagram, power_diagram
from normalign.geometry.jacobian import LocalAffine, local_affine
from normalign.geometry.margin import local_robustness
from normalign.geometry.matrix_free import MatrixFreeOptions
from normalign.geometry.profile import LayerProfile, layer_profile
from normalign.geometry.profile_run import ProfileRun
from normalign.geometry.rank import effective_rank, participation_rank
from normalign.geometry.report import LocalGeometry, local_geometry
from normalign.geometry.tangent_kernel import ntk
from normalign.geometry.tiling import Partition, Residual, Slice, partition

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
