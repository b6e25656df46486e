"""Which penalty: its form, the estimates of Jacobian norms, and what it makes of them.

The formulas stand here once, over :class:`normalign.regularizers._pass.LocalPass`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from normalign._errors import describe, require, require_kind
from normalign._hooks import At
from normalign.regularizers._pass import Cut, LocalPass

__all__ = [
    "LEAST_SQUARE", "Noise", "PenaltyForm", "energy", "given_noise", "inner", "penalty",
    "widen",
]  # fmt: skip

ESTIMATORS = ("output", "input", "orthogonal", "nuclear", "exact", "noise")
POWERS = (1, 2, "ratio")
PROBES = ("sphere", "normal")

# The released experiments take the square root of no less than this.
LEAST_SQUARE = 1e-8

# Returns standard normal numbers, one for each entry of the tensor it is given.
Noise = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class PenaltyForm:
    r"""Which penalty: everything but its weight and its random numbers.

    Parameters
    ----------
    estimator : {"output", "input", "orthogonal", "nuclear", "exact", "noise"}
        How :math:`|J|_F^2` is found; see :mod:`normalign.regularizers._estimators`.
    power : {1, 2, "ratio"}
        Per sample :math:`|J|_F + |b|_2^2`, :math:`|J|_F^2 + |b|_2^2`, or
        :math:`\log(|J|_F^2 |x|_2^2) - \log |J x|_2^2`.
    offset : bool, default=True
        Whether :math:`|b|_2^2` is part of it; it never is of the ratio.
    n_probes : int, default=1
    released : bool, default=False
        Take the offset from a push-forward along x, as the released experiments do,
        and not from the pull-back.
    std : float, default=0.01
        Standard deviation of the steps of ``"noise"``.
    at : str or At, optional
        Where the map begins; for ``"nuclear"`` where the model is cut in two, by
        default the middle of an ``nn.Sequential``.
    probe : {"sphere", "normal"}
        Probes uniform on the sphere of radius :math:`\sqrt{\dim}` have the same mean
        as normal ones and a lower variance.
    callee : str
        In whose name errors are raised; not kept.

    Examples
    --------
    >>> import torch
    >>> PenaltyForm(n_probes=2).noise_shape(torch.ones(5, 4), (5, 3))
    (2, 5, 3)
    """

    estimator: str = "output"
    power: int | str = 2
    offset: bool = True
    n_probes: int = 1
    released: bool = False
    std: float = 0.01
    at: str | At | None = None
    probe: str = "sphere"
    callee: InitVar[str] = "PenaltyForm"

    def __post_init__(self, callee: str) -> None:
        choices = {"estimator": ESTIMATORS, "power": POWERS, "probe": PROBES}
        for name, known in choices.items():
            rule = f"one of {', '.join(map(repr, known))}"
            value = getattr(self, name)
            require(
                value in known and not isinstance(value, bool),
                callee, name, rule, repr(value),
            )  # fmt: skip
        n_probes = self.n_probes
        whole = isinstance(n_probes, int) and not isinstance(n_probes, bool)
        require_kind(whole, callee, "n_probes", "an integer", n_probes)
        require(n_probes >= 1, callee, "n_probes", "at least 1", n_probes)
        for name in ("offset", "released"):
            value = getattr(self, name)
            require_kind(isinstance(value, bool), callee, name, "a bool", value)
        real = isinstance(self.std, int | float) and not isinstance(self.std, bool)
        require_kind(real, callee, "std", "a number", describe(self.std))
        positive = 0 < self.std < math.inf
        require(positive, callee, "std", "positive and finite", self.std)
        require(
            not (self.estimator == "nuclear" and self.power == "ratio"),
            callee,
            "power",
            "1 or 2 with the nuclear split",
            "'ratio'",
            "The split bounds the nuclear norm; it estimates no Frobenius norm.",
        )

    @property
    def has_offset(self) -> bool:
        """Whether the squared offset is part of the penalty."""
        return self.offset and self.power != "ratio"

    @property
    def one_pass(self) -> bool:
        """Whether one forward pass is enough: all but finite steps."""
        return self.estimator != "noise"

    def noise_shape(
        self,
        x: Tensor,
        output_shape: tuple[int, ...],
        *,
        hidden_shape: tuple[int, ...] | None = None,
    ) -> tuple[int, ...]:
        """Return the shape of the noise that :func:`penalised` takes.

        ``n_probes`` first, then n. ``"exact"`` takes none: ``()``. The shapes include
        n. ``hidden_shape`` is that of the tensor at the place ``at``: ``"nuclear"``
        needs it, and so do probes of the input when the map begins there.
        """
        if self.estimator == "exact":
            return ()
        if self.estimator == "output":
            return (self.n_probes, *output_shape)
        if self.estimator != "nuclear" and self.at is None:
            return (self.n_probes, *x.shape)
        require(
            hidden_shape is not None,
            "noise_shape",
            "hidden_shape",
            "the shape of the tensor at the cut",
            "None",
            "Run the model once and look.",
        )
        assert hidden_shape is not None
        if self.estimator != "nuclear":
            return (self.n_probes, *hidden_shape)
        entries = math.prod(output_shape[1:]) + math.prod(hidden_shape[1:])
        return (self.n_probes, len(x), entries)


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


class Estimate(NamedTuple):
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
    local: LocalPass, found: Estimate, direction: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return ``J u`` for the direction, and u where that is a push-forward."""
    if found.along is None:
        return local.push(direction), direction
    return found.along, None if found.tangents is None else direction


def _total(local: LocalPass, found: Estimate, scale: Tensor | None = None) -> Tensor:
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
    vector = widen(product) if base is None else widen(base) - widen(product)
    vector = vector if scale is None else _divide(vector, scale)
    if tangent is None or getattr(local, "push_has_graph", True):
        return energy(vector)
    vector = vector.detach()
    slope = inner(local.pull(vector.to(local.output.dtype)), tangent)
    slope = slope if scale is None else slope / scale
    slope = slope if base is None else inner(vector, base) - slope
    return energy(vector) + 2 * (slope - slope.detach())


def _largest(value: Tensor) -> Tensor:
    """Return the largest absolute entry of each sample, (n,), as a constant."""
    return widen(value.detach()).flatten(1).abs().amax(1)


def _divide(value: Tensor, scale: Tensor) -> Tensor:
    return widen(value) / scale.reshape(-1, *[1] * (value.ndim - 1))


def _near_one(point: Tensor) -> Tensor:
    """Return each point with its largest entry between 1 and 2; zeros stay.

    By powers of two, which leave every digit as it is.
    """
    largest = _largest(point)
    scale = largest.clamp_min(_tiny(largest)).log2().floor().exp2()
    return _divide(point, scale).to(point.dtype)


def widen(value: Tensor) -> Tensor:
    """Return half precision as float32, in which sums of squares make sense."""
    return value.float() if value.dtype in (torch.half, torch.bfloat16) else value


def energy(value: Tensor) -> Tensor:
    """Return the sum of squares of each sample, (n, ...) -> (n,)."""
    return widen(value).flatten(1).square().sum(1)


def inner(left: Tensor, right: Tensor) -> Tensor:
    """Return the inner product of each sample, (n, ...) -> (n,)."""
    return (widen(left) * widen(right)).flatten(1).sum(1)


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
) -> Estimate:
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
    return Estimate(products, form.n_probes, offset=offset)


def _input(
    local: LocalPass, noise: Noise, form: PenaltyForm, direction: Tensor
) -> Estimate:
    tangents: list[Tensor] = []
    for _ in range(form.n_probes):
        tangent = _probe(noise(local.point), form, local.point)
        if form.estimator == "orthogonal":
            tangent = _project_off(tangent, direction)
        tangents.append(tangent)
    products = [local.push(tangent) for tangent in tangents]
    return Estimate(products, form.n_probes, tangents)


def _project_off(tangent: Tensor, direction: Tensor) -> Tensor:
    """Take the part along each direction out; along a zero there is none."""
    line = _near_one(direction)
    length = energy(line)
    share = inner(tangent, line) / length.clamp_min(_tiny(length))
    share = share.reshape(-1, *[1] * (line.ndim - 1))
    return (widen(tangent) - share * widen(line)).to(tangent.dtype)


def _nuclear(
    local: LocalPass, noise: Noise, form: PenaltyForm, direction: Tensor
) -> Estimate:
    assert isinstance(local, Cut)
    products: list[Tensor] = []
    first, second = local.halves()
    for _ in range(form.n_probes):
        for part in (second, first):
            probe = _probe(noise(part.output), form, part.output)
            products.append(part.pull(probe))
    return Estimate(products, 2 * form.n_probes)


def _noise(
    local: LocalPass, noise: Noise, form: PenaltyForm, direction: Tensor
) -> Estimate:
    products: list[Tensor] = []
    before = widen(local.output)
    for _ in range(form.n_probes):
        step = form.std * noise(local.point)
        after = widen(local.output_after(step.to(local.point.dtype)))
        products.append((after - before) / form.std)
    return Estimate(products, form.n_probes)


def _exact(
    local: LocalPass, noise: Noise, form: PenaltyForm, direction: Tensor
) -> Estimate:
    k = math.prod(local.output.shape[1:])
    d = math.prod(local.point.shape[1:])
    # Of a push-forward, the number takes one pull-back and the gradient another.
    by_rows = k <= 2 * d
    return (
        _by_rows(local, k, direction) if by_rows else _by_columns(local, d, direction)
    )


def _by_rows(local: LocalPass, k: int, direction: Tensor) -> Estimate:
    output = local.output
    rows = [local.pull(_unit(output, index)) for index in range(k)]
    along = torch.stack([inner(row, direction) for row in rows], 1)
    return Estimate(rows, along=along.reshape(output.shape))


def _by_columns(local: LocalPass, d: int, direction: Tensor) -> Estimate:
    units = [_unit(local.point, index) for index in range(d)]
    columns = [local.push(unit) for unit in units]
    entries = widen(direction).flatten(1)
    along: Tensor | None = None
    for index, column in enumerate(columns):
        entry = entries[:, index].reshape(-1, *[1] * (column.ndim - 1))
        part = entry * widen(column)
        along = part if along is None else along + part
    return Estimate(columns, tangents=units, along=along)


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
