"""Regions of a plane on their way through the layers of a network."""

from __future__ import annotations

import torch
from torch import Tensor

from normalign._errors import require
from normalign.geometry._partition.cuts import Cells, arrangement, upper_envelopes
from normalign.geometry._partition.polygons import Polygons
from normalign.geometry._partition.steps import Affine, Kinked, Maximum, PiecewiseAffine

__all__ = ["BATCH_SIZE", "NOISE", "RESOLUTION", "Subdivision", "on_vertices"]

# Numbers in the largest tensor of one batch of regions; 32 MiB of float64.
BATCH_SIZE = 2**22
# Values this small, relative to the layer's largest, are taken as rounding.
NOISE = 2.0**-46
# Shortest length that is resolved, relative to the bounds.
RESOLUTION = 1e-13


class Subdivision:
    """Takes batches of regions through the steps of a network, depth first."""

    def __init__(self, network: PiecewiseAffine, span: float, limit: int) -> None:
        self.network = network
        self.resolution = span * RESOLUTION
        self.limit = limit
        self.found = 0
        cutting = [s for s in network.steps if not isinstance(s, Affine)]
        self.layers = {id(step): number for number, step in enumerate(cutting)}
        self.names = tuple(step.path or type(step).__name__ for step in cutting)
        widest = max(torch.Size(shape).numel() for shape in network.shapes)
        self.batch = max(1, BATCH_SIZE // (3 * widest))
        self.regions: list[tuple[Polygons, Tensor]] = []
        self.edges: list[tuple[Tensor, Tensor, Tensor]] = []

    def descend(self, position: int, cells: Polygons, maps: dict[int, Tensor]) -> None:
        """Take regions from a step to the end.

        ``maps[register]``, of shape (regions, 3, ...), is the affine map from the slice
        to that register: its two slopes and its offset.
        """
        for number in range(position, len(self.network.steps)):
            step = self.network.steps[number]
            alive = self.network.needed_after(number)
            inputs = [maps[source] for source in step.sources]
            maps = {key: value for key, value in maps.items() if key in alive}
            if isinstance(step, Affine):
                maps[step.target] = _affine_image(step, inputs)
                continue
            flat = inputs[0].flatten(2)
            pieces = self._cut(step, cells, flat)
            self._check_room(len(pieces.polygons) - len(cells))
            total = len(pieces.polygons)
            for rows in torch.arange(total).tensor_split(-(-total // self.batch)):
                rows = rows.to(flat.device)
                part, origin = pieces.polygons[rows], pieces.origin[rows]
                image = _image(step, part, flat[origin])
                inherited = {key: value[origin] for key, value in maps.items()}
                inherited[step.target] = image.unflatten(
                    2, self.network.shapes[step.target]
                )
                self.descend(number + 1, part, inherited)
            return
        self.regions.append((cells, maps[self.network.output].flatten(2)))

    def _check_room(self, new: int) -> None:
        self.found += new
        require(
            self.found < self.limit,
            "partition", "max_regions", "at least the number of regions",
            f"{self.limit}, and more regions",
            "Look at smaller bounds, or raise max_regions.",
        )  # fmt: skip

    def _cut(self, step: Kinked | Maximum, cells: Polygons, flat: Tensor) -> Cells:
        if isinstance(step, Kinked):
            return self._kinks(step, cells, flat)
        return self._ties(step, cells, flat)

    def _kinks(self, step: Kinked, cells: Polygons, flat: Tensor) -> Cells:
        """Cut regions along the lines where a unit passes one of its kinks."""
        at_vertices = on_vertices(cells, flat)
        high, low = at_vertices.amax(1), at_vertices.amin(1)
        noise = torch.maximum(high, -low).amax(1) * NOISE
        homes, units, lines = [], [], []
        for kink, before, after in zip(
            step.kinks, step.slopes, step.slopes[1:], strict=False
        ):
            crossing = (high > kink) & (low < kink) & (before != after)
            home, unit = crossing.nonzero(as_tuple=True)
            line = flat[home, :, unit]
            line = torch.cat([line[:, :2], line[:, 2:] - kink], 1)
            homes.append(home)
            units.append(unit)
            lines.append(line)
        home, unit = torch.cat(homes), torch.cat(units)
        pieces = arrangement(
            cells,
            home,
            torch.cat(lines),
            noise=noise[home],
            resolution=self.resolution,
            limit=len(cells) + self.limit - self.found,
        )
        self._record(step, unit[pieces.cause], pieces.ends)
        return pieces

    def _ties(self, step: Maximum, cells: Polygons, flat: Tensor) -> Cells:
        """Cut regions along the lines where the maximum of a window changes hands."""
        at_vertices = on_vertices(cells, flat)
        high, low = at_vertices.amax(1), at_vertices.amin(1)
        noise = torch.maximum(high, -low).amax(1) * NOISE
        # A window needs a look only where the range of a rival reaches that of the
        # unit that is the largest inside; upper_envelopes then looks closely.
        largest = _winners(step, cells, flat)
        least = low.gather(1, largest) + noise[:, None]
        contested = torch.zeros_like(largest, dtype=torch.bool)
        for place in step.windows.unbind(1):
            reaching = high.index_select(1, place.clamp_min(0)) > least
            contested |= reaching & (place >= 0) & (place != largest)
        home, unit = contested.nonzero(as_tuple=True)
        places = step.windows[unit]
        functions = flat[home[:, None], :, places.clamp_min(0)]
        missing = (places < 0)[..., None]
        absent = functions.new_tensor([0.0, 0.0, -torch.inf])
        pieces = upper_envelopes(
            cells,
            home,
            torch.where(missing, absent, functions),
            noise=noise[home],
            resolution=self.resolution,
            limit=len(cells) + self.limit - self.found,
        )
        self._record(step, unit[pieces.cause], pieces.ends)
        return pieces

    def _record(self, step: Kinked | Maximum, unit: Tensor, ends: Tensor) -> None:
        layer = torch.full_like(unit, self.layers[id(step)])
        self.edges.append((layer, unit, ends))

    def maps(self) -> Tensor:
        """Return the affine map of each region found, (n, 3, k)."""
        return torch.cat([maps for _, maps in self.regions])

    def polygons(self) -> Polygons:
        """Return the regions found."""
        return Polygons.concatenate([cells for cells, _ in self.regions])

    def segments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the edges found: their layers, units, and end points (e, 2, 2)."""
        if not self.edges:
            empty = self.regions[0][1].new_empty(0, 2, 2)
            return empty[:, 0, 0].long(), empty[:, 0, 0].long(), empty
        layer, unit, ends = zip(*self.edges, strict=True)
        return torch.cat(layer), torch.cat(unit), torch.cat(ends)


def on_vertices(cells: Polygons, flat: Tensor) -> Tensor:
    """The values of maps (n, 3, units) at the vertices: (n, v, units)."""
    return torch.baddbmm(flat[:, 2:], cells.vertices, flat[:, :2])


def _inside(cells: Polygons, flat: Tensor) -> Tensor:
    """The values of maps (n, 3, units) at a point inside: (n, units)."""
    return torch.baddbmm(flat[:, 2:], cells.inner_points()[:, None], flat[:, :2])[:, 0]


def _affine_image(step: Affine, inputs: list[Tensor]) -> Tensor:
    image = step.linear(*[maps.flatten(0, 1) for maps in inputs])
    image = image.unflatten(0, inputs[0].shape[:2])
    if step.shift is not None:
        image[:, 2] += step.shift
    return image


def _image(step: Kinked | Maximum, cells: Polygons, flat: Tensor) -> Tensor:
    if isinstance(step, Kinked):
        return _kinked_image(step, cells, flat)
    winners = _winners(step, cells, flat)
    return flat.gather(2, winners[:, None].expand(-1, 3, -1))


def _kinked_image(step: Kinked, cells: Polygons, flat: Tensor) -> Tensor:
    inside = _inside(cells, flat)
    piece = torch.bucketize(inside, step.kinks)
    units = torch.zeros_like(piece)
    if step.slopes.shape[1] > 1:
        units = torch.arange(piece.shape[1], device=piece.device).expand_as(piece)
    image = flat * step.slopes[piece, units][:, None]
    image[:, 2] += step.intercepts[piece, units]
    return image


def _winners(step: Maximum, cells: Polygons, flat: Tensor) -> Tensor:
    """The unit that is the largest of each window inside each cell."""
    inside = _inside(cells, flat)
    places = step.windows.clamp_min(0)
    values = inside.index_select(1, places.flatten()).view(-1, *places.shape)
    values = torch.where(step.windows >= 0, values, -torch.inf)
    best = values.argmax(-1, keepdim=True)
    return places.expand(len(best), -1, -1).gather(-1, best)[..., 0]
