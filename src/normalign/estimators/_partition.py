r"""Machines for large tables: Algorithm 1 with many small systems instead of one.

.. math:: f(x) = \sum_\ell g_\ell(x) f_\ell(x), \qquad \sum_\ell g_\ell = 1

A tree of smooth cuts (:class:`Tree`) divides the rows; a cut goes through the median
along the top direction of the metric that a machine on a sample of its rows learns. In
every iteration each leaf solves its own system, and the next metric is the mean of the
gradient outer products over the rows of all leaves, each row counted once:

.. math:: M \leftarrow \frac{1}{n} \sum_\ell \sum_i
          g_\ell(x_i) \, J_\ell(x_i)^\top J_\ell(x_i)

One metric for all leaves was more accurate than one for each: a leaf's few rows make
a noisy metric. With one leaf this is Algorithm 1.

The work grows like ``n * max_leaf_size^2`` and not like ``n^3``, the memory is that of
one leaf per worker. The leaves of an iteration are independent, so ``joblib`` spreads
them over processes, or over a cluster under ``joblib.parallel_config("dask")``.

Equal rows are merged first, with their weights added and their targets averaged. The
machines of merged and unmerged rows are the same function, and a row of weight two and
the row twice then give the same tree, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from tqdm import tqdm

from normalign.estimators._fit import (
    LeaveOneOut,
    Recipe,
    Report,
    Validation,
    best_iteration,
    select_rows,
)
from normalign.estimators._jobs import Clock, jobs_at_once, parallel, shared_threads
from normalign.kernels import (
    Iteration,
    Kernel,
    Machine,
    agop,
    initial_metric,
    median_distance,
    normalised,
)
from normalign.kernels._metric import scaled_update

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
    has few leaves to evaluate. All arithmetic is float64, whatever the machines use.

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
                inner = step > 0
                if not inner.any():
                    continue
                waiting.append(
                    (
                        child,
                        rows[inner],
                        (gate * step)[inner],
                        None
                        if gradient is None
                        else gradient[inner] * step[inner, None]
                        + (sign * gate * slope)[inner, None] * direction,
                    )
                )


class GrownTree(NamedTuple):
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
) -> GrownTree:
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
    return _number_leaves(x, cuts, links, ends)


def _best_cut(
    x: Tensor, candidates: Tensor, overlap: float
) -> tuple[Tensor, tuple[float, float], Tensor, Tensor] | None:
    """First even cut among the candidates, else the most even; None without any."""
    best, smallest = None, len(x)
    for direction in candidates:
        projection = x @ direction
        snapped = _snap(projection)
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


def _snap(projection: Tensor) -> Tensor:
    """Projections with those that differ by rounding made equal."""
    start = projection.min()
    step = (projection.max() - start) * _RESOLUTION
    if not step > 0:
        return torch.full_like(projection, float(start))
    return start + step * torch.round((projection - start) / step)


def _number_leaves(
    x: Tensor,
    cuts: list[tuple[Tensor, tuple[float, float]]],
    links: dict[tuple[int, int], int],
    ends: dict[tuple[int, int], Tensor],
) -> GrownTree:
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
    return GrownTree(Tree(directions, bands.reshape(-1, 2), children), leaves)


@dataclass(frozen=True)
class BlendedMachine:
    """Machines of the leaves, blended by the gates of a tree.

    Behaves like a :class:`~normalign.kernels.Machine`: callable, with a closed-form
    Jacobian in which the gates are differentiated as well.

    Parameters
    ----------
    tree : Tree
    machines : sequence of Machine
        One per leaf.

    Examples
    --------
    >>> from normalign.kernels import Laplace
    >>> def constant(value):
    ...     return Machine(torch.zeros(1, 1), torch.zeros(1, 1), torch.eye(1),
    ...                    Laplace(), torch.tensor([value]))
    >>> tree = Tree(torch.ones(1, 1), torch.tensor([[0.0, 2.0]]),
    ...             torch.tensor([[-1, -2]]))
    >>> BlendedMachine(tree, (constant(2.0), constant(4.0)))(torch.ones(1, 1))
    tensor([[3.]])
    """

    tree: Tree
    machines: Sequence[Machine]

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs at every row, ``(n, k)``."""
        outputs = x.new_zeros(len(x), len(self.machines[0].intercept))
        for leaf, rows, gate, _ in self.tree.visits(x):
            part = gate.to(x.dtype)[:, None] * self.machines[leaf](x[rows])
            outputs.index_add_(0, rows, part)
        return outputs

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the leaves."""
        return self.machines[0].dtype

    @property
    def device(self) -> torch.device:
        """Where they compute."""
        return self.machines[0].device

    def jacobian(self, x: Tensor) -> Tensor:
        r"""Jacobians at every row, ``(n, k, d)``, in closed form.

        .. math:: J = \sum_\ell g_\ell J_\ell + f_\ell (\nabla g_\ell)^\top
        """
        jacobian = x.new_zeros(len(x), len(self.machines[0].intercept), x.shape[1])
        for leaf, rows, gate, gradient in self.tree.visits_with_gradients(x):
            machine, at = self.machines[leaf], x[rows]
            part = gate.to(x.dtype)[:, None, None] * machine.jacobian(at)
            if gradient is not None:
                # Few rows lie inside a band; elsewhere the gates are constant.
                inside = gradient.any(1).nonzero()[:, 0]
                slope = gradient[inside].to(x.dtype)
                part[inside] += machine(at[inside])[:, :, None] * slope[:, None, :]
            jacobian.index_add_(0, rows, part)
        return jacobian

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> BlendedMachine:
        """The same machine elsewhere; the tree stays in float64."""
        return BlendedMachine(
            self.tree if device is None else self.tree.to(device),
            tuple(machine.to(device, dtype) for machine in self.machines),
        )


@dataclass(frozen=True)
class PartitionedFit:
    """A fitted partition as flat numpy arrays, and how it came about.

    Parameters
    ----------
    x_fit : array of shape (m, d)
        The distinct training rows.
    leaves : dict of str to array
        ``rows`` and ``offsets``: leaf l has the rows ``rows[offsets[l]:offsets[l+1]]``
        of ``x_fit`` as centers and that slice of ``coef`` as coefficients.
        ``directions`` (cuts, d), ``bands`` (cuts, 2) and ``children`` (cuts, 2) as in
        :class:`Tree`.
    coef : array of shape (rows of all leaves, k)
    metric : array of shape (d, d) or (d,)
        Of all leaves, of trace d.
    kernel : Kernel
    report : Report
        The worst of all leaves.
    left_out : LeaveOneOut or None
        Blended; a row that was given several times has one entry per distinct target.
    """

    x_fit: np.ndarray
    leaves: dict[str, np.ndarray]
    coef: np.ndarray
    metric: np.ndarray
    kernel: Kernel
    report: Report
    left_out: LeaveOneOut | None

    def machine(
        self, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
    ) -> BlendedMachine:
        """The blended machine, at least in the precision that it was fitted in."""
        needed = torch.as_tensor(self.coef, device="cpu").dtype
        dtype = needed if dtype is None else torch.promote_types(dtype, needed)
        return blend_machine(
            self.x_fit, self.leaves, self.coef, self.metric, self.kernel,
            dtype=dtype, device=device,
        )  # fmt: skip


def blend_machine(
    x_fit: np.ndarray,
    leaves: dict[str, np.ndarray],
    coef: np.ndarray,
    metric: np.ndarray,
    kernel: Kernel,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> BlendedMachine:
    """Build a blended machine from the arrays of :class:`PartitionedFit`."""

    def tensor(array: np.ndarray) -> Tensor:
        return torch.tensor(array, dtype=dtype, device=device)

    centers, weights, shared = tensor(x_fit), tensor(coef), tensor(metric)
    rows = torch.tensor(leaves["rows"], device=device)
    nothing = weights.new_zeros(weights.shape[1])
    machines = tuple(
        Machine(centers[rows[start:stop]], weights[start:stop], shared, kernel, nothing)
        for start, stop in pairwise(leaves["offsets"].tolist())
    )
    cuts = (
        torch.tensor(leaves[name], device=device)
        for name in ("directions", "bands", "children")
    )
    return BlendedMachine(Tree(*cuts), machines)


# Axes that a cut may choose from, best first: the metric's own, then random ones,
# which tell apart any two rows that differ at all.
_OWN_AXES = 8
_RANDOM_AXES = 3


@dataclass(frozen=True)
class PartJob:
    """A leaf at one iteration, in the metric that all leaves share.

    ``gradients_at`` are the rows whose gradients count for the next metric, by their
    ``shares``: weight times gate. Of the rows ``leave_out`` leave-one-out outputs are
    made. ``n_jobs`` is the number of workers at one time.
    """

    recipe: Recipe
    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray | None
    metric: np.ndarray
    gradients_at: np.ndarray
    shares: np.ndarray
    leave_out: np.ndarray
    n_jobs: int


@dataclass(frozen=True)
class SolvedPart:
    """Coefficients of a leaf, and its part of the sum of gradient outer products.

    ``fitted`` are the outputs at the rows of ``PartJob.leave_out``, ``room`` one less
    their leverage: the share of a unit of such a row in its own output.
    """

    coef: np.ndarray
    outer: np.ndarray
    fitted: np.ndarray
    room: np.ndarray
    report: Report


def solve_part(job: PartJob) -> SolvedPart:
    """Solve a leaf in the given metric."""
    with shared_threads(job.n_jobs):
        recipe = replace(job.recipe, n_iter=0, bandwidth_rule="fixed")
        (iteration,) = recipe.iterations(
            job.x, job.y, job.weights, 0, metric=job.metric
        )
        machine = iteration.machine
        outer = torch.zeros_like(machine.metric)
        if len(job.gradients_at):
            at = torch.tensor(job.gradients_at, device=outer.device)
            outer = _gradient_sum(machine, at, job.shares)
        fitted, room = _leave_one_out(iteration, job)
        return SolvedPart(
            machine.coef.cpu().numpy(),
            outer.cpu().double().numpy(),
            fitted,
            room,
            Report.of(iteration),
        )


def _leave_one_out(iteration: Iteration, job: PartJob) -> tuple[np.ndarray, np.ndarray]:
    r"""Outputs at the rows to leave out, and the room :math:`1 - h` of a unit there."""
    leave_out, coef = job.leave_out, iteration.machine.coef
    if not len(leave_out):
        return np.zeros((0, job.y.shape[1])), np.zeros(0)
    mass = 1.0 if job.weights is None else job.weights[leave_out, None]
    rows = torch.tensor(leave_out, device=coef.device)
    residuals = job.recipe.ridge / mass * coef[rows].cpu().double().numpy()
    room = iteration.room(rows).cpu().double().numpy()
    return job.y[leave_out] - residuals, np.minimum(room, 1.0)


def _like(tensor: Tensor, array: np.ndarray) -> Tensor:
    """A copy of an array, which may be a map of a file, in the place of a tensor."""
    return torch.tensor(array, dtype=tensor.dtype, device=tensor.device)


@dataclass(frozen=True)
class CutJob:
    """A sample of a node's rows, from which the axes of its cut are learned."""

    recipe: Recipe
    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    seed: int
    n_jobs: int


def cut_axes(job: CutJob) -> np.ndarray:
    """Directions along which a node may be cut, best first, one per row.

    The axes of the gradient outer product of a machine on the node's sample, by
    decreasing eigenvalue, then a few random directions seen through it.
    """
    with shared_threads(job.n_jobs):
        recipe = job.recipe
        *_, last = recipe.iterations(job.x, job.y, job.weights, job.seed)
        weights = _like(last.machine.coef, job.weights)
        metric = _gradient_outer(last.machine, last.machine.centers, weights)
        usable = bool(torch.isfinite(metric).all()) and bool(metric.any())
        return _axes(metric if usable else last.machine.metric, job.seed)


def _gradient_sum(machine: Machine, at: Tensor, shares: np.ndarray) -> Tensor:
    """Gradient outer products at some centers; in float64, if their squares need it."""
    mass = _like(machine.coef, shares)
    outer = mass.sum() * _gradient_outer(machine, machine.centers[at], mass)
    single = machine.dtype != torch.float64
    if single and scaled_update(outer) is None and bool(machine.coef.any()):
        return _gradient_sum(machine.to(dtype=torch.float64), at, shares)
    return outer


def _gradient_outer(machine: Machine, x: Tensor, weights: Tensor) -> Tensor:
    return agop(
        x,
        machine.centers,
        machine.coef,
        machine.kernel,
        metric=machine.metric,
        weights=weights,
        diagonal=machine.metric.ndim == 1,
    )


def _axes(metric: Tensor, seed: int) -> np.ndarray:
    metric = normalised(metric).cpu().double()
    if metric.ndim == 1:
        metric = torch.diag(metric)
    values, vectors = torch.linalg.eigh(metric)
    own = vectors.flip(1)[:, :_OWN_AXES].T
    generator = torch.Generator().manual_seed(seed)
    shape = _RANDOM_AXES, len(metric)
    place: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
    noise = torch.randn(shape, generator=generator, **place).double()
    # The last random axis ignores the metric: rows may differ only where it is 0.
    seen = noise[:-1] @ (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    axes = torch.cat([own, seen, noise[-1:]])
    axes = axes / axes.norm(dim=1, keepdim=True).clamp(min=1e-300)
    # An eigenvector's sign is arbitrary; left and right must not be.
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    return torch.where(largest < 0, -axes, axes).numpy()


Rows = tuple[np.ndarray, np.ndarray, np.ndarray]

# How a cut is found: rows of its sample, updates of their metric.
_CUT_ROWS = 2000
_CUT_ITER = 1


class CutAxes:
    """Axes of the nodes of each level, by machines on samples of their rows."""

    def __init__(
        self, rows: Rows, recipe: Recipe, n_jobs: int | None, seed: int
    ) -> None:
        self.rows, self.n_jobs = rows, n_jobs
        # Always the same number: the tree must not depend on how long the recursion
        # will go on.
        self.recipe = replace(recipe, n_iter=_CUT_ITER)
        self.random = np.random.default_rng([seed, 0])

    def __call__(self, nodes: Sequence[Tensor]) -> list[Tensor]:
        """Candidate axes of each node, best first."""
        jobs = []
        for node in nodes:
            chosen = self.random.permutation(len(node))[:_CUT_ROWS]
            inside = node.numpy()[np.sort(chosen)]
            jobs.append(
                CutJob(
                    self.recipe,
                    *(part[inside] for part in self.rows),
                    seed=int(self.random.integers(2**31)),
                    n_jobs=jobs_at_once(self.n_jobs),
                )
            )
        return [
            torch.from_numpy(axes) for axes in parallel(cut_axes, jobs, self.n_jobs)
        ]


@dataclass(frozen=True)
class Units:
    """The given rows that were merged: their targets and weights.

    ``rows`` holds, for each of the n given rows, the merged row that it is a part of;
    after ``of`` it is sorted.
    """

    rows: np.ndarray
    targets: np.ndarray
    weights: np.ndarray

    def of(self, merged: np.ndarray) -> Units:
        """Distinct targets of some merged rows, which are counted from 0 then."""
        among = np.isin(self.rows, merged)
        places = np.searchsorted(merged, self.rows[among])
        keys = np.column_stack([places, self.targets[among]])
        distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
        weights = np.bincount(inverse.ravel(), weights=self.weights[among])
        return Units(distinct[:, 0].astype(int), distinct[:, 1:], weights)


def merge_rows(
    x: np.ndarray, y: np.ndarray, weights: np.ndarray | None
) -> tuple[Rows, Units]:
    """Distinct rows in an order of their own, with mean targets and sums of weights.

    The second part says which given rows became which merged row.

    Examples
    --------
    >>> x, y = np.array([[7.0], [7.0]]), np.array([[0.0], [1.0]])
    >>> rows, units = merge_rows(x, y, None)
    >>> tuple(part.tolist() for part in rows)
    ([[7.0]], [[0.5]], [2.0])
    """
    x = np.ascontiguousarray(x + 0.0)  # a negative zero is a zero
    weights = np.ones(len(x)) if weights is None else weights.astype(np.float64)
    keys = x.view(np.dtype((np.void, x.dtype.itemsize * x.shape[1]))).ravel()
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    y = y.astype(np.float64)
    units = Units(inverse.ravel(), y, weights)
    if len(first) == len(x):
        return (x[first], y[first], weights[first]), units
    shape = len(first), len(x)
    members = sparse.csr_array((weights, (units.rows, np.arange(len(x)))), shape=shape)
    total = members @ np.ones(len(x))
    return (x[first], (members @ y) / total[:, None], total), units


def partitioned_iterations(
    x: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    recipe: Recipe,
    max_leaf_size: int,
    overlap: float = 0.2,
    n_left_out: int = 0,
    n_jobs: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Generator[PartitionedFit, None, None]:
    """Divide the rows and yield the partition of every iteration of Algorithm 1.

    With at most ``max_leaf_size`` distinct rows there is one leaf, and the machines
    are the direct ones. Results depend on the seed and not on ``n_jobs`` or the backend
    (up to rounding: other numbers of threads add in another order).

    Parameters
    ----------
    x : array of shape (n, d)
    y : array of shape (n, k)
    weights : array of shape (n,), optional
        Positive; repetitions.
    recipe : Recipe
    max_leaf_size : int
        Most rows of a leaf, counted after merging; more only if no cut can tell them
        apart.
    overlap : float in [0, 1)
        Least share of a node's rows on which both children are fitted and between
        which they are blended; see :func:`widest_overlap`.
    n_left_out : int
        Most rows for which leave-one-out outputs are made.
    n_jobs : int, optional
        As in joblib, whose active backend is used.
    seed : int
    progress : bool
        Show a bar over the leaves on stderr.
    """
    rows, units = merge_rows(x, y, weights)
    n, at_once = len(rows[0]), jobs_at_once(n_jobs)
    recipe = recipe.share_memory(at_once)
    tree, nodes = grow(
        torch.from_numpy(rows[0]),
        max_leaf_size=max_leaf_size,
        overlap=widest_overlap(n, max_leaf_size, least=overlap),
        axes=CutAxes(rows, recipe, n_jobs, seed),
    )
    leaves = [node.numpy() for node in nodes]
    gates = _gates(tree, rows[0], leaves)
    # Merged rows have an order of their own, so these are the same in every fit.
    left_out = select_rows(n, n_left_out)
    units = units.of(left_out) if n_left_out else units
    unweighted = bool((rows[2] == 1).all())
    metric = initial_metric(
        recipe.tensor(rows[0]),
        identity_weight=recipe.identity_weight,
        weights=None if unweighted else recipe.tensor(rows[2]),
        diagonal=recipe.diagonal,
    )
    is_precise = [False] * len(leaves)
    random = np.random.default_rng([seed, 1])
    total = len(leaves) * (recipe.n_iter + 1)
    with tqdm(total=total, desc="leaves", disable=not progress) as bar:
        for index in range(recipe.n_iter + 1):
            kernel = recipe.kernel
            if recipe.bandwidth_rule != "fixed":
                generator = torch.Generator().manual_seed(int(random.integers(2**31)))
                kernel = kernel.rescaled(
                    median_distance(
                        recipe.tensor(rows[0]),
                        kernel,
                        metric=metric,
                        weights=None if unweighted else recipe.tensor(rows[2]),
                        generator=generator,
                    )
                )
            sampled = np.zeros(n, dtype=bool)
            if index < recipe.n_iter:
                sampled[random.permutation(n)[: recipe.agop_samples]] = True
            present = metric.cpu().numpy()
            jobs = []
            for leaf, gate, precise in zip(leaves, gates, is_precise, strict=True):
                dtype = torch.float64 if precise else recipe.dtype
                at = np.flatnonzero(sampled[leaf] & (gate > 0))
                jobs.append(
                    PartJob(
                        replace(recipe, kernel=kernel, dtype=dtype),
                        rows[0][leaf],
                        rows[1][leaf],
                        None if unweighted else rows[2][leaf],
                        present,
                        gradients_at=at,
                        shares=(rows[2][leaf] * gate)[at],
                        leave_out=np.flatnonzero(np.isin(leaf, left_out)),
                        n_jobs=at_once,
                    )
                )
            parts = []
            for part in parallel(solve_part, jobs, n_jobs):
                parts.append(part)
                bar.update()
            is_precise = [part.coef.dtype == np.float64 for part in parts]
            outer = scaled_update(
                torch.from_numpy(np.sum([part.outer for part in parts], axis=0))
            )
            if outer is not None:
                metric = outer.to(metric)
            coef = np.concatenate([part.coef for part in parts])
            outputs = None
            if n_left_out:
                total_mass = rows[2][left_out][units.rows]
                outputs = _blend_left_out(
                    units, total_mass, left_out, leaves, gates, parts
                )
            yield PartitionedFit(
                x_fit=rows[0].astype(coef.dtype),
                leaves={
                    "rows": np.concatenate(leaves),
                    "offsets": np.cumsum([0, *(len(leaf) for leaf in leaves)]),
                    "directions": tree.directions.numpy(),
                    "bands": tree.bands.numpy(),
                    "children": tree.children.numpy(),
                },
                coef=coef,
                metric=present,
                kernel=kernel,
                report=Report.combine([part.report for part in parts], n_iter=index),
                left_out=outputs,
            )


def _gates(tree: Tree, x: np.ndarray, leaves: list[np.ndarray]) -> list[np.ndarray]:
    """The gate of each leaf at each of its rows."""
    gates = [np.zeros(len(leaf)) for leaf in leaves]
    for leaf, reached, gate, _ in tree.visits(torch.from_numpy(x)):
        inside = np.isin(reached.numpy(), leaves[leaf])
        place = np.searchsorted(leaves[leaf], reached.numpy()[inside])
        gates[leaf][place] = gate.numpy()[inside]
    return gates


def _blend_left_out(
    units: Units,
    total: np.ndarray,
    left_out: np.ndarray,
    leaves: list[np.ndarray],
    gates: list[np.ndarray],
    parts: list[SolvedPart],
) -> LeaveOneOut:
    """Leave-one-out outputs of the leaves, blended by the gates at their rows.

    A unit of weight goes with its own target: a row that was given twice with two
    targets must not learn one of them from the other. ``total`` is the weight of the
    merged row of each unit.
    """
    outputs = np.zeros_like(units.targets)
    # parts of less than one unit are left out whole, as lighter rows are
    share = np.minimum(units.weights, 1) / np.minimum(total, 1)
    for leaf, gate, part in zip(leaves, gates, parts, strict=True):
        known = np.flatnonzero(np.isin(leaf, left_out))
        place = np.full(len(left_out), -1)
        place[np.searchsorted(left_out, leaf[known])] = np.arange(len(known))
        here = place[units.rows] >= 0
        at, mine = place[units.rows[here]], share[here]
        targets = units.targets[here]
        room = 1 - mine + mine * part.room[at]
        without = targets - (targets - part.fitted[at]) / room[:, None]
        outputs[here] += gate[known][at, None] * without
    return LeaveOneOut(outputs, units.targets, units.weights)


def fit_partitioned(
    x: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    recipe: Recipe,
    max_leaf_size: int,
    validation: Validation | None = None,
    clock: Clock | None = None,
    **options: Any,
) -> PartitionedFit:
    """Return the best, or the last, of :func:`partitioned_iterations`.

    Parameters
    ----------
    x, y, weights, recipe, max_leaf_size, **options
        As there.
    validation : Validation, optional
        By which the best iteration is picked; the first of equals.
    clock : Clock, optional
    """
    fits = partitioned_iterations(
        x, y, weights, recipe=recipe, max_leaf_size=max_leaf_size, **options
    )

    def steps() -> Iterator[tuple[int, Callable[[], Any], Callable[[], Any]]]:
        for index, fit in enumerate(fits):
            machine = partial(fit.machine, device=recipe.device)
            yield index, machine, lambda fit=fit: fit

    best = best_iteration(steps(), recipe.n_iter, validation=validation, clock=clock)
    fits.close()
    return best
