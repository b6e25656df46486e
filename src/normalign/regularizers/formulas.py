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
from normalign.regularizers.passes import LocalPass

__all__ = ["Estimate", "Noise", "estimate", "given_noise", "penalty", "widened"]

# The released experiments take the square root of no less than this.
LEAST_SQUARE = 1e-8

# Returns standard normal numbers, one for each entry of the tensor it is given.
Noise = Callable[[Tensor], Tensor]


def penalty(local: LocalPass, noise: Noise, form: PenaltyForm) -> Tensor:
    """Return the unweighted penalty of each sample, (n,)."""
    found = estimate(local, noise, form)
    if form.power == "ratio":
        assert found.along is not None
        return _log_ratio(found.squared, found.along, local.point)
    if form.power == 1:
        value = found.squared.clamp_min(LEAST_SQUARE).sqrt()
    else:
        value = found.squared
    return value if found.offset is None else value + found.offset


class Estimate(NamedTuple):
    """What one batch of probes says of each sample.

    Attributes
    ----------
    squared : Tensor of shape (n,)
        The squared norm of the Jacobian.
    offset : Tensor of shape (n,) or None
        The squared norm of the offset, where the form wants it.
    along : Tensor of shape (n, ...) or None
        ``J x``, where it was needed.
    """

    squared: Tensor
    offset: Tensor | None = None
    along: Tensor | None = None


def estimate(local: LocalPass, noise: Noise, form: PenaltyForm) -> Estimate:
    """Return the parts of the penalty, by the estimator that the form names."""
    found = _BY_NAME[form.estimator](local, noise, form)
    if form.power == "ratio" or (form.has_offset and found.offset is None):
        along = local.push(local.point) if found.along is None else found.along
        found = found._replace(along=along)
    if form.has_offset and found.offset is None:
        assert found.along is not None
        offset = energy(widened(local.output) - widened(found.along))
        found = found._replace(offset=offset)
    if form.power == "ratio" and form.estimator == "orthogonal":
        # |J|^2 |x|^2 = |J P|^2 |x|^2 + |J x|^2: what was projected out is put back.
        assert found.along is not None
        length, along = energy(local.point), energy(found.along)
        whole = found.squared + along / length.clamp_min(_tiny(length))
        found = found._replace(squared=whole)
    return found


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


def _log_ratio(squared: Tensor, along: Tensor, point: Tensor) -> Tensor:
    # A sample with J = 0 or x = 0 has nothing to align: both logarithms are equal.
    whole, part = squared * energy(point), energy(along)
    return whole.clamp_min(_tiny(whole)).log() - part.clamp_min(_tiny(part)).log()


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


def _output(local: LocalPass, noise: Noise, form: PenaltyForm) -> Estimate:
    squared = offset = 0.0
    shared = form.has_offset and not form.released
    for _ in range(form.n_probes):
        output = local.output
        probe = _probe(noise(output), form, output)
        pulled = local.pull(probe)
        squared = squared + energy(pulled)
        if shared:
            # v.b = v.f - <J^T v, x>: the offset from the same pull-back.
            miss = inner(probe, output) - inner(pulled, local.point)
            offset = offset + miss.square()
    assert isinstance(squared, Tensor)
    mean = squared / form.n_probes
    return Estimate(mean, offset / form.n_probes if shared else None)  # pyright: ignore


def _input(local: LocalPass, noise: Noise, form: PenaltyForm) -> Estimate:
    squared = 0.0
    for _ in range(form.n_probes):
        tangent = _probe(noise(local.point), form, local.point)
        if form.estimator == "orthogonal":
            tangent = _projected(tangent, local.point)
        squared = squared + energy(local.push(tangent))
    assert isinstance(squared, Tensor)
    return Estimate(squared / form.n_probes)


def _projected(tangent: Tensor, point: Tensor) -> Tensor:
    """Take the part along each point out; along a zero there is none."""
    length = energy(point)
    share = inner(tangent, point) / length.clamp_min(_tiny(length))
    share = share.reshape(-1, *[1] * (point.ndim - 1))
    return (widened(tangent) - share * widened(point)).to(tangent.dtype)


def _nuclear(local: LocalPass, noise: Noise, form: PenaltyForm) -> Estimate:
    squared = 0.0
    first, second = local.halves()
    for _ in range(form.n_probes):
        for part in (second, first):
            probe = _probe(noise(part.output), form, part.output)
            squared = squared + energy(part.pull(probe))
    assert isinstance(squared, Tensor)
    return Estimate(squared / (2 * form.n_probes))


def _noise(local: LocalPass, noise: Noise, form: PenaltyForm) -> Estimate:
    squared, before = 0.0, widened(local.output)
    for _ in range(form.n_probes):
        step = form.std * noise(local.point)
        after = widened(local.moved(step.to(local.point.dtype)))
        squared = squared + energy(after - before) / form.std**2
    assert isinstance(squared, Tensor)
    return Estimate(squared / form.n_probes)


def _exact(local: LocalPass, noise: Noise, form: PenaltyForm) -> Estimate:
    output, point = local.output, local.point
    k, d = math.prod(output.shape[1:]), math.prod(point.shape[1:])
    # A push-forward runs the model again beside its tangent: twice a pull-back.
    return _by_rows(local, k) if k <= 2 * d else _by_columns(local, d)


def _by_rows(local: LocalPass, k: int) -> Estimate:
    output, squared = local.output, 0.0
    along: list[Tensor] = []
    for index in range(k):
        row = local.pull(_unit(output, index))
        squared = squared + energy(row)
        along.append(inner(row, local.point))
    assert isinstance(squared, Tensor)
    return Estimate(squared, along=torch.stack(along, 1).reshape(output.shape))


def _by_columns(local: LocalPass, d: int) -> Estimate:
    squared = along = 0.0
    entries = widened(local.point).flatten(1)
    for index in range(d):
        column = widened(local.push(_unit(local.point, index)))
        squared = squared + energy(column)
        entry = entries[:, index].reshape(-1, *[1] * (column.ndim - 1))
        along = along + entry * column
    assert isinstance(squared, Tensor)
    assert isinstance(along, Tensor)
    return Estimate(squared, along=along)


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
