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

import torch
from torch import Tensor

from normalign.geometry.alignment import safe_ratio
from normalign.geometry.exact import offset_and_centroid, summing_dtype
from normalign.geometry.linearize import Linearization
from normalign.geometry.margin import nearest_boundary

__all__ = ["MatrixFreeOptions", "matrix_free_measures"]


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


class KrylovSpace:
    """A growing orthonormal basis Q of outputs with its image J^T Q, for each sample.

    Attributes
    ----------
    basis : Tensor of shape (n, k, m)
    image : Tensor of shape (n, m, d)
    energy : Tensor of shape (n,)
        The leading Ritz value of ``J J^T``, an estimate of ``s_1^2`` from below.
    weights : Tensor of shape (n, m)
        Its vector, in the basis.
    tilt : Tensor of shape (n,)
        Bound on the sine of the angle to the true leading vector.
    """

    def __init__(self, linear: Linearization, start: Tensor, max_rank: int) -> None:
        self._linear, self._fresh = linear, _orthonormal(start)
        self._room = min(max_rank, linear.shape[1])
        # Products carry the rounding of the model's own precision.
        self._noise = 1e3 * torch.finfo(linear.output.dtype).eps
        self.basis = start[..., :0]
        self.image = start.new_zeros(len(start), 0, linear.shape[2])
        self.can_grow = True
        self.grow()

    def grow(self) -> None:
        """Add one block: a pull-back and a push-forward for each of its vectors."""
        fresh, linear = self._fresh, self._linear
        self.basis = torch.cat([self.basis, fresh], 2)
        pulled = linear.pull(fresh.permute(2, 0, 1)).to(fresh)
        self.image = torch.cat([self.image, pulled.transpose(0, 1)], 1)
        values, vectors = torch.linalg.eigh(self.image @ self.image.mT)
        returned = linear.push(pulled).to(fresh).permute(1, 2, 0)
        returned = self.off(self.off(returned))  # once is not enough in floating point
        self.energy, self.weights = values[:, -1].clamp_min(0), vectors[..., -1]
        self.tilt = self._bound(returned, values, vectors)
        news = returned.flatten(1).norm(dim=1)
        room = self._room - self.basis.shape[2]
        self.can_grow = room > 0 and bool((news > self._noise * self.energy).any())
        if self.can_grow:
            self._fresh = _orthonormal(returned, self.basis)[..., :room]

    def off(self, block: Tensor) -> Tensor:
        """Return the part of each block (n, k, b) orthogonal to the basis."""
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
        return torch.where((gap > 0) | (energy == 0), tilt, 1.0)


def matrix_free_measures(
    linear: Linearization,
    y: Tensor | None,
    *,
    options: MatrixFreeOptions,
    generator: torch.Generator,
    range_basis: Tensor | None = None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the measures of each sample, and error estimates of the estimated ones.

    Parameters
    ----------
    generator : torch.Generator
        Source of the starting block and of the probes, on the CPU.
    range_basis : Tensor of shape (k, p), optional
        Orthonormal columns whose span holds the range of every Jacobian.
    """
    dtype = summing_dtype(linear.input.device)
    x = linear.input.to(dtype)
    output = linear.output.to(device=x.device, dtype=dtype)
    jx = linear.push(linear.input.unsqueeze(0))[0].to(x)
    ones = torch.ones_like(linear.output).unsqueeze(0)
    centroid = linear.pull(ones)[0].to(x)
    space = leading_space(linear, jx, options, generator)
    total, total_error = squared_norm(linear, space, options, generator, range_basis)
    energy, tilt = space.energy, space.tilt
    right = torch.einsum("nm,nmd->nd", space.weights, space.image)
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
        distance, slack = nearest_candidate(linear, space, output, y, options)
        measures["local_robustness"], errors["local_robustness"] = distance, slack
    return measures, errors


def leading_space(
    linear: Linearization,
    jx: Tensor,
    options: MatrixFreeOptions,
    generator: torch.Generator,
) -> KrylovSpace:
    """Return a Krylov space in which the leading pair has converged, if it can."""
    n, k, d = linear.shape
    start = _gaussian((n, k, min(options.block, k, d)), generator, jx)
    start[:, :, 0] = jx  # at a normal-aligned sample this is the vector looked for
    space = KrylovSpace(linear, start, options.max_rank)
    while space.can_grow and bool((space.tilt > options.rtol).any()):
        space.grow()
    return space


def squared_norm(
    linear: Linearization,
    space: KrylovSpace,
    options: MatrixFreeOptions,
    generator: torch.Generator,
    range_basis: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``|J|_F^2`` of each sample and the standard error of the estimate.

    Grows the space where that pays.
    """
    n, k, _ = linear.shape
    block, spent, lacked = options.block, 0, float("inf")
    exact_passes = k if range_basis is None else range_basis.shape[1]
    probes = space.basis.new_zeros(n, k, 0)
    pulled = space.image.new_zeros(n, 0, space.image.shape[2])
    growing = True
    while space.basis.shape[2] < k:
        if not growing or not spent:
            more = _gaussian((n, k, block), generator, probes)
            image = linear.pull(more.permute(2, 0, 1)).to(probes).transpose(0, 1)
            probes = torch.cat([probes, more], 2)
            pulled = torch.cat([pulled, image], 1)
            spent += block
        draws = _energy_off(space, probes, pulled)
        total = space.image.square().sum((1, 2)) + draws.mean(1)
        error = draws.std(1) / draws.shape[1] ** 0.5
        wanted = options.rtol * total / 2
        if bool((error <= wanted).all()):
            return total, error
        # The probes that this error still lacks; a larger space would lower it too.
        lacking = float((safe_ratio(error, wanted).square().max() - 1) * draws.shape[1])
        growing = growing and space.can_grow and 2 * block < lacking < 0.9 * lacked
        if growing:
            space.grow()
            spent, lacked = spent + 2 * block, lacking
        elif lacking > exact_passes and exact_passes <= options.max_passes:
            return _exact_square(linear, block, range_basis), 0 * total
        elif spent >= options.max_passes:
            return total, error
    inside = space.image.square().sum((1, 2))
    return inside, torch.zeros_like(inside)


def _energy_off(space: KrylovSpace, probes: Tensor, pulled: Tensor) -> Tensor:
    """Return ``|J^T (I - Q Q^T) w|^2`` of each probe, (n, m), from ``J^T w``."""
    inside = (space.basis.mT @ probes).mT  # (n, m, r) coordinates in the space
    return (pulled - inside @ space.image).square().sum(2)


def _exact_square(
    linear: Linearization, block: int, range_basis: Tensor | None
) -> Tensor:
    """Return ``|J|_F^2`` from a pull-back for each output direction, keeping none."""
    n, k, _ = linear.shape
    if range_basis is None:
        range_basis = torch.eye(k, device=linear.output.device)
    dtype = summing_dtype(linear.input.device)
    total = linear.input.new_zeros(n, dtype=dtype)
    for directions in range_basis.mT.split(block):
        picks = directions.unsqueeze(1).expand(-1, n, -1)
        total = total + linear.pull(picks).to(dtype).square().sum((0, 2))
    return total


def nearest_candidate(
    linear: Linearization,
    space: KrylovSpace,
    output: Tensor,
    y: Tensor,
    options: MatrixFreeOptions,
) -> tuple[Tensor, Tensor]:
    """Return the distance to the nearest boundary, and how much too large it may be.

    The classes that look nearest by the Krylov space's picture of ``|J_y - J_c|`` get
    their exact distance from one pull-back each; the nearest of these is the value. No
    other class can be nearer than its margin over ``sqrt(2) s_1``.
    """
    n, k, _ = linear.shape
    if k == 1:
        return torch.full_like(output[:, 0], torch.inf), torch.zeros_like(output[:, 0])
    own = output.take_along_dim(y[:, None], 1)
    margin = own - output
    coordinates = torch.einsum("nkm,nmd->nkd", space.basis, space.image)
    picture = (coordinates.take_along_dim(y[:, None, None], 1) - coordinates).norm(
        dim=-1
    )
    reach = (2 * space.energy.unsqueeze(1)).sqrt()
    looks = margin / torch.where(picture > 0, picture, reach.clamp_min(1e-300))
    looks = looks.scatter(1, y[:, None], torch.inf)
    chosen = looks.topk(min(options.candidates, k - 1), largest=False).indices
    exact = torch.full_like(output, -1.0)
    for column in range(0, chosen.shape[1], options.block):
        classes = chosen[:, column : column + options.block]
        picks = torch.zeros(classes.shape[1], n, k, device=output.device)
        picks.scatter_(2, classes.T.unsqueeze(-1), -1.0)
        picks = picks.scatter_add(
            2,
            y[None, :, None].expand(len(picks), n, 1),
            torch.ones_like(picks[..., :1]),
        )
        distance = linear.pull(picks).to(output).norm(dim=-1)
        exact = exact.scatter(1, classes, distance.T)
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


def _gaussian(
    shape: tuple[int, ...], generator: torch.Generator, like: Tensor
) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(like)


def _orthonormal(block: Tensor, against: Tensor | None = None) -> Tensor:
    """Return an orthonormal basis (n, k, b) of each block, off the basis given."""
    basis = torch.linalg.qr(block)[0]
    if against is not None:
        basis = torch.linalg.qr(basis - against @ (against.mT @ basis))[0]
    return basis
