"""The exact partition of a plane of inputs by a continuous piecewise-affine network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from normalign._errors import require, require_kind
from normalign._torch_compat import unwrap
from normalign.geometry._partition.cuts import upper_envelopes
from normalign.geometry._partition.piecewise import piecewise_affine
from normalign.geometry._partition.polygons import Polygons, locator
from normalign.geometry._partition.slices import Slice
from normalign.geometry._partition.subdivision import (
    BATCH_SIZE,
    NOISE,
    RESOLUTION,
    Subdivision,
    on_vertices,
)

__all__ = [
    "ClassCells",
    "DecisionBoundaries",
    "LevelSets",
    "Partition",
    "Slice",
    "partition",
]


@dataclass(frozen=True)
class LevelSets:
    """The segments along which the units of each layer switch.

    Where two units switch along the same line, the segment is listed for the first of
    them only.

    Parameters
    ----------
    layer : Tensor of shape (e,)
        Position among the partition's ``layers``.
    unit : Tensor of shape (e,)
        The unit, its layer's output flattened.
    ends : Tensor of shape (e, 2, 2)
        The two end points, in the coordinates of the slice.
    """

    layer: Tensor
    unit: Tensor
    ends: Tensor

    def __len__(self) -> int:
        return len(self.layer)


@dataclass(frozen=True)
class DecisionBoundaries:
    """The segments along which the two largest outputs are equal.

    Parameters
    ----------
    region : Tensor of shape (e,)
        The region that the segment crosses.
    classes : Tensor of shape (e, 2)
        The two outputs, ascending. A single output is compared with zero, which is
        listed as class 1.
    ends : Tensor of shape (e, 2, 2)
        The two end points, in the coordinates of the slice.
    """

    region: Tensor
    classes: Tensor
    ends: Tensor

    def __len__(self) -> int:
        return len(self.region)


@dataclass(frozen=True)
class ClassCells:
    """The regions of a partition cut along the decision boundaries.

    Parameters
    ----------
    region : Tensor of shape (n,)
        The region that the cell is part of.
    label : Tensor of shape (n,)
        The largest output in the cell; for a network with one output, 0 where it is
        positive and 1 where it is negative.
    cells : Polygons
        The cells in padded form; ``polygons`` is the list of them.
    """

    region: Tensor
    label: Tensor
    cells: Polygons

    def __len__(self) -> int:
        return len(self.cells)

    @cached_property
    def polygons(self) -> list[Tensor]:
        """The corners of each cell, (v, 2), counter-clockwise."""
        return self.cells.corners()


@dataclass(frozen=True)
class Partition:
    r"""A plane of inputs cut into the convex polygons on which a network is affine.

    .. math:: f(\text{origin} + p_1 \text{axis}_1 + p_2 \text{axis}_2)
        = A_\omega p + b_\omega \quad\text{for } p \in \omega

    This is Eq. (spline1) of the paper, restricted to a plane. Made by
    :func:`partition`; all tensors are float64. Calling a partition with points of
    shape (m, 2) returns the network's outputs there, (m, k).

    Parameters
    ----------
    slope : Tensor of shape (n, k, 2)
        :math:`A_\omega`, the Jacobian in the coordinates of the slice.
    offset : Tensor of shape (n, k)
        :math:`b_\omega`.
    level_sets : LevelSets
    layers : tuple of str
        The names of the modules that cut, in the order of computation.
    slice_ : Slice
    cells : Polygons
        The polygons in padded form; ``polygons`` is the list of them.
    """

    slope: Tensor
    offset: Tensor
    level_sets: LevelSets
    layers: tuple[str, ...]
    slice_: Slice
    cells: Polygons

    def __len__(self) -> int:
        return len(self.cells)

    def __repr__(self) -> str:
        edges = torch.bincount(self.level_sets.layer, minlength=len(self.layers))
        names = ", ".join(
            f"{name}: {count}"
            for name, count in zip(self.layers, edges.tolist(), strict=True)
        )
        return (
            f"Partition({len(self)} regions of area {float(self.areas.sum()):.6g}, "
            f"{self.offset.shape[1]} outputs, edges by layer {{{names}}})"
        )

    def __call__(self, points: Tensor) -> Tensor:
        """Return the network's outputs, (m, k), at points of the plane, (m, 2)."""
        region = self.region_of(points)
        inside = bool((region >= 0).all())
        require(inside, "Partition", "points", "inside the bounds", points)
        p = points.to(self.slope)
        return (self.slope[region] @ p[..., None])[..., 0] + self.offset[region]

    @cached_property
    def polygons(self) -> list[Tensor]:
        """The corners of each region, (v, 2), counter-clockwise."""
        return self.cells.corners()

    @cached_property
    def areas(self) -> Tensor:
        """The area of each region, (n,), in the coordinates of the slice."""
        return self.cells.areas()

    @cached_property
    def centers(self) -> Tensor:
        """The centre of mass of each region, (n, 2)."""
        return self.cells.centroids()

    @cached_property
    def _locate(self) -> Callable[[Tensor], Tensor]:
        return locator(self.cells)

    def region_of(self, points: Tensor) -> Tensor:
        """The region that each point lies in; -1 outside of the bounds.

        A point on an edge is given to one of the regions that share it.

        Parameters
        ----------
        points : Tensor of shape (m, 2)

        Returns
        -------
        Tensor of shape (m,)
        """
        shaped = points.ndim == 2 and points.shape[1] == 2
        require(shaped, "region_of", "points", "of shape (m, 2)", points)
        return self._locate(points.to(self.slope))

    def decision_boundaries(self) -> DecisionBoundaries:
        """Return the segments where the two largest outputs tie.

        The predicted class is the largest output or, for a network with one output,
        its sign. Exact in every region. A tie along an edge between two regions, or on
        the whole of a region, is not listed: it is not crossed inside a region.

        Returns
        -------
        DecisionBoundaries
        """
        return self._decisions[1]

    def class_cells(self) -> ClassCells:
        """Return the regions, cut further along the decision boundaries.

        Returns
        -------
        ClassCells
        """
        return self._decisions[0]

    @cached_property
    def _decisions(self) -> tuple[ClassCells, DecisionBoundaries]:
        functions = torch.cat([self.slope, self.offset[..., None]], -1)
        if functions.shape[1] == 1:
            functions = torch.cat([functions, torch.zeros_like(functions)], 1)
        span = self.cells.vertices.amax((0, 1)) - self.cells.vertices.amin((0, 1))
        reach = self.cells.vertices.norm(dim=-1).amax()
        scale = functions[..., 2].abs() + reach * functions[..., :2].norm(dim=-1)
        noise = scale.amax(1) * NOISE
        cells, origin, region, classes, ends = [], [], [], [], []
        size = max(1, BATCH_SIZE // (functions.shape[1] * 3 * 16))
        for rows in torch.arange(len(self), device=noise.device).split(size):
            contenders, index = _contenders(self.cells[rows], functions[rows])
            found = upper_envelopes(
                self.cells[rows],
                torch.arange(len(rows), device=rows.device),
                contenders,
                noise=noise[rows],
                resolution=float(span.norm()) * RESOLUTION,
                limit=2**62,
            )
            cells.append(found.polygons)
            origin.append(rows[found.origin])
            region.append(rows[found.cause])
            classes.append(index[found.cause].gather(1, found.pair).sort(1).values)
            ends.append(found.ends)
        pieces, home = Polygons.concatenate(cells), torch.cat(origin)
        inner = pieces.inner_points()[..., None]
        outputs = (functions[home][..., :2] @ inner)[..., 0] + functions[home][..., 2]
        return (
            ClassCells(home, outputs.argmax(1), pieces),
            DecisionBoundaries(torch.cat(region), torch.cat(classes), torch.cat(ends)),
        )


@torch.no_grad()
def partition(
    model: nn.Module,
    slice_: Slice | None = None,
    *,
    bounds: Sequence[float] | Tensor = (-1.0, 1.0, -1.0, 1.0),
    max_regions: int = 200_000,
) -> Partition:
    r"""Cut a plane of inputs into the regions on which a network is affine.

    .. math:: f(x) = \sum_{\omega\in\Omega} (A_\omega x + b_\omega) 1_{\{x\in\omega\}}

    (Eq. (spline1) of the paper), for :math:`x` in the plane. Exact up to rounding, as
    SplineCam [1]_ is: the plane is cut layer by layer by the lines on which a unit
    changes its piece, each found from the affine map of the region so far. Parts of
    a region thinner than 1e-10 of its diameter, or 1e-13 of the bounds, are not cut
    off. Computed in float64 whatever the model's dtype, on its device.

    The number of regions grows about with the square of the number of units, and time
    with regions times weights; memory is bounded, since regions go through the
    network in batches, depth first. To look at one point only, use ``local_affine``.

    Parameters
    ----------
    model : torch.nn.Module
        Of linear and convolutional layers, piecewise-linear activations, max and
        average pooling, shortcuts, and dropout and batch normalisation in evaluation
        mode. Its ``forward`` may be its own as long as it can be traced.
    slice_ : Slice, optional
        The plane; for a model of two inputs, the inputs themselves by default.
    bounds : four numbers or a Tensor of shape (v, 2)
        Least and largest first coordinate, least and largest second one; or the
        corners of a convex polygon, in order. In the coordinates of the slice.
    max_regions : int
        Refuse to go on beyond this many.

    Returns
    -------
    Partition

    Raises
    ------
    TypeError
        If the model holds a module that is not continuous piecewise affine.
    ValueError
        If dropout or batch normalisation is in training mode, the model does not take
        the slice's points, the bounds are no convex polygon of positive area, or there
        are more regions than ``max_regions``.

    References
    ----------
    .. [1] Humayun, Balestriero, Balakrishnan, Baraniuk: SplineCam: exact visualization
       and characterization of deep network geometry and decision boundaries, 2023
       (arXiv:2302.12828)

    Examples
    --------
    >>> regions = partition(nn.ReLU())  # each axis is one line: four quadrants
    >>> len(regions), float(regions.areas.sum())
    (4, 4.0)
    """
    if slice_ is None:
        slice_ = Slice(torch.zeros(2), torch.eye(2))
    require_kind(isinstance(slice_, Slice), "partition", "slice_", "a Slice", slice_)
    require(max_regions >= 1, "partition", "max_regions", "at least 1", max_regions)
    device = _device(model, slice_)
    plane = slice_.to(device, torch.float64)
    network = piecewise_affine(model, plane.origin.shape, device=device)
    frame = _frame(bounds, device)
    found = Subdivision(network, float(frame.diameters()), max_regions)
    start = torch.stack([*plane.axes, plane.origin])[None]
    found.descend(0, frame, {0: start})
    maps = found.maps()
    result = Partition(
        slope=maps[:, :2].transpose(1, 2).contiguous(),
        offset=maps[:, 2].contiguous(),
        level_sets=LevelSets(*found.segments()),
        layers=found.names,
        slice_=slice_,
        cells=found.polygons(),
    )
    _require_agreement(model, result)
    return result


def _device(model: Any, slice_: Slice) -> torch.device:
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    device = slice_.origin.device if first is None else first.device
    # Apple's devices have no float64.
    return torch.device("cpu") if device.type in ("mps", "meta") else device


def _require_agreement(model: nn.Module, found: Partition) -> None:
    """Run the model itself at a few points: hooks and in-place layers may change it."""
    largest = found.areas.topk(min(8, len(found))).indices
    points = found.centers[largest]
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    inputs = found.slice_.embed(points.to(found.slice_.origin.device))
    inputs = inputs if first is None else inputs.to(first)
    outputs = unwrap(model)(inputs).flatten(1).to(found.offset)
    expected = (found.slope[largest] @ points[..., None])[..., 0] + found.offset[
        largest
    ]
    scale = max(float(expected.abs().max()), float(found.offset.abs().max()))
    difference = float((outputs - expected).abs().max())
    require(
        difference <= torch.finfo(inputs.dtype).eps ** (1 / 3) * scale,
        "partition", "model", "the composition of its modules",
        f"outputs that differ from it by {difference:.3g}",
        "Remove hooks that change results, and set inplace=False on activations whose "
        "input is used again.",
    )  # fmt: skip


def _frame(bounds: Sequence[float] | Tensor, device: torch.device) -> Polygons:
    """The polygon of the bounds, counter-clockwise."""
    corners = torch.as_tensor(bounds, dtype=torch.float64).detach().to(device)
    if corners.shape == (4,):
        left, right, low, high = corners.unbind()
        rule = "(left, right, low, high) with left < right and low < high"
        proper = bool((left < right) & (low < high))
        require(proper, "partition", "bounds", rule, bounds)
        corners = torch.stack(
            [left, low, right, low, right, high, left, high]
        ).view(4, 2)  # fmt: skip
    rule = "four numbers or the corners of a convex polygon, (v, 2)"
    shaped = corners.ndim == 2 and corners.shape[1] == 2 and len(corners) >= 3
    finite = shaped and bool(corners.isfinite().all())
    require(finite, "partition", "bounds", rule, bounds)
    if bool(_turns(corners).sum() < 0):
        corners = corners.flip(0)
    turns = _turns(corners)
    frame = Polygons(corners[None], torch.tensor([len(corners)], device=device))
    # A star turns left at each corner, too, but goes around twice.
    once = bool(turns.sum() < 3 * torch.pi)
    convex = bool((turns > -1e-9).all()) and once and bool(frame.areas() > 0)
    require(convex, "partition", "bounds", rule, bounds, "Give them in order.")
    return frame


def _contenders(cells: Polygons, functions: Tensor) -> tuple[Tensor, Tensor]:
    """Those functions of each cell that may be the largest somewhere in it.

    A function whose largest value is below another's least is none of them. Their
    number differs between cells; absent ones have an offset of minus infinity.
    """
    at_vertices = on_vertices(cells, functions.transpose(1, 2))
    high, low = at_vertices.amax(1), at_vertices.amin(1)
    able = high >= low.amax(1, keepdim=True)
    size = int(able.sum(1).max())
    index = able.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :size]
    chosen = functions.gather(1, index[..., None].expand(-1, -1, 3))
    absent = functions.new_tensor([0.0, 0.0, -torch.inf])
    return torch.where(able.gather(1, index)[..., None], chosen, absent), index


def _turns(corners: Tensor) -> Tensor:
    """Return the angle, in (-pi, pi], by which the boundary turns at each corner."""
    sides = corners.roll(-1, 0) - corners
    heading = torch.atan2(sides[:, 1], sides[:, 0])
    change = torch.remainder(heading.roll(-1) - heading + torch.pi, 2 * torch.pi)
    return change - torch.pi
