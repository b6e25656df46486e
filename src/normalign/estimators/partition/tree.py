"""A tree of smooth cuts: which leaves a point belongs to, and by how much."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Grown", "Tree", "Visit", "band", "grow", "smoothstep", "widest_overlap"]

# Projections nearer to each other than this share of their spread are one value: an
# axis that is off a binary column by rounding must not cut inside the column's atoms.
_RESOLUTION = 1e-9

# A cut that leaves one child with more than this share of the rows is taken only
# when no later axis does better.
_LOPSIDED = 0.75


class Visit(NamedTuple):
    """The rows that reach one leaf, their gates, and the gates' gradients."""

    leaf: int
    rows: Tensor
    gate: Tensor
    gradient: Tensor | None


def smoothstep(value: Tensor) -> Tensor:
    r"""Once differentiable step from 0 to 1 on the unit interval.

    .. math:: s(t) = t^2 (3 - 2t), \quad s(t) + s(1 - t) = 1

    Constant outside ``[0, 1]``; its slope :math:`6t(1-t)` vanishes at both ends.

    Examples
    --------
    >>> smoothstep(torch.tensor([-1.0, 0.5, 2.0]))
    tensor([0.0000, 0.5000, 1.0000])
    """
    inside = value.clamp(0, 1)
    return inside.square() * (3 - 2 * inside)


@dataclass(frozen=True)
class Tree:
    r"""Binary tree of cuts along directions, blended across bands.

    .. math:: g_\mathrm{right}(x) = s\left(\frac{u^\top x - a}{b - a}\right),
        \quad g_\mathrm{left} = 1 - g_\mathrm{right}

    with the :func:`smoothstep` s and the band :math:`[a, b]` of each cut. The gate of
    a leaf is the product along its path. The gates are at least 0, sum to 1, are once
    differentiable, and are 0 outside the leaf's cell widened by the bands, so a point
    is answered by few leaves. All arithmetic is float64, whatever the machines use.

    Parameters
    ----------
    directions : Tensor of shape (s, d)
        One direction u per cut; the root is cut 0.
    bands : Tensor of shape (s, 2)
        Ends a < b of each band.
    children : Tensor of shape (s, 2)
        Left and right: another cut if at least 0, the leaf ``-1 - child`` otherwise.
        No cuts at all is the tree of one leaf.

    Examples
    --------
    >>> tree = Tree(torch.ones(1, 1), torch.tensor([[0.0, 2.0]]),
    ...             torch.tensor([[-1, -2]]))
    >>> [visit.gate.tolist() for visit in tree.visits(torch.tensor([[1.0]]))]
    [[0.5], [0.5]]
    """

    directions: Tensor
    bands: Tensor
    children: Tensor

    @property
    def n_leaves(self) -> int:
        """Number of leaves: one more than cuts."""
        return len(self.children) + 1

    def to(self, device: torch.device | str) -> Tree:
        """Return the tree on another device."""
        return Tree(
            self.directions.to(device), self.bands.to(device), self.children.to(device)
        )

    def visits(self, x: Tensor) -> Iterator[Visit]:
        """Yield, leaf by leaf, the rows of x with a gate above 0; no gradients."""
        ones = torch.ones(len(x), dtype=torch.float64, device=x.device)
        return self._walk(x, ones, None)

    def visits_with_gradients(self, x: Tensor) -> Iterator[Visit]:
        """Yield the same visits, each with the (rows, d) gradient of its gate."""
        ones = torch.ones(len(x), dtype=torch.float64, device=x.device)
        return self._walk(x, ones, torch.zeros_like(x, dtype=torch.float64))

    def _walk(
        self, x: Tensor, gate: Tensor, gradient: Tensor | None
    ) -> Iterator[Visit]:
        directions = self.directions.to(x.device, torch.float64)
        bands, children = self.bands.tolist(), self.children.tolist()
        everyone = torch.arange(len(x), device=x.device)
        waiting = [(0 if children else -1, everyone, gate, gradient)]
        while waiting:
            node, rows, gate, gradient = waiting.pop()
            if node < 0:
                yield Visit(-1 - node, rows, gate, gradient)
                continue
            direction, (lower, upper) = directions[node], bands[node]
            place = (x[rows].to(torch.float64) @ direction - lower) / (upper - lower)
            right = smoothstep(place)
            inside = place.clamp(0, 1)
            slope = 6 * inside * (1 - inside) / (upper - lower)
            # The right child is pushed first, so that leaves come left to right.
            for child, step, sign in (
                (children[node][1], right, 1.0),
                (children[node][0], 1 - right, -1.0),
            ):
                kept = step > 0
                if not kept.any():
                    continue
                waiting.append(
                    (
                        child,
                        rows[kept],
                        (gate * step)[kept],
                        None
                        if gradient is None
                        else gradient[kept] * step[kept, None]
                        + (sign * gate * slope)[kept, None] * direction,
                    )
                )


class Grown(NamedTuple):
    """A tree and the training rows in the support of each of its leaves."""

    tree: Tree
    leaves: list[Tensor]


def band(projection: Tensor, *, overlap: float) -> tuple[float, float] | None:
    r"""Ends of the band around the median that both sides of a cut share.

    The ends are the quantiles ``(1 - overlap) / 2`` and ``(1 + overlap) / 2``, taken
    from the values present, so at least one row lies on or beyond each end. If both
    fall on one heavy value the band is the gap beside it that cuts more evenly, and
    nothing is shared.

    Parameters
    ----------
    projection : Tensor of shape (n,)
    overlap : float
        Share of the rows inside the band, from 0 to below 1.

    Returns
    -------
    (float, float) or None
        None if all values are equal.

    Examples
    --------
    >>> band(torch.tensor([0.0, 1.0, 2.0, 3.0]), overlap=0.0)
    (1.0, 2.0)
    >>> band(torch.tensor([0.0, 0.0, 0.0, 1.0]), overlap=0.5)
    (0.0, 1.0)
    """
    ordered, n = projection.sort().values, len(projection)
    beyond = max(1, math.floor(n * (1 - overlap) / 2))
    lower, upper = ordered[beyond - 1], ordered[n - beyond]
    if not lower < upper:
        below, above = int((ordered < lower).sum()), int((ordered > lower).sum())
        if not below and not above:
            return None
        if above >= below:
            upper = ordered[n - above]
        else:
            lower = ordered[below - 1]
    return float(lower), float(upper)


def widest_overlap(n: int, max_leaf_size: int, *, least: float) -> float:
    """The largest overlap that takes no more levels of cuts than the least one.

    Leaves come in powers of two, so at a given overlap they may be much smaller than
    they may be. The room is better used for wider bands.

    Examples
    --------
    >>> round(widest_overlap(64_000_000, 16_000_000, least=0.0), 3)
    0.0
    >>> round(widest_overlap(36_000_000, 16_000_000, least=0.0), 3)
    0.333
    """
    # Each level rounds a child up by less than a row.
    wanted = max(max_leaf_size - 8, 0.75 * max_leaf_size)
    if n <= max_leaf_size:
        return least
    levels = math.ceil(math.log(n / wanted) / math.log(2 / (1 + least)) - 1e-3)
    return max(2 * (wanted / n) ** (1 / levels) - 1, least)


def grow(
    x: Tensor,
    *,
    max_leaf_size: int,
    overlap: float,
    axes: Callable[[Sequence[Tensor]], Sequence[Tensor]],
) -> Grown:
    """Cut the rows in half, again and again, until no leaf is above the limit.

    The tree grows level by level, so that the axes of a whole level can be found in
    parallel. A cut takes the first axis of its node that divides the rows evenly
    enough, or the most even one. Both children have fewer rows than their node and at
    least one, so growth ends; a node whose rows no axis tells apart becomes a leaf
    however large it is.

    Parameters
    ----------
    x : Tensor of shape (n, d)
    max_leaf_size : int
        At least 1.
    overlap : float
        Share of a node's rows that both of its children hold.
    axes : callable
        Takes the row numbers of each node of a level and returns, for each, candidate
        directions of shape (c, d), best first.

    Returns
    -------
    Grown

    Examples
    --------
    >>> x = torch.arange(6.0)[:, None]
    >>> grown = grow(x, max_leaf_size=3, overlap=0.0,
    ...              axes=lambda nodes: [torch.ones(1, 1) for _ in nodes])
    >>> [rows.tolist() for rows in grown.leaves]
    [[0, 1, 2], [3, 4, 5]]
    """
    x = x.to(torch.float64)
    cuts: list[tuple[Tensor, tuple[float, float]]] = []
    links: dict[tuple[int, int], int] = {}
    ends: dict[tuple[int, int], Tensor] = {}
    level = [((-1, 0), torch.arange(len(x), device=x.device))]
    while level:
        large = [entry for entry in level if len(entry[1]) > max_leaf_size]
        ends.update(entry for entry in level if len(entry[1]) <= max_leaf_size)
        level = []
        found = axes([rows for _, rows in large]) if large else []
        for (place, rows), candidates in zip(large, found, strict=True):
            cut = _best_cut(x[rows], candidates.to(x), overlap)
            if cut is None:
                ends[place] = rows
                continue
            direction, edges, left, right = cut
            node = links[place] = len(cuts)
            cuts.append((direction, edges))
            level += [((node, 0), rows[left]), ((node, 1), rows[right])]
    return _numbered(x, cuts, links, ends)


def _best_cut(
    x: Tensor, candidates: Tensor, overlap: float
) -> tuple[Tensor, tuple[float, float], Tensor, Tensor] | None:
    """First even cut among the candidates, else the most even; None without any."""
    best, smallest = None, len(x)
    for direction in candidates:
        projection = x @ direction
        snapped = _snapped(projection)
        apart = band(snapped, overlap=overlap)
        if apart is None:
            continue
        # The band ends at values that rows have, so that each row beyond an end has
        # the gate 0 or 1 that its place in one child only asks for.
        lower = projection[snapped <= apart[0]].max()
        upper = projection[snapped >= apart[1]].min()
        edges = float(lower), float(upper)
        left, right = projection < upper, projection > lower
        larger = max(int(left.sum()), int(right.sum()))
        if larger < smallest:
            best, smallest = (direction, edges, left, right), larger
        if larger <= len(x) * max(_LOPSIDED, (1 + overlap) / 2):
            break
    return best


def _snapped(projection: Tensor) -> Tensor:
    """Projections with those that differ by rounding made equal."""
    start = projection.min()
    step = (projection.max() - start) * _RESOLUTION
    if not step > 0:
        return torch.full_like(projection, float(start))
    return start + step * torch.round((projection - start) / step)


def _numbered(
    x: Tensor,
    cuts: list[tuple[Tensor, tuple[float, float]]],
    links: dict[tuple[int, int], int],
    ends: dict[tuple[int, int], Tensor],
) -> Grown:
    """Tensors of the tree, its leaves numbered from left to right."""
    leaves: list[Tensor] = []
    children = torch.zeros(len(cuts), 2, dtype=torch.long, device="cpu")
    waiting = [(-1, 0)]
    while waiting:
        place = waiting.pop()
        if place in ends:
            target = -1 - len(leaves)
            leaves.append(ends[place])
        else:
            target = links[place]
            waiting += [(target, 1), (target, 0)]
        if place[0] >= 0:
            children[place] = target
    if cuts:
        directions = torch.stack([direction for direction, _ in cuts]).cpu()
    else:
        directions = torch.zeros(0, x.shape[1], dtype=torch.float64, device="cpu")
    bands = torch.tensor(
        [edges for _, edges in cuts], dtype=torch.float64, device="cpu"
    )
    return Grown(Tree(directions, bands.reshape(-1, 2), children), leaves)
