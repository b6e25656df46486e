"""normalign measures, induces and uses normal alignment.

A model is *normal-aligned* to its training data when its input-output Jacobian at
every training point is rank one and points along that point, ``J_x = c x^T``.

Public names are loaded on first use, so ``import normalign`` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_FOLDERS = (
    "data", "estimators", "geometry", "kernels", "nn", "optim", "plots",
    "regularizers", "robustness", "theory", "training",
)  # fmt: skip

# Public name -> the folder that holds it.
_HOMES = {
    # the local map of a model
    "At": "geometry",
    "LocalAffine": "geometry",
    "local_affine": "geometry",
    # one number per sample, from a Jacobian
    "alignment_ratio": "geometry",
    "centroid_alignment": "geometry",
    "effective_rank": "geometry",
    "local_robustness": "geometry",
    "normal_alignment": "geometry",
    "participation_rank": "geometry",
    "power_diagram": "geometry",
    "PowerDiagram": "geometry",
    # all of them at once, without building the Jacobian
    "LocalGeometry": "geometry",
    "local_geometry": "geometry",
    "LayerProfile": "geometry",
    "layer_profile": "geometry",
    # pull a model towards alignment while it trains
    "GrokAlign": "regularizers",
    "tune_weight": "training",
    # kernel machines for tables
    "RFAMClassifier": "estimators",
    "RFAMClassifierCV": "estimators",
    "RFAMRegressor": "estimators",
    "RFAMRegressorCV": "estimators",
    "RFMClassifier": "estimators",
    "RFMRegressor": "estimators",
    "make_tabular_pipeline": "estimators",
    # many networks at once
    "Ensemble": "training",
    "Member": "training",
    # pictures
    "plot_centroids": "plots",
    "plot_partition": "plots",
    "plot_profile": "plots",
}

__all__ = [
    "At",
    "Ensemble",
    "GrokAlign",
    "LayerProfile",
    "LocalAffine",
    "LocalGeometry",
    "Member",
    "PowerDiagram",
    "RFAMClassifier",
    "RFAMClassifierCV",
    "RFAMRegressor",
    "RFAMRegressorCV",
    "RFMClassifier",
    "RFMRegressor",
    "__version__",
    "alignment_ratio",
    "centroid_alignment",
    "data",
    "effective_rank",
    "estimators",
    "geometry",
    "kernels",
    "layer_profile",
    "local_affine",
    "local_geometry",
    "local_robustness",
    "make_tabular_pipeline",
    "nn",
    "normal_alignment",
    "optim",
    "participation_rank",
    "plot_centroids",
    "plot_partition",
    "plot_profile",
    "plots",
    "power_diagram",
    "regularizers",
    "robustness",
    "theory",
    "training",
    "tune_weight",
]


def __getattr__(name: str) -> Any:
    if name in _FOLDERS:
        return importlib.import_module(f"normalign.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"normalign.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'normalign' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:  # what type checkers and editors see; keep in step with _HOMES
    from normalign import (
        data as data,
    )
    from normalign import (
        estimators as estimators,
    )
    from normalign import (
        geometry as geometry,
    )
    from normalign import (
        kernels as kernels,
    )
    from normalign import (
        nn as nn,
    )
    from normalign import (
        optim as optim,
    )
    from normalign import (
        plots as plots,
    )
    from normalign import (
        regularizers as regularizers,
    )
    from normalign import (
        robustness as robustness,
    )
    from normalign import (
        theory as theory,
    )
    from normalign import (
        training as training,
    )
    from normalign.estimators import (
        RFAMClassifier as RFAMClassifier,
    )
    from normalign.estimators import (
        RFAMClassifierCV as RFAMClassifierCV,
    )
    from normalign.estimators import (
        RFAMRegressor as RFAMRegressor,
    )
    from normalign.estimators import (
        RFAMRegressorCV as RFAMRegressorCV,
    )
    from normalign.estimators import (
        RFMClassifier as RFMClassifier,
    )
    from normalign.estimators import (
        RFMRegressor as RFMRegressor,
    )
    from normalign.estimators import (
        make_tabular_pipeline as make_tabular_pipeline,
    )
    from normalign.geometry import (
        At as At,
    )
    from normalign.geometry import (
        LayerProfile as LayerProfile,
    )
    from normalign.geometry import (
        LocalAffine as LocalAffine,
    )
    from normalign.geometry import (
        LocalGeometry as LocalGeometry,
    )
    from normalign.geometry import (
        PowerDiagram as PowerDiagram,
    )
    from normalign.geometry import (
        alignment_ratio as alignment_ratio,
    )
    from normalign.geometry import (
        centroid_alignment as centroid_alignment,
    )
    from normalign.geometry import (
        effective_rank as effective_rank,
    )
    from normalign.geometry import (
        layer_profile as layer_profile,
    )
    from normalign.geometry import (
        local_affine as local_affine,
    )
    from normalign.geometry import (
        local_geometry as local_geometry,
    )
    from normalign.geometry import (
        local_robustness as local_robustness,
    )
    from normalign.geometry import (
        normal_alignment as normal_alignment,
    )
    from normalign.geometry import (
        participation_rank as participation_rank,
    )
    from normalign.geometry import (
        power_diagram as power_diagram,
    )
    from normalign.plots import (
        plot_centroids as plot_centroids,
    )
    from normalign.plots import (
        plot_partition as plot_partition,
    )
    from normalign.plots import (
        plot_profile as plot_profile,
    )
    from normalign.regularizers import (
        GrokAlign as GrokAlign,
    )
    from normalign.training import (
        Ensemble as Ensemble,
    )
    from normalign.training import (
        Member as Member,
    )
    from normalign.training import (
        tune_weight as tune_weight,
    )
