"""Many convex polygons at once, in one padded tensor: areas, centres, location."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Polygons", "locator"]


@dataclass(frozen=True)
class Polygons:
    """Convex polygons, counter-clockwise, padded by repeating their last vertex.

    Because of the repeated vertex the padding adds nothing to a maximum, a minimum or
    a sum over edges, and needs no mask there.

    Parameters
    ----------
    vertices : Tensor of shape (n, v, 2)
    counts : Tensor of shape (n,)
        How many of the ``v`` rows of each polygon are vertices.
    """

    vertices: Tensor
    counts: Tensor

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, index: Tensor | slice) -> Polygons:
        return Polygons(self.vertices[index], self.counts[index])

    @staticmethod
    def concatenate(parts: list[Polygons]) -> Polygons:
        """All polygons of all parts, in order."""
        width = max(part.vertices.shape[1] for part in parts)
        return Polygons(
            torch.cat([_widen(part.vertices, width) for part in parts]),
            torch.cat([part.counts for part in parts]),
        )

    def replaced(self, index: Tensor, other: Polygons) -> Polygons:
        """The same polygons with those at ``index`` exchanged for ``other``."""
        width = max(self.vertices.shape[1], other.vertices.shape[1])
        return Polygons(
            _widen(self.vertices, width).index_copy(
                0, index, _widen(other.vertices, width)
            ),
            self.counts.index_copy(0, index, other.counts),
        )

    def corners(self) -> list[Tensor]:
        """Return each polygon's vertices alone, (v, 2)."""
        pairs = zip(self.vertices, self.counts.tolist(), strict=True)
        return [vertices[:count] for vertices, count in pairs]

    def real(self) -> Tensor:
        """Mask of shape (n, v): true for vertices, false for padding."""
        slots = torch.arange(self.vertices.shape[1], device=self.counts.device)
        return slots < self.counts[:, None]

    def inner_points(self) -> Tensor:
        """The mean of the vertices of each polygon, a point inside it."""
        weight = self.real().to(self.vertices) / self.counts[:, None]
        return (self.vertices * weight[..., None]).sum(1)

    def diameters(self) -> Tensor:
        """The diagonal of each polygon's bounding box."""
        return (self.vertices.amax(1) - self.vertices.amin(1)).norm(dim=-1)

    def areas(self) -> Tensor:
        """The area of each polygon, by the shoelace formula about its first vertex."""
        return self._crosses().sum(1) / 2

    def centroids(self) -> Tensor:
        """The centre of mass of each polygon."""
        crosses = self._crosses()
        arms = self.vertices - self.vertices[:, :1]
        moment = ((arms + arms.roll(-1, 1)) * crosses[..., None]).sum(1) / 3
        total = crosses.sum(1, keepdim=True)
        usable = total > 0
        central = self.vertices[:, 0] + moment / torch.where(usable, total, 1.0)
        return torch.where(usable, central, self.inner_points())

    def _crosses(self) -> Tensor:
        # About the first vertex: a small polygon far from zero keeps its digits.
        arms = self.vertices - self.vertices[:, :1]
        nexts = arms.roll(-1, 1)
        return arms[..., 0] * nexts[..., 1] - arms[..., 1] * nexts[..., 0]


def locator(polygons: Polygons) -> Callable[[Tensor], Tensor]:
    """Return a function that says which polygon each point of (m, 2) lies in.

    The polygons are entered in the boxes of a square grid, about as many boxes as
    polygons, so that a point is compared with a few polygons only. Of several that
    hold the point, up to rounding, the one that holds it most deeply is taken; a point
    in none is given -1.
    """
    corner = polygons.vertices.amin((0, 1))
    extent = polygons.vertices.amax((0, 1)) - corner
    side = max(1, int(len(polygons) ** 0.5))

    def box(points: Tensor) -> Tensor:
        return ((points - corner) / extent * side).long().clamp(0, side - 1)

    first, last = box(polygons.vertices.amin(1)), box(polygons.vertices.amax(1))
    size = last - first + 1
    member, rank = _repeat_indices(size.prod(1))
    across, up = rank % size[member, 0], rank // size[member, 0]
    cell = (first[member, 0] + across) * side + first[member, 1] + up
    member = member[cell.argsort()]
    filled = torch.bincount(cell, minlength=side * side)
    start = filled.cumsum(0) - filled
    slack = 1e-12 * float(extent.norm())

    def locate(points: Tensor) -> Tensor:
        found = torch.full((len(points),), -1, device=points.device)
        place = box(points)
        place = place[:, 0] * side + place[:, 1]
        query, rank = _repeat_indices(filled[place])
        candidate = member[start[place[query]] + rank]
        depth = _depths(polygons[candidate], points[query])
        best = depth.new_full((len(points),), -slack)
        best = best.scatter_reduce(0, query, depth, "amax")
        winning = (depth == best[query]) & (depth >= -slack)
        found[query[winning]] = candidate[winning]
        return found

    return locate


def _depths(polygons: Polygons, points: Tensor) -> Tensor:
    """The distance of each point to the nearest side; negative outside."""
    starts = polygons.vertices
    sides = starts.roll(-1, 1) - starts
    arms = points[:, None] - starts
    length = sides.norm(dim=-1)
    cross = sides[..., 0] * arms[..., 1] - sides[..., 1] * arms[..., 0]
    depth = torch.where(length > 0, cross / length, torch.inf)
    return depth.amin(1)


def _repeat_indices(times: Tensor) -> tuple[Tensor, Tensor]:
    """Each index repeated as often as told, and the number of the repetition."""
    row = torch.repeat_interleave(times)
    rank = torch.arange(len(row), device=row.device)
    return row, rank - (times.cumsum(0) - times)[row]


def _widen(vertices: Tensor, width: int) -> Tensor:
    missing = width - vertices.shape[1]
    if missing <= 0:
        return vertices
    return torch.cat([vertices, vertices[:, -1:].expand(-1, missing, -1)], 1)
