"""The estimates of Jacobian norms, and what a penalty makes of them.

The formulas stand here once, over :class:`normalign.regularizers.passes.LocalPass`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from normalign.regularizers.forms import PenaltyForm
from normalign.regularizers.passes import Cut, LocalPass

__all__ = ["Noise", "energy", "given_noise", "inner", "penalty", "widened"]

# The released experiments take the square root of no less than this.
LEAST_SQUARE = 1e-8

# Returns standard normal numbers, one for each entry of the tensor it is given.
Noise = Callable[[Tensor], Tensor]


def penalty(local: LocalPass, noise: Noise, form: PenaltyForm) -> Tensor:
    """Return the unweighted penalty of each sample, (n,)."""
    if form.power == "ratio":
        return _log_ratio(local, noise, form)
    found = _BY_NAME[form.estimator](local, noise, form, local.point)
    value = _total(local, found) / found.n_probes
    if form.power == 1:
        value = value.clamp_min(LEAST_SQUARE).sqrt()
    if not form.has_offset:
        return value
    if found.offset is not None:
        return value + found.offset
    along, tangent = _along(local, found, local.point)
    return value + _square(local, along, tangent, base=local.output)


class Found(NamedTuple):
    """What one batch of probes says of each sample.

    Attributes
    ----------
    products : list of Tensor
        Their squared norms, summed and divided by ``n_probes``, estimate that of the
        Jacobian.
    n_probes : int
    tangents : list of Tensor, optional
        Where the products are push-forwards, what was pushed.
    offset : Tensor of shape (n,), optional
        The squared norm of the offset, where the products give it.
    along : Tensor of shape (n, ...), optional
        What the Jacobian makes of the direction asked for, where the products give it.
    """

    products: list[Tensor]
    n_probes: int = 1
    tangents: list[Tensor] | None = None
    offset: Tensor | None = None
    along: Tensor | None = None


def _log_ratio(local: LocalPass, noise: Noise, form: PenaltyForm) -> Tensor:
    """Return ``log |J|^2 |x|^2 - log |J x|^2``, of whatever scale J and x are.

    Sums of squares leave the range of float32 at 1e19 and at 1e-19. The points, and
    all products of a sample, are brought near to one first; both scales cancel.
    """
    direction = _near_one(local.point)
    found = _BY_NAME[form.estimator](local, noise, form, direction)
    along, tangent = _along(local, found, direction)
    largest = [_largest(product) for product in (*found.products, along)]
    scale = torch.stack(largest).amax(0)
    scale = scale.clamp_min(_tiny(scale))
    whole = _total(local, found, scale) / found.n_probes * energy(direction)
    part = _square(local, along, tangent, scale=scale)
    if form.estimator == "orthogonal":
        # |J|^2 |x|^2 = |J P|^2 |x|^2 + |J x|^2: what was projected out is put back.
        whole = whole + part
    # A sample with J = 0 or x = 0 has nothing to align: both logarithms are equal.
    return whole.clamp_min(_tiny(whole)).log() - part.clamp_min(_tiny(part)).log()


def _along(
    local: LocalPass, found: Found, direction: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return ``J u`` for the direction, and u where that is a push-forward."""
    if found.along is None:
        return local.push(direction), direction
    return found.along, None if found.tangents is None else direction


def _total(local: LocalPass, found: Found, scale: Tensor | None = None) -> Tensor:
    tangents = found.tangents or [None] * len(found.products)
    pairs = zip(found.products, tangents, strict=True)
    first, *rest = (_square(local, p, tangent, scale=scale) for p, tangent in pairs)
    return sum(rest, start=first)


def _square(
    local: LocalPass,
    product: Tensor,
    tangent: Tensor | None,
    *,
    base: Tensor | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    r"""Return the squared norm of a product, or of ``base`` less it, differentiable.

    Of a push-forward without a graph only the number is taken. With the vector
    :math:`w = J u` held fixed,

    .. math:: \partial \lVert J u \rVert_2^2 = 2 \langle w, \partial (J u) \rangle
        = 2\, \partial \langle J^\top w, u \rangle,

    so that its gradient is that of a pull-back. There is no second derivative.
    """
    vector = widened(product) if base is None else widened(base) - widened(product)
    vector = vector if scale is None else _divided(vector, scale)
    if tangent is None or getattr(local, "push_has_graph", True):
        return energy(vector)
    vector = vector.detach()
    slope = inner(local.pull(vector.to(local.output.dtype)), tangent)
    slope = slope if scale is None else slope / scale
    slope = slope if base is None else inner(vector, base) - slope
    return energy(vector) + 2 * (slope - slope.detach())


def _largest(value: Tensor) -> Tensor:
    """Return the largest absolute entry of each sample, (n,), as a constant."""
    return widened(value.detach()).flatten(1).abs().amax(1)


def _divided(value: Tensor, scale: Tensor) -> Tensor:
    return widened(value) / scale.reshape(-1, *[1] * (value.ndim - 1))


def _near_one(point: Tensor) -> Tensor:
    """Return each point with its largest entry between 1 and 2; zeros stay.

    By powers of two, which leave every digit as it is.
    """
    largest = _largest(point)
    scale = largest.clamp_min(_tiny(largest)).log2().floor().exp2()
    return _divided(point, scale).to(point.dtype)


def widened(value: Tensor) -> Tensor:
    """Return half precision as float32, in which sums of squares make sense."""
    return value.float() if value.dtype in (torch.half, torch.bfloat16) else value


def energy(value: Tensor) -> Tensor:
    """Return the sum of squares of each sample, (n, ...) -> (n,)."""
    return widened(value).flatten(1).square().sum(1)


def inner(left: Tensor, right: Tensor) -> Tensor:
    """Return the inner product of each sample, (n, ...) -> (n,)."""
    return (widened(left) * widened(right)).flatten(1).sum(1)


def _tiny(value: Tensor) -> float:
    return torch.finfo(value.dtype).tiny


def given_noise(noise: Tensor | None) -> Noise:
    """Hand out given noise: within a probe one block after the other."""
    if noise is None or noise.ndim == 0:
        return torch.zeros_like
    rows, start = noise.flatten(2), 0

    def take(like: Tensor) -> Tensor:
        nonlocal start
        probe, first = divmod(start, rows.shape[2])
        size = math.prod(like.shape[1:])
        start += size
        return rows[probe, :, first : first + size].reshape(like.shape)

    return take


def _probe(noise: Tensor, form: PenaltyForm, like: Tensor) -> Tensor:
    """Return a probe with mean 0 and covariance I, in the precision of the pass."""
    if form.probe == "sphere":
        rows = noise.flatten(1)
        length = rows.norm(dim=1, keepdim=True).clamp_min(_tiny(rows))
        noise = (rows / length * rows.shape[1] ** 0.5).reshape(noise.shape)
    return noise.to(like.dtype)


def _output(
    local: LocalPass, noise: Noise, form: PenaltyForm, direction: Tensor
) -> Found:
    products: list[Tensor] = []
    offset: Tensor | None = None
    shared = form.has_offset and not form.released
    for _ in range(form.n_probes):
        output = local.output
        probe = _probe(noise(output), form, output)
        pulled = local.pull(probe)
        products.append(pulled)
        if shared:
            # v.b = v.f - <J^T v, x>: the offset from the same pull-back.
            miss = inner(probe, output) - inner(pulled, direction)
            offset = miss.square() if offset is None else offset + miss.square()
    offset = None if offset is None else offset / form.n_probes
    return Found(products, form.n_probes, offset=offset)


def _input(
    local: LocalPass, noise: Noise, form: PenaltyForm, direction: Tensor
) -> Found:
    tangents: list[Tensor] = []
    for _ in range(form.n_probes):
        tangent = _probe(noise(local.point), form, local.point)
        if form.estimator == "orthogonal":
            tangent = _projected(tangent, direction)
        tangents.append(tangent)
    products = [local.push(tangent) for tangent in tangents]
    return Found(products, form.n_probes, tangents)


def _projected(tangent: Tensor, direction: Tensor) -> Tensor:
    """Take the part along each direction out; along a zero there is none."""
    line = _near_one(direction)
    length = energy(line)
    share = inner(tangent, line) / length.clamp_min(_tiny(length))
    share = share.reshape(-1, *[1] * (line.ndim - 1))
    return (widened(tangent) - share * widened(line)).to(tangent.dtype)


def _nuclear(
    local: LocalPass, noise: Noise, form: PenaltyForm, direction: Tensor
) -> Found:
    assert isinstance(local, Cut)
    products: list[Tensor] = []
    first, second = local.halves()
    for _ in range(form.n_probes):
        for part in (second, first):
            probe = _probe(noise(part.output), form, part.output)
            products.append(part.pull(probe))
    return Found(products, 2 * form.n_probes)


def _noise(
    local: LocalPass, noise: Noise, form: PenaltyForm, direction: Tensor
) -> Found:
    products: list[Tensor] = []
    before = widened(local.output)
    for _ in range(form.n_probes):
        step = form.std * noise(local.point)
        after = widened(local.moved(step.to(local.point.dtype)))
        products.append((after - before) / form.std)
    return Found(products, form.n_probes)


def _exact(
    local: LocalPass, noise: Noise, form: PenaltyForm, direction: Tensor
) -> Found:
    k = math.prod(local.output.shape[1:])
    d = math.prod(local.point.shape[1:])
    # Of a push-forward, the number takes one pull-back and the gradient another.
    by_rows = k <= 2 * d
    return (
        _by_rows(local, k, direction) if by_rows else _by_columns(local, d, direction)
    )


def _by_rows(local: LocalPass, k: int, direction: Tensor) -> Found:
    output = local.output
    rows = [local.pull(_unit(output, index)) for index in range(k)]
    along = torch.stack([inner(row, direction) for row in rows], 1)
    return Found(rows, along=along.reshape(output.shape))


def _by_columns(local: LocalPass, d: int, direction: Tensor) -> Found:
    units = [_unit(local.point, index) for index in range(d)]
    columns = [local.push(unit) for unit in units]
    entries = widened(direction).flatten(1)
    along: Tensor | None = None
    for index, column in enumerate(columns):
        entry = entries[:, index].reshape(-1, *[1] * (column.ndim - 1))
        part = entry * widened(column)
        along = part if along is None else along + part
    return Found(columns, tangents=units, along=along)


def _unit(like: Tensor, index: int) -> Tensor:
    """Return, for each sample, the unit vector of one entry."""
    size = math.prod(like.shape[1:])
    # Not by setting an entry: that copies a number from the host, which a CUDA graph
    # that is being captured does not allow.
    row = (torch.arange(size, device=like.device) == index).to(like.dtype)
    return row.reshape(like.shape[1:]).expand(like.shape)


_BY_NAME = {
    "output": _output,
    "input": _input,
    "orthogonal": _input,
    "nuclear": _nuclear,
    "exact": _exact,
    "noise": _noise,
}
