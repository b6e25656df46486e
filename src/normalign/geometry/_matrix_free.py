r"""The measures of models with very many outputs, from a few products with J and J^T.

For an ImageNet head or a vocabulary, one pass for each output is out of reach. What the
measures need is little: the leading singular triple, the Frobenius norm, ``J x`` and
``J^T 1``. The last two are one product each, exact. The first two come from a block
Krylov space Q of :math:`G = J J^\top`, grown from ``J x`` and random vectors until the
residual of the leading Ritz pair, over its gap, is below the tolerance, and from

.. math:: \|J\|_F^2 = \operatorname{tr} Q^\top G Q
          + \mathbb{E} \|J^\top (I - Q Q^\top) w\|^2,

exact on that space and by Hutchinson's estimator (Lemma hutchinson) off it. Whether
the next passes go into a larger space or into more probes is decided by what the error
still lacks; if one pass for each output is cheaper than either, these are summed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from normalign._errors import require
from normalign._linear_map import LinearMap, rounding
from normalign.geometry._alignment import safe_ratio
from normalign.geometry._exact import (
    column_slabs,
    offset_and_centroid,
    summing_dtype,
)
from normalign.geometry._margin import nearest_boundary
from normalign.geometry._spectrum import finite_eigh

__all__ = ["MatrixFreeOptions", "SummedNorms", "matrix_free_measures"]


@dataclass(frozen=True)
class MatrixFreeOptions:
    """When the matrix-free route stops.

    Attributes
    ----------
    rtol : float
        Error aimed at: two standard errors of the squared norm, relative; the sine of
        the angle to the leading vector.
    block : int
        Vectors that go through the model together.
    max_rank : int
        Largest dimension of the Krylov space.
    max_passes : int
        Most passes for the norm; beyond, it is left with the error it has.
    candidates : int
        Competing classes whose boundary distance is computed exactly.
    """

    rtol: float = 1e-3
    block: int = 8
    max_rank: int = 128
    max_passes: int = 2048
    candidates: int = 16

    def __post_init__(self) -> None:
        least = {"block": 2, "max_rank": 2, "max_passes": 1, "candidates": 1}
        for name, bound in least.items():
            value = getattr(self, name)
            require(
                isinstance(value, int) and value >= bound,
                "MatrixFreeOptions",
                name,
                f"an integer of at least {bound}",
                repr(value),
            )
        require(
            0 < self.rtol < 1, "MatrixFreeOptions", "rtol", "between 0 and 1", self.rtol
        )


class SummedNorms(Protocol):
    """Squared norms of the same samples that several maps find in the same passes."""

    def look_up(self, range_basis: Tensor | None) -> Tensor | None:
        """Return ``|J|_F^2`` of each sample, if all of them have been summed."""
        ...

    def compute(self, range_basis: Tensor | None) -> Tensor:
        """Return ``|J|_F^2`` of each sample, from a pull-back for each direction."""
        ...


def matrix_free_measures(
    linear: LinearMap,
    y: Tensor | None,
    *,
    options: MatrixFreeOptions,
    generator: torch.Generator,
    vectors: int,
    range_basis: Tensor | None = None,
    norms: SummedNorms | None = None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the measures of each sample, and error estimates of the estimated ones.

    Parameters
    ----------
    generator : torch.Generator
        Source of the starting block and of the probes, on the CPU.
    vectors : int
        Pull-backs in one pass, where all outputs are summed after all.
    range_basis : Tensor of shape (k, p), optional
        Orthonormal columns whose span holds the range of every Jacobian.
    norms : SummedNorms, optional
        Knows, or sums together with those of other maps, the squared norm.
    """
    dtype = summing_dtype(linear.input.device)
    x = linear.input.to(dtype)
    output = linear.output.to(device=x.device, dtype=dtype)
    jx = linear.push(linear.input.unsqueeze(0))[0].to(x)
    ones = torch.ones_like(linear.output).unsqueeze(0)
    centroid = linear.pull(ones)[0].to(x)
    short = Compressed(linear, range_basis)
    space = leading_space(short, short.coordinates(jx), options, generator)
    known = None if norms is None else norms.look_up(range_basis)
    if known is not None:
        estimate = known.to(x), 0 * space.energy
    else:
        estimate = squared_norm(short, space, options, generator)
    if estimate is not None:
        total, total_error = estimate
    else:
        summed = (
            summed_square(short, vectors)
            if norms is None
            else norms.compute(range_basis)
        )
        total, total_error = summed.to(x), 0 * space.energy
    energy, tilt = space.energy, space.tilt
    right = space.leading_image()
    norm, length = total.sqrt(), x.norm(dim=-1)
    cosine = safe_ratio((right * x).sum(-1).abs(), right.norm(dim=-1) * length)
    norm_error = safe_ratio(total_error, 2 * norm)
    relative = safe_ratio(norm_error, norm)
    rank = safe_ratio(total, energy)
    ratio = safe_ratio(jx.norm(dim=-1), norm * length).clamp(max=1)
    measures = {
        "normal_alignment": cosine.clamp(max=1),
        "effective_rank": rank,
        "jacobian_norm": norm,
        "alignment_ratio": ratio,
        **offset_and_centroid(output, jx, centroid, x),
    }
    errors = {
        "normal_alignment": tilt,
        "effective_rank": rank * (2 * relative + tilt.square()),
        "jacobian_norm": norm_error,
        "alignment_ratio": ratio * relative,
    }
    if y is not None:
        looks = row_distances(short.outputs(space.basis), space.gram, y)
        distance, slack = nearest_candidate(
            linear, looks, energy, output, y, candidates=options.candidates
        )
        measures["local_robustness"], errors["local_robustness"] = distance, slack
    return measures, errors


def leading_space(
    linear: Compressed,
    jx: Tensor,
    options: MatrixFreeOptions,
    generator: torch.Generator,
) -> KrylovSpace:
    """Return a Krylov space in which the leading pair has converged, if it can."""
    n, p, d = linear.shape
    start = gaussian((n, p, min(options.block, p, d)), generator, jx)
    start[:, :, 0] = jx  # at a normal-aligned sample this is the vector looked for
    space = KrylovSpace(linear, start, options.max_rank)
    space.settle()
    while space.can_grow and bool((space.tilt > options.rtol).any()):
        space.grow()
        space.settle()
    return space


def squared_norm(
    linear: Compressed,
    space: KrylovSpace,
    options: MatrixFreeOptions,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor] | None:
    """Return ``|J|_F^2`` of each sample and the standard error of the estimate.

    Grows the space where that pays. None if a pass for each output is cheaper.
    """
    n, p, _ = linear.shape
    block, spent, lacked = options.block, 0, [float("inf")] * 2
    lacking = float("inf")
    # The first probes are asked again of each larger space; later ones come when it
    # grows no more, and only what they found is kept.
    first: tuple[Tensor, Tensor] | None = None
    later: list[Tensor] = []
    growing = True
    while space.basis.shape[2] < p:
        if not growing or not spent:
            count = block if lacking > block else max(2, int(lacking) + 1)
            more = gaussian((n, p, count), generator, space.basis)
            pulled = linear.pull(more.permute(2, 0, 1)).transpose(0, 1)
            if first is None:
                first = more, pulled
            else:
                later.append(_energy_off(space, more, pulled))
            spent += count
            del more, pulled
        assert first is not None
        draws = torch.cat([_energy_off(space, *first), *later], 1)
        total = space.gram.diagonal(dim1=1, dim2=2).sum(1) + draws.mean(1)
        error = draws.std(1) / draws.shape[1] ** 0.5
        # Two standard errors, and a margin for how little few draws know of them.
        wanted = options.rtol * total / 2 / (1 + draws.shape[1] ** -0.5)
        if not bool((error > wanted).any()):  # what is not a number never will be
            return total, error
        # The probes that this error still lacks; a larger space would lower it too.
        lacking = float(
            (safe_ratio(error, wanted).nan_to_num(0).square().max() - 1)
            * draws.shape[1]
        )
        pays = 2 * block < lacking < 0.8 * lacked[-2]
        growing = growing and space.can_grow and pays
        if growing:
            space.settle()
            growing = space.can_grow
        if growing:
            space.grow()
            spent += 2 * block
            lacked.append(lacking)
        elif lacking > p and p <= options.max_passes:
            return None
        elif spent >= options.max_passes:
            return total, error
    inside = space.gram.diagonal(dim1=1, dim2=2).sum(1)
    return inside, torch.zeros_like(inside)


def _energy_off(space: KrylovSpace, probes: Tensor, pulled: Tensor) -> Tensor:
    """Return ``|J^T w|^2`` of each probe, (n, m), with w on a sphere off the space.

    Of a probe only the direction off the space counts; on a sphere of squared radius
    equal to its dimension, the random length of a Gaussian adds no variance.
    """
    inside = space.basis.mT @ probes  # (n, r, m) coordinates in the space
    dimension = space.basis.shape[1] - space.basis.shape[2]
    length = probes.square().sum(1) - inside.square().sum(1)
    whole = _squares(pulled, probes)
    cross = (inside * space.products(pulled)).sum(1)
    within = (inside * (space.gram @ inside)).sum(1)
    return (whole - 2 * cross + within).clamp_min(0) * dimension / length


def _squares(rows: Tensor, like: Tensor) -> Tensor:
    """Return the squared length of each row of (n, p, d), summed in float64."""
    found = like.new_zeros(rows.shape[:2])
    for part in column_slabs(rows):
        found += rows[:, :, part].to(like).square().sum(2)
    return found


def summed_square(linear: Compressed, vectors: int) -> Tensor:
    """Return ``|J|_F^2`` from a pull-back for each output direction, keeping none."""
    n, p, _ = linear.shape
    total: Tensor | float = 0.0
    for directions in torch.eye(p).split(vectors):
        rows = linear.pull(directions.unsqueeze(1).expand(-1, n, -1)).transpose(0, 1)
        like = rows.new_zeros((), dtype=summing_dtype(rows.device))
        total = total + _squares(rows, like).sum(1)
    assert isinstance(total, Tensor)
    return total


def row_distances(coordinates: Tensor, gram: Tensor, y: Tensor) -> Tensor:
    """Return ``|R_y - R_c|`` of rows with these coordinates (n, k, m) and Gram matrix.

    With the Krylov space's own they approximate ``|J_y - J_c|``, from below.
    """
    mapped = coordinates @ gram
    squares = (mapped * coordinates).sum(-1)
    own = coordinates.take_along_dim(y[:, None, None], 1)
    cross = (mapped * own).sum(-1)
    gap = squares + squares.take_along_dim(y[:, None], 1) - 2 * cross
    return gap.clamp_min(0).sqrt()


def nearest_candidate(
    linear: LinearMap,
    row_distance: Tensor,
    energy: Tensor,
    output: Tensor,
    y: Tensor,
    *,
    candidates: int,
) -> tuple[Tensor, Tensor]:
    """Return the distance to the nearest boundary, and how much too large it may be.

    The classes that look nearest by approximate row distances, (n, k), get their exact
    one from one pull-back each; the nearest of these is the value. No other class can
    be nearer than its margin over ``sqrt(2) s_1``.
    """
    n, k, _ = linear.shape
    if k == 1:
        return torch.full_like(output[:, 0], torch.inf), torch.zeros_like(output[:, 0])
    own = output.take_along_dim(y[:, None], 1)
    margin = own - output
    reach = (2 * energy.unsqueeze(1)).sqrt()
    moving = row_distance > 0
    looks = margin / torch.where(moving, row_distance, reach.clamp_min(1e-300))
    looks = looks.scatter(1, y[:, None], torch.inf)
    chosen = looks.topk(min(candidates, k - 1), largest=False).indices
    picks = torch.zeros(chosen.shape[1], n, k, device=output.device)
    picks.scatter_(2, chosen.T.unsqueeze(-1), -1.0)
    picks[:, torch.arange(n), y] = 1.0
    distances = _squares(linear.pull(picks).transpose(0, 1), output).sqrt()
    exact = torch.full_like(output, -1.0).scatter(1, chosen, distances)
    known = exact >= 0
    best = nearest_boundary(
        torch.where(known | (margin == 0), output, -torch.inf), exact.clamp_min(0), y
    )
    wrong = (margin < 0).any(1)
    best = torch.where(wrong, 0.0, best)
    floor = torch.where(known, torch.inf, safe_ratio(margin, reach.expand_as(margin)))
    floor = floor.scatter(1, y[:, None], torch.inf).amin(1)
    slack = torch.where(torch.isfinite(best), (best - floor).clamp_min(0), 0.0)
    return best, torch.where(wrong, 0.0, slack)


class Compressed:
    """A linear map seen through p output directions that hold its whole range.

    With orthonormal columns Q, (k, p), and ``J = Q B``: products with B and ``B^T``.

    Parameters
    ----------
    linear : LinearMap
    basis : Tensor of shape (k, p), optional
        The columns of Q; without it B is J itself.
    """

    def __init__(self, linear: LinearMap, basis: Tensor | None) -> None:
        self._linear, self._basis = linear, basis
        n, k, d = linear.shape
        self.shape = (n, k if basis is None else basis.shape[1], d)
        self.noise = rounding(linear.output.dtype)

    def pull(self, cotangents: Tensor) -> Tensor:
        """Return ``B^T v`` for a block of cotangents, (b, n, p) -> (b, n, d)."""
        if self._basis is not None:
            cotangents = cotangents @ self._basis.mT.to(cotangents)
        return self._linear.pull(cotangents)

    def push(self, tangents: Tensor) -> Tensor:
        """Return ``B u`` for a block of tangents, (b, n, d) -> (b, n, p)."""
        pushed = self._linear.push(tangents)
        return pushed if self._basis is None else self.coordinates(pushed)

    def coordinates(self, outputs: Tensor) -> Tensor:
        """Return ``Q^T v`` of vectors of outputs, (..., k) -> (..., p)."""
        return outputs if self._basis is None else outputs @ self._basis.to(outputs)

    def outputs(self, coordinates: Tensor) -> Tensor:
        """Return ``Q c`` of columns of coordinates, (n, p, m) -> (n, k, m)."""
        basis = self._basis
        return coordinates if basis is None else basis.to(coordinates) @ coordinates


class KrylovSpace:
    """A growing orthonormal basis Q of outputs with its image J^T Q, for each sample.

    The image is by far the largest thing here; it is kept once, in the precision in
    which the model gives it, and only products of it are taken in float64.

    Attributes
    ----------
    basis : Tensor of shape (n, p, m)
        In the coordinates of the compressed outputs.
    gram : Tensor of shape (n, m, m)
        ``Q^T J J^T Q``.
    energy : Tensor of shape (n,)
        The leading Ritz value of ``J J^T``, an estimate of ``s_1^2`` from below.
    weights : Tensor of shape (n, m)
        Its vector, in the basis.
    tilt : Tensor of shape (n,)
        Bound on the sine of the angle to the true leading vector, from the time of the
        last :meth:`settle`.
    can_grow : bool
        Whether there is room and anything left to add, likewise.
    """

    def __init__(self, linear: Compressed, start: Tensor, max_rank: int) -> None:
        self._linear = linear
        self._generator = torch.Generator().manual_seed(1)
        self._fresh = _orthonormal(start, start[..., :0], self._generator)
        self._pulled: Tensor | None = None
        self._images: list[Tensor] = []
        self.can_grow = True
        self._room = min(max_rank, linear.shape[1])
        # Products carry the rounding of the model's own precision.
        self._noise = linear.noise
        self.basis = start[..., :0]
        self.gram = start.new_zeros(len(start), 0, 0)
        self.grow()

    def grow(self) -> None:
        """Add a block to the space, a pull-back for each of its vectors."""
        self.settle()
        self.basis = torch.cat([self.basis, self._fresh], 2)
        self._pulled = self._linear.pull(self._fresh.permute(2, 0, 1))
        image = self._pulled.transpose(0, 1)
        cross, inner = self.products(image), _products(image, image, self.basis)
        self.gram = torch.cat(
            [torch.cat([self.gram, cross], 2), torch.cat([cross.mT, inner], 2)], 1
        )
        self._images.append(image)
        self._values, self._vectors = finite_eigh(self.gram)
        self.energy = self._values[:, -1].clamp_min(0)
        self.weights = self._vectors[..., -1]

    def products(self, pulled: Tensor) -> Tensor:
        """Return ``(J^T Q)^T h`` for each of the vectors h, (n, b, d) -> (n, m, b)."""
        if not self._images:
            return self.gram.new_zeros(len(pulled), 0, pulled.shape[1])
        found = [_products(image, pulled, self.basis) for image in self._images]
        return torch.cat(found, 1)

    def leading_image(self) -> Tensor:
        """Return ``J^T u`` of the leading Ritz vector u, (n, d)."""
        widths = [image.shape[1] for image in self._images]
        found: Tensor | float = 0.0
        for image, weights in zip(
            self._images, self.weights.split(widths, 1), strict=True
        ):
            found = found + torch.einsum("nm,nmd->nd", weights, image.to(weights))
        assert isinstance(found, Tensor)
        return found

    def settle(self) -> None:
        """Push the last block forward: what it says of the error, and the next block.

        Kept apart from :meth:`grow`, for the last block of all need not be pushed.
        """
        if self._pulled is None:
            return
        returned = self._linear.push(self._pulled).to(self.basis).permute(1, 2, 0)
        returned = self.off(self.off(returned))  # once is not enough in floating point
        self.tilt = self._bound(returned, self._values, self._vectors)
        news = returned.flatten(1).norm(dim=1)
        room = self._room - self.basis.shape[2]
        self.can_grow = room > 0 and bool((news > self._noise * self.energy).any())
        if self.can_grow:
            fresh = _orthonormal(returned, self.basis, self._generator)
            self._fresh = fresh[..., :room]
        self._pulled = None

    def off(self, block: Tensor) -> Tensor:
        """Return the part of each block (n, p, b) orthogonal to the basis."""
        return block - self.basis @ (self.basis.mT @ block)

    def _bound(self, returned: Tensor, values: Tensor, vectors: Tensor) -> Tensor:
        # The residual of the first pair over its distance from the second eigenvalue,
        # which lies within the second residual of the second Ritz value.
        energy = values[:, -1].clamp_min(0)
        tail = vectors[:, -returned.shape[2] :, -2:]
        residual = (returned @ tail).norm(dim=1)
        second = values[:, -2] + residual[:, 0] if values.shape[1] > 1 else 0 * energy
        gap = (energy - second - self._noise * energy).clamp_min(0)
        tilt = safe_ratio(residual[:, -1], gap).clamp(max=1)
        return torch.where((gap == 0) & (energy != 0), 1.0, tilt)


def _products(left: Tensor, right: Tensor, like: Tensor) -> Tensor:
    """Return ``left right^T`` of (n, p, d) and (n, q, d), summed in float64."""
    found = like.new_zeros(len(left), left.shape[1], right.shape[1])
    for part in column_slabs(left):
        found += left[:, :, part].to(like) @ right[:, :, part].to(like).mT
    return found


def gaussian(
    shape: tuple[int, ...], generator: torch.Generator, like: Tensor
) -> Tensor:
    """Return standard normal numbers in the dtype and on the device of another tensor.

    They are drawn on the CPU: the same on every device.
    """
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(like)


def _orthonormal(block: Tensor, against: Tensor, generator: torch.Generator) -> Tensor:
    """Return an orthonormal basis (n, p, b) of each block, off the basis given.

    A column with nothing new in it, of a sample whose range is exhausted before that
    of the others, is replaced by a random one: normalised rounding would not be
    orthogonal to anything.
    """
    block = torch.where(torch.isfinite(block), block, 0.0)
    basis = torch.linalg.qr(block)[0]
    basis = basis - against @ (against.mT @ basis)
    empty = basis.norm(dim=1, keepdim=True) < 0.1
    if bool(empty.any()):
        spare = gaussian(tuple(basis.shape), generator, basis)
        for _ in range(2):
            spare = spare - against @ (against.mT @ spare)
        basis = torch.where(empty, spare, basis)
    return torch.linalg.qr(basis)[0]
