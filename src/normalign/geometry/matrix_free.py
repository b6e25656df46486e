r"""The measures of models with very many outputs, from a few products with J and J^T.

For an ImageNet head or a vocabulary, one pass for each output is out of reach. What the
measures need is little: the leading singular triple, the Frobenius norm, ``J x`` and
``J^T 1``. The last two are one product each, exact. The first two come from

- a block Krylov space of :math:`G = J J^\top`, grown from ``J x`` and random vectors
  until the residual of the leading Ritz pair, over its gap, is below the tolerance;
- :math:`\|J\|_F^2 = \operatorname{tr} Q^\top G Q + \mathbb{E} \|J^\top (I - Q Q^\top)
  w\|^2`, exact on that space Q and by Hutchinson's estimator (Lemma hutchinson) off
  it, with fresh probes until the standard error is below the tolerance. If that takes
  more passes than there are outputs, the rest is summed exactly instead.

Both come with an error estimate beside the value.
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
        Relative error aimed at, of the norm (one standard error) and of the leading
        vector.
    block : int
        Vectors that go through the model together.
    max_rank : int
        Largest dimension of the Krylov space.
    max_probes : int
        Most probes for the norm before the rest is summed exactly, or, if that is
        dearer still, left with the error it has.
    candidates : int
        Competing classes whose boundary distance is computed exactly.
    """

    rtol: float = 1e-3
    block: int = 8
    max_rank: int = 96
    max_probes: int = 512
    candidates: int = 16


@dataclass
class KrylovSpace:
    """An orthonormal basis Q of outputs, its image J^T Q, and the leading Ritz pair."""

    basis: Tensor  # (n, k, m)
    image: Tensor  # (n, m, d)
    energy: Tensor  # (n,) the leading Ritz value, an estimate of s_1^2
    weights: Tensor  # (n, m) its vector in the basis
    tilt: Tensor  # (n,) bound on the sine of the angle to the true leading vector


def matrix_free_measures(
    linear: Linearization,
    y: Tensor | None,
    *,
    options: MatrixFreeOptions,
    generator: torch.Generator,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the measures of each sample, and error estimates of the estimated ones.

    Parameters
    ----------
    generator : torch.Generator
        Source of the starting block and of the probes, on the CPU.
    """
    dtype = summing_dtype(linear.input.device)
    x = linear.input.to(dtype)
    output = linear.output.to(device=x.device, dtype=dtype)
    jx = linear.push(linear.input.unsqueeze(0))[0].to(x)
    ones = torch.ones_like(linear.output).unsqueeze(0)
    centroid = linear.pull(ones)[0].to(x)
    space = krylov_space(linear, jx, options, generator)
    energy, tilt = space.energy, space.tilt
    right = torch.einsum("nm,nmd->nd", space.weights, space.image)
    total, total_error = squared_norm(linear, space, options, generator)
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


def krylov_space(
    linear: Linearization,
    jx: Tensor,
    options: MatrixFreeOptions,
    generator: torch.Generator,
) -> KrylovSpace:
    """Grow a block Krylov space of ``J J^T`` until its leading pair has converged."""
    n, k, d = linear.shape
    limit = min(options.max_rank, k)
    # Products carry the rounding of the model's own precision.
    noise = 1e3 * torch.finfo(linear.output.dtype).eps
    start = torch.randn(
        n, k, min(options.block, k, d), generator=generator, dtype=torch.float64
    ).to(jx)
    start[:, :, 0] = jx  # at a normal-aligned sample this is the vector looked for
    fresh = _orthonormal(start)
    basis, image = fresh[..., :0], jx.new_zeros(n, 0, d)
    while True:
        basis = torch.cat([basis, fresh], 2)
        pulled = linear.pull(fresh.permute(2, 0, 1)).to(jx).transpose(0, 1)
        image = torch.cat([image, pulled], 1)
        values, vectors = torch.linalg.eigh(image @ image.mT)
        returned = linear.push(pulled.transpose(0, 1)).to(jx).permute(1, 2, 0)
        returned = _off(basis, _off(basis, returned))  # once is not enough
        energy = values[:, -1].clamp_min(0)
        tilt = _tilt(returned, values, vectors, noise)
        exhausted = returned.flatten(1).norm(dim=1) <= noise * energy
        done = (tilt <= options.rtol) | exhausted | (energy == 0)
        room = limit - basis.shape[2]
        if bool(done.all()) or room == 0:
            return KrylovSpace(basis, image, energy, vectors[..., -1], tilt)
        fresh = _orthonormal(returned, basis)[..., :room]


def _tilt(returned: Tensor, values: Tensor, vectors: Tensor, noise: float) -> Tensor:
    """Bound the sine between the leading Ritz vector and the true one.

    It is the residual of the first pair over its distance from the second eigenvalue,
    which in turn lies within the second residual of the second Ritz value.
    """
    energy = values[:, -1].clamp_min(0)
    tail = vectors[:, -returned.shape[2] :, -2:]
    residual = (returned @ tail).norm(dim=1)
    second = values[:, -2] + residual[:, 0] if values.shape[1] > 1 else 0 * energy
    gap = (energy - second - noise * energy).clamp_min(0)
    tilt = safe_ratio(residual[:, -1], gap).clamp(max=1)
    return torch.where((gap > 0) | (energy == 0), tilt, 1.0)


def squared_norm(
    linear: Linearization,
    space: KrylovSpace,
    options: MatrixFreeOptions,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Return ``|J|_F^2`` of each sample and the standard error of the estimate."""
    n, k, _ = linear.shape
    inside = space.image.square().sum((1, 2))
    if space.basis.shape[2] >= k:
        return inside, torch.zeros_like(inside)
    draws: list[Tensor] = []
    while True:
        probes = torch.randn(
            options.block, n, k, generator=generator, dtype=torch.float64
        ).to(inside)
        probes = _off(space.basis, probes.permute(1, 2, 0)).permute(2, 0, 1)
        draws += list(linear.pull(probes).to(inside).square().sum(-1))
        sample = torch.stack(draws)
        total = inside + sample.mean(0)
        error = sample.std(0) / len(draws) ** 0.5
        wanted = 2 * options.rtol * total  # the norm's relative error is half of this
        if bool((error <= wanted).all()):
            return total, error
        needed = float((safe_ratio(error, wanted).square() * len(draws)).max())
        if needed > min(k, options.max_probes):
            if k <= 2 * options.max_probes:
                return _exact_square(linear, options.block), torch.zeros_like(total)
            if len(draws) >= options.max_probes:
                return total, error


def _exact_square(linear: Linearization, block: int) -> Tensor:
    """Return ``|J|_F^2`` from one pull-back for each output, keeping none of them."""
    n, k, _ = linear.shape
    dtype = summing_dtype(linear.input.device)
    total = linear.input.new_zeros(n, dtype=dtype)
    for classes in torch.arange(k).split(block):
        picks = torch.zeros(len(classes), n, k).to(linear.output)
        picks[torch.arange(len(classes)), :, classes] = 1
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


def _off(basis: Tensor, block: Tensor) -> Tensor:
    """Return the part of each block (n, k, b) orthogonal to its basis (n, k, m)."""
    return block - basis @ (basis.mT @ block)


def _orthonormal(block: Tensor, against: Tensor | None = None) -> Tensor:
    """Return an orthonormal basis (n, k, b) of each block, off the basis given."""
    basis = torch.linalg.qr(block)[0]
    if against is not None:
        basis = torch.linalg.qr(_off(against, basis))[0]
    return basis
