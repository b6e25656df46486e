"""The exact partition of a 2-D slice of input space by a piecewise-affine network.

==================  ================================================================
`tiles.py`          `partition` and what it returns
`slices.py`         `Slice`: a plane through input space
`piecewise.py`      a network as a list of piecewise-affine steps; `Residual`
`steps.py`          the three kinds of step
`tracing.py`        modules with a `forward` of their own, followed by torch.fx
`subdivision.py`    the tiles, taken through the steps
`cuts.py`           polygons cut by lines and by upper envelopes
`polygons.py`       batches of convex polygons
==================  ================================================================
"""

from normalign.geometry._partition.piecewise import Residual
from normalign.geometry._partition.slices import Slice
from normalign.geometry._partition.tiles import (
    ClassCells,
    DecisionBoundaries,
    LevelSets,
    Partition,
    partition,
)

__all__ = [
    "ClassCells",
    "DecisionBoundaries",
    "LevelSets",
    "Partition",
    "Residual",
    "Slice",
    "partition",
]
