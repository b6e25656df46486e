r"""Cuts of convex polygons by lines and by upper envelopes of affine functions.

Rounding is dealt with by one rule: a line cuts a polygon only when the polygon has
vertices farther than the *tolerance* on both of its sides,

.. math:: \max(10^{-10} \, \text{diameter of the polygon}, \text{resolution}),

and a vertex closer than that to the line is taken as lying on it. A sliver thinner
than the tolerance is therefore never cut off; it stays with the larger side. Both
pieces of a cut share the same two end points, so no area is lost or counted twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normalign.geometry._partition.polygons import Polygons

__all__ = ["Cells", "arrangement", "tolerance", "upper_envelopes"]

_RELATIVE_TOLERANCE = 1e-10


@dataclass(frozen=True)
class Cells:
    """What polygons were cut into, and the edges along which they were cut.

    Parameters
    ----------
    polygons : Polygons
        The pieces.
    origin : Tensor of shape (number of pieces,)
        Which of the given polygons each piece is part of.
    ends : Tensor of shape (number of edges, 2, 2)
        The two end points of each new edge.
    cause : Tensor of shape (number of edges,)
        The index of the line (or envelope) that made the edge.
    pair : Tensor of shape (number of edges, 2)
        For envelopes, the two functions that tie along the edge.
    """

    polygons: Polygons
    origin: Tensor
    ends: Tensor
    cause: Tensor
    pair: Tensor


def tolerance(polygons: Polygons, *, resolution: float) -> Tensor:
    """The distance below which a vertex counts as lying on a line."""
    return (polygons.diameters() * _RELATIVE_TOLERANCE).clamp_min(resolution)


def arrangement(
    polygons: Polygons,
    home: Tensor,
    lines: Tensor,
    *,
    noise: Tensor,
    resolution: float,
    limit: int,
) -> Cells:
    r"""Cut each polygon by all of its lines.

    A line is the zero set of :math:`a_1 p_1 + a_2 p_2 + a_3`. Each round cuts every
    polygon that is still crossed by some line with the most central of its lines, and
    hands the other lines down to both pieces, which drop those that miss them. The
    number of rounds is therefore about the logarithm of the number of pieces, and the
    work is proportional to the number of (piece, crossing line) pairs.

    Parameters
    ----------
    home : Tensor of shape (m,)
        The polygon that each line is to cut.
    lines : Tensor of shape (m, 3)
    noise : Tensor of shape (m,)
        Values of the line's function up to this are rounding, hence zero.
    resolution : float
        The least tolerance, see the module.
    limit : int
        Give up (return early, with more pieces than this) once there are more.
    """
    origin = torch.arange(len(polygons), device=home.device)
    cause = torch.arange(len(home), device=home.device)
    finished: list[tuple[Polygons, Tensor]] = []
    edges, causes = [lines.new_empty(0, 2, 2)], [cause[:0]]
    total = len(polygons)
    while len(home) and total <= limit:
        values = _values(polygons.vertices[home], lines)
        above, below = values.amax(1), -values.amin(1)
        steepness = lines[:, :2].norm(dim=-1)
        snap = tolerance(polygons, resolution=resolution)[home] * steepness + noise
        crossing = (above > snap) & (below > snap)
        home, lines, noise, cause = (t[crossing] for t in (home, lines, noise, cause))
        if not len(home):
            break
        depth = (torch.minimum(above, below) / steepness)[crossing]
        chosen = _best_of_each(home, depth, len(polygons))
        cut = torch.zeros(len(polygons), dtype=torch.bool, device=home.device)
        cut[home[chosen]] = True
        finished.append((polygons[~cut], origin[~cut]))
        left, right, ends = _cut(
            polygons[home[chosen]], values[crossing][chosen], snap[crossing][chosen]
        )
        edges.append(ends)
        causes.append(cause[chosen])
        parent = home[chosen].repeat(2)
        rest = torch.ones_like(home, dtype=torch.bool)
        rest[chosen] = False
        kept, home = _handed_down(home[rest], parent, len(polygons))
        lines, noise, cause = (t[rest][kept] for t in (lines, noise, cause))
        polygons, origin = Polygons.concatenate([left, right]), origin[parent]
        total += len(chosen)
    finished.append((polygons, origin))
    pieces = Polygons.concatenate([part for part, _ in finished])
    cause = torch.cat(causes)
    return Cells(
        pieces,
        torch.cat([part for _, part in finished]),
        torch.cat(edges),
        cause,
        cause.new_zeros(len(cause), 2),
    )


def upper_envelopes(
    polygons: Polygons,
    home: Tensor,
    functions: Tensor,
    *,
    noise: Tensor,
    resolution: float,
    limit: int,
) -> Cells:
    r"""Cut each polygon into the cells on which one affine function is the largest.

    An envelope is a set of affine functions :math:`p \mapsto a_1 p_1 + a_2 p_2 + a_3`.
    The cell of a function is the convex part of the polygon where no other exceeds it;
    it is clipped out directly, so the line along which two functions tie is drawn only
    where no third one exceeds them. A cell thinner than the tolerance is given to its
    neighbours.

    Parameters
    ----------
    home : Tensor of shape (m,)
        The polygon that each envelope is to cut.
    functions : Tensor of shape (m, q, 3)
        An offset of minus infinity marks a function that does not exist.
    noise, resolution, limit
        As in :func:`arrangement`.
    """
    origin = torch.arange(len(polygons), device=home.device)
    cause = torch.arange(len(home), device=home.device)
    finished: list[tuple[Polygons, Tensor]] = []
    edges, causes, pairs = [functions.new_empty(0, 2, 2)], [cause[:0]], []
    pairs.append(cause.new_empty(0, 2))
    total = len(polygons)
    while len(home) and total <= limit:
        contested = _is_exceeded(polygons[home], functions, noise)
        home, functions, noise, cause = (
            t[contested] for t in (home, functions, noise, cause)
        )
        if not len(home):
            break
        chosen = _best_of_each(home, torch.zeros_like(noise), len(polygons))
        cut = torch.zeros(len(polygons), dtype=torch.bool, device=home.device)
        cut[home[chosen]] = True
        finished.append((polygons[~cut], origin[~cut]))
        pieces, row, ends, edge_row, pair = _envelope_cells(
            polygons[home[chosen]], functions[chosen], noise[chosen], resolution
        )
        edges.append(ends)
        causes.append(cause[chosen][edge_row])
        pairs.append(pair)
        parent = home[chosen][row]
        rest = torch.ones_like(home, dtype=torch.bool)
        rest[chosen] = False
        kept, home = _handed_down(home[rest], parent, len(polygons))
        functions, noise, cause = (t[rest][kept] for t in (functions, noise, cause))
        polygons, origin = pieces, origin[parent]
        total += len(pieces) - len(chosen)
    finished.append((polygons, origin))
    return Cells(
        Polygons.concatenate([part for part, _ in finished]),
        torch.cat([part for _, part in finished]),
        torch.cat(edges),
        torch.cat(causes),
        torch.cat(pairs),
    )


def _values(points: Tensor, lines: Tensor) -> Tensor:
    """The functions (m, 3) at the points (m, v, 2) of their own row: (m, v)."""
    return (points * lines[:, None, :2]).sum(-1) + lines[:, 2:]


def _best_of_each(home: Tensor, score: Tensor, size: int) -> Tensor:
    """For each polygon that occurs in ``home``, the row of its highest score."""
    best = score.new_full((size,), -torch.inf).scatter_reduce(0, home, score, "amax")
    rows = torch.arange(len(home), device=home.device)
    leading = rows[score == best[home]]
    first = rows.new_full((size,), len(home)).scatter_reduce(
        0, home[leading], leading, "amin"
    )
    return first[first < len(home)]


def _handed_down(home: Tensor, parent: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Repeat every row once for each piece of its polygon: (which row, which piece)."""
    order = parent.argsort(stable=True)
    heirs = torch.bincount(parent, minlength=size)
    start = heirs.cumsum(0) - heirs
    times = heirs[home]
    row = torch.repeat_interleave(torch.arange(len(home), device=home.device), times)
    rank = torch.arange(len(row), device=home.device)
    rank = rank - (times.cumsum(0) - times)[row]
    return row, order[start[home[row]] + rank]


def _cut(
    polygons: Polygons, values: Tensor, snap: Tensor
) -> tuple[Polygons, Polygons, Tensor]:
    """Cut each polygon where its values, given at the vertices, change their sign.

    The polygon is walked from its highest vertex down to its lowest and up again, and
    cut at the last sign change on the way down and the first on the way up: two cuts,
    whatever rounding has done to the values in between.
    """
    slots = torch.arange(values.shape[1], device=values.device)
    real, counts = polygons.real(), polygons.counts[:, None]
    top = values.where(real, -torch.inf).argmax(1, keepdim=True)
    order = (top + slots) % counts
    points = polygons.vertices.gather(1, order[..., None].expand(-1, -1, 2))
    values = values.gather(1, order)
    low = values.where(real, torch.inf).argmin(1, keepdim=True)
    high = (values >= 0) & real
    down = torch.where(high & (slots < low), slots, 0).amax(1, keepdim=True)
    up = torch.where(high & (slots > low), slots, counts).amin(1, keepdim=True)

    first, first_high, first_low = _crossing(points, values, snap, down, down + 1)
    last, last_high, last_low = _crossing(points, values, snap, up % counts, up - 1)
    ends = torch.stack([first, last], 1)
    points = torch.cat([points, ends], 1)

    place = slots.to(values).expand_as(values)
    outside = torch.full_like(values[:, :1], torch.inf)
    upper = place.where(real & ((slots <= down) | (slots >= up)), torch.inf)
    lower = place.where(real & (slots > down) & (slots < up), torch.inf)
    left = [
        upper,
        torch.where(first_high, outside, down + 0.3),
        torch.where(last_high, outside, down + 0.6),
    ]
    right = [
        lower,
        torch.where(first_low, outside, down + 0.5),
        torch.where(last_low, outside, up - 0.5),
    ]
    return (
        _sort_points(points, torch.cat(left, 1)),
        _sort_points(points, torch.cat(right, 1)),
        ends,
    )


def _crossing(
    points: Tensor, values: Tensor, snap: Tensor, high: Tensor, low: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The zero between two vertices; whether it was taken to be one of them."""
    upper, lower = values.gather(1, high), -values.gather(1, low)
    start = points.gather(1, high[..., None].expand(-1, -1, 2))[:, 0]
    stop = points.gather(1, low[..., None].expand(-1, -1, 2))[:, 0]
    at_high = upper <= snap[:, None]
    at_low = (lower <= snap[:, None]) & ~at_high
    zero = start + upper / (upper + lower) * (stop - start)
    zero = torch.where(at_high, start, torch.where(at_low, stop, zero))
    return zero, at_high, at_low


def _sort_points(points: Tensor, place: Tensor) -> Polygons:
    """Order the points of each row by their place; an infinite place drops one."""
    counts = place.isfinite().sum(1)
    order = place.argsort(1)[:, : int(counts.max())]
    slots = torch.arange(order.shape[1], device=order.device)
    order = order.gather(1, torch.minimum(slots, counts[:, None] - 1))
    return Polygons(points.gather(1, order[..., None].expand(-1, -1, 2)), counts)


def _is_exceeded(polygons: Polygons, functions: Tensor, noise: Tensor) -> Tensor:
    """Whether the largest function inside is exceeded at some vertex."""
    inside = torch.einsum("mc,mqc->mq", polygons.inner_points(), functions[..., :2])
    winner = (inside + functions[..., 2]).argmax(1)
    at_vertices = torch.einsum("mvc,mqc->mvq", polygons.vertices, functions[..., :2])
    at_vertices = at_vertices + functions[:, None, :, 2]
    own = at_vertices.gather(
        2, winner[:, None, None].expand(-1, at_vertices.shape[1], 1)
    )
    return ((at_vertices - own).amax((1, 2))) > noise


def _envelope_cells(
    polygons: Polygons, functions: Tensor, noise: Tensor, resolution: float
) -> tuple[Polygons, Tensor, Tensor, Tensor, Tensor]:
    """The cells of one envelope in each polygon, and the edges between them.

    Clipping is done twice: the first time to see which functions have a cell at all,
    the second time among those alone, so that the sliver of a function without a cell
    falls to its neighbours.
    """
    n, size = functions.shape[:2]
    rows = torch.arange(n, device=functions.device)
    alive = functions[..., 2].isfinite()
    cells: list[Polygons] = []
    for _ in range(2):
        results = [
            _cell(polygons, functions, alive, a, noise, resolution) for a in range(size)
        ]
        cells = [cell for cell, _ in results]
        alive = torch.stack([survives for _, survives in results], 1)
    # Rounding may leave a function without rivals, or none at all: then no cut.
    whole = alive.sum(1) < 2
    pieces, row = [polygons[whole]], [rows[whole]]
    edges, edge_rows = [functions.new_empty(0, 2, 2)], [rows[:0]]
    pairs = [rows.new_empty(0, 2)]
    for a in range(size):
        kept = alive[:, a] & ~whole
        pieces.append(cells[a][kept])
        row.append(rows[kept])
        for b in range(a + 1, size):
            both = (kept & alive[:, b]).nonzero()[:, 0]
            ends, which = _shared_edges(
                cells[a][both], functions[both, a] - functions[both, b], resolution
            )
            edges.append(ends)
            edge_rows.append(both[which])
            pairs.append(rows.new_tensor([[a, b]]).expand(len(which), 2))
    return (
        Polygons.concatenate(pieces),
        torch.cat(row),
        torch.cat(edges),
        torch.cat(edge_rows),
        torch.cat(pairs),
    )


def _cell(
    polygons: Polygons,
    functions: Tensor,
    alive: Tensor,
    own: int,
    noise: Tensor,
    resolution: float,
) -> tuple[Polygons, Tensor]:
    """The part of each polygon where function ``own`` is the largest of the living."""
    survives = alive[:, own].clone()
    for rival in range(functions.shape[1]):
        index = (survives & alive[:, rival]).nonzero()[:, 0]
        if rival == own or not len(index):
            continue
        part = polygons[index]
        lines = functions[index, own] - functions[index, rival]
        values = _values(part.vertices, lines)
        snap = tolerance(part, resolution=resolution) * lines[:, :2].norm(dim=-1)
        snap = snap + noise[index]
        wins, loses = values.amax(1) > snap, -values.amin(1) > snap
        # Two functions that agree on the whole polygon: the first of them stands.
        survives[index[~wins & (loses | (rival < own))]] = False
        both = wins & loses
        if both.any():
            clipped, _, _ = _cut(part[both], values[both], snap[both])
            polygons = polygons.replaced(index[both], clipped)
    return polygons, survives


def _shared_edges(
    cells: Polygons, lines: Tensor, resolution: float
) -> tuple[Tensor, Tensor]:
    """The edges of the cells that lie on the given lines, one row per cell."""
    starts, stops = cells.vertices, cells.vertices.roll(-1, 1)
    reach = 10 * tolerance(cells, resolution=resolution)[:, None]
    distance = _values(starts, lines).abs() / lines[:, :2].norm(dim=-1, keepdim=True)
    on_line = distance <= reach
    edge = on_line & on_line.roll(-1, 1) & ((stops - starts).norm(dim=-1) > reach)
    which, slot = edge.nonzero(as_tuple=True)
    return torch.stack([starts[which, slot], stops[which, slot]], 1), which
