"""Geometry of all networks of an ensemble, measured in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from normalign._errors import describe, require, require_kind
from normalign._hooks import At, Location, location_in
from normalign._torch_compat import attention_with_derivatives
from normalign.geometry._alignment import (
    alignment_ratio,
    centroid_alignment,
    safe_ratio,
    unit_scale,
)
from normalign.geometry._exact import summing_dtype
from normalign.geometry._margin import check_labels, local_robustness
from normalign.geometry._spectrum import top_singular
from normalign.training._stack import Measure, Stack

__all__ = ["stacked_centroid_alignment", "stacked_geometry"]

_GEOMETRY = "stacked_geometry"

# Of Jacobians and what is made of them, when the caller names no chunk size.
BUDGET = 2**28


def stacked_geometry(
    x: Tensor | Sequence[Tensor],
    y: Tensor | Sequence[Tensor] | None = None,
    *,
    chunk_size: int | None = None,
) -> Measure:
    r"""Return a measurement of every network of an ensemble at some samples.

    .. math:: \mathrm{na}(f_i; D) = \frac1n \sum_{x \in D} \mathrm{na}(f_i; x),
        \qquad i = 1, \dots, s

    and so for each measure: the mean over the samples of ``normal_alignment``,
    ``effective_rank``, ``alignment_ratio``, ``centroid_alignment``, ``jacobian_norm``,
    ``offset_norm`` and, with labels, ``local_robustness``, which are the names of the
    columns and mean what they do in :class:`normalign.LocalGeometry`. Sums run in
    float64, whatever the precision of the networks. A network that has diverged has
    NaN; a robustness without competitors is infinite, and so is its mean.

    It builds the exact Jacobians of all networks, some samples at a time: k
    pull-backs for each sample, and the eigenvalues of a matrix of min(k, d) rows. For
    a chain of two hidden layers of width h the Jacobians take about
    :math:`k h (h + d)` multiplications a sample, as much as k forward passes. So
    measure at few epochs (``measure_at=``) or few samples; for thousands of outputs
    take :func:`normalign.local_geometry`, network by network.

    Parameters
    ----------
    x : Tensor of shape (n, ...), or one for each member of the ensemble
        Where to measure. It is brought to the networks' device and dtype once.
    y : integer Tensor of shape (n,), or one for each member, optional
        True classes; they add ``local_robustness``.
    chunk_size : int, optional
        Samples worked on at once. By default as many as keep the Jacobians of all
        networks, with the float64 copies made of them, to about 256 MiB; networks
        that are not chains hold their activations for each output beside them.

    Returns
    -------
    callable
        For ``Ensemble(measure=...)``: from a :class:`~normalign.training.Stack`
        of s networks to a dict of float64 tensors of shape (s,).

    Raises
    ------
    TypeError
        If ``x`` does not hold real numbers, or ``y`` integers.
    ValueError
        If the shapes do not fit each other, or a class is none of the outputs.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from normalign.training import Ensemble, Member, rules
    >>> network, x = torch.nn.Linear(2, 1), torch.eye(2)
    >>> _ = [torch.nn.init.constant_(p, 3.0) for p in network.parameters()]
    >>> data = SimpleNamespace(x_train=x, y_train=x[0], x_test=x, y_test=x[0])
    >>> ensemble = Ensemble([network], data, [Member(0, rules.SGD())], epochs=0,
    ...     loss="squared_error", measure=stacked_geometry(x))
    >>> ensemble.train()[0].history["offset_norm"]
    [3.0]
    """
    remedy = "Tokens have no Jacobian; use local_geometry(..., at=...) on a network."
    inputs, labels = _check_inputs(_GEOMETRY, x, y, tokens=False, remedy=remedy)
    if chunk_size is not None:
        require(chunk_size >= 1, _GEOMETRY, "chunk_size", "at least 1", chunk_size)
    return _Geometry(inputs, labels, chunk_size)


class _Geometry:
    """A measurement, with the samples that it brings to the device once."""

    def __init__(self, x: Tensor, y: Tensor | None, chunk_size: int | None) -> None:
        self.x, self.y, self.chunk_size = x, y, chunk_size
        self._placed: dict[Any, tuple[Tensor, Tensor | None]] = {}

    def describe(self) -> dict[str, Any]:
        """Return all settings, the samples among them."""
        return {"x": self.x, "y": self.y, "chunk_size": self.chunk_size}

    @torch.no_grad()
    def __call__(self, stack: Stack) -> dict[str, Tensor]:
        rows = stack.rows
        place = rows.device, rows.dtype
        if place not in self._placed:
            self._placed[place] = (
                self.x.to(rows.dtype).to(rows.device),
                None if self.y is None else self.y.to(rows.device),
            )
            if rows.device.type == "cuda":  # other stacks read it on other streams
                torch.cuda.current_stream(rows.device).synchronize()
        return _means(stack, *self._placed[place], self.chunk_size)


def _means(
    stack: Stack, x: Tensor, y: Tensor | None, chunk_size: int | None
) -> dict[str, Tensor]:
    """Return the mean of each measure over the samples, (s,), chunk by chunk."""
    networks, parameters = stack.networks, stack.networks.split(stack.rows)
    n = x.shape[1]
    k = networks.outputs(parameters, _of(_GEOMETRY, stack, x, slice(0, 1))).shape[2]
    if y is not None:
        check_labels(_GEOMETRY, y, tuple(y.shape), k)
    if chunk_size is None:
        # The Jacobians, and three float64 copies at the height of the work.
        size = stack.size * k * x[0, 0].numel() * (stack.rows.element_size() + 3 * 8)
        chunk_size = max(1, BUDGET // max(size, 1))
    sums: dict[str, Tensor] = {}
    for start in range(0, n, chunk_size):
        piece = slice(start, start + chunk_size)
        point = _of(_GEOMETRY, stack, x, piece)
        measured = _measures(
            networks.jacobians(parameters, point),
            networks.outputs(parameters, point),
            point.flatten(2),
            None if y is None else _of(_GEOMETRY, stack, y, piece),
        )
        for name, value in measured.items():
            sums[name] = sums.get(name, 0.0) + value.sum(1)
    return {name: total / n for name, total in sums.items()}


def _of(callee: str, stack: Stack, value: Tensor, piece: slice = slice(None)) -> Tensor:
    """Return some samples, (s, c, ...), of the networks that the stack still holds."""
    if len(value) == 1:
        return value[:, piece].expand(stack.size, -1, *value.shape[2:])
    last = max(stack.positions)
    rule = f"one for each member of the ensemble, {last + 1} or more"
    require(last < len(value), callee, "x", rule, f"{len(value)}")
    return value[stack.positions, piece]


def _measures(
    jacobian: Tensor, output: Tensor, x: Tensor, y: Tensor | None
) -> dict[str, Tensor]:
    """Return every measure of every network and sample, (s, c)."""
    dtype = summing_dtype(jacobian.device)
    jacobian, output, x = jacobian.to(dtype), output.to(dtype), x.to(dtype)
    # One decomposition for the alignment and the rank.
    top = top_singular(unit_scale(jacobian, 2))
    offset = output - (jacobian @ x.unsqueeze(-1)).squeeze(-1)
    length = x.norm(dim=-1)
    cosine = safe_ratio((top.right * x).sum(-1).abs(), length)
    measures = {
        "normal_alignment": cosine.clamp(max=1),
        "effective_rank": safe_ratio(top.total, top.energy),
        "alignment_ratio": alignment_ratio(jacobian, x),
        "centroid_alignment": centroid_alignment(jacobian.sum(-2), x),
        "jacobian_norm": jacobian.flatten(-2).norm(dim=-1),
        "offset_norm": offset.norm(dim=-1),
    }
    if y is not None:
        measures["local_robustness"] = local_robustness(jacobian, offset, x, y)
    return measures


def _check_inputs(
    callee: str,
    x: Tensor | Sequence[Tensor],
    y: Tensor | Sequence[Tensor] | None,
    *,
    tokens: bool,
    remedy: str,
) -> tuple[Tensor, Tensor | None]:
    """Return samples and labels as (1, n, ...) or (s, n, ...), or complain."""
    inputs = _stack_values(callee, "x", x)
    real = tokens or inputs.is_floating_point()
    require_kind(real, callee, "x", "of a real dtype", inputs[0], remedy)
    shaped = inputs.ndim >= 3 and inputs.shape[1] >= 1
    require(shaped, callee, "x", "non-empty, of shape (n, ...)", inputs[0])
    if y is None:
        return inputs, None
    labels = _stack_values(callee, "y", y)
    whole = not (labels.is_floating_point() or labels.dtype == torch.bool)
    require_kind(whole, callee, "y", "of an integer dtype", labels[0])
    n = inputs.shape[1]
    fits = labels.shape[1:] == (n,)
    require(fits, callee, "y", f"of shape ({n},), one per sample", labels[0])
    return inputs, labels.long()


def _stack_values(callee: str, name: str, value: Tensor | Sequence[Tensor]) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()[None]
    rule = "a tensor, or one for each member"
    is_valid = isinstance(value, Sequence) and all(isinstance(v, Tensor) for v in value)
    require_kind(is_valid and len(value) > 0, callee, name, rule, describe(value))
    shapes = {tuple(part.shape) for part in value}
    rule = "of one shape for all members"
    require(len(shapes) == 1, callee, name, rule, f"{sorted(shapes)}")
    return torch.stack([part.detach() for part in value])


_CENTROIDS = "stacked_centroid_alignment"


def stacked_centroid_alignment(
    x: Tensor | Sequence[Tensor],
    y: Tensor | Sequence[Tensor] | None = None,
    *,
    at: str | At | None = None,
) -> Measure:
    r"""Return the centroid alignment of every network of an ensemble at some samples.

    .. math:: \frac1n \sum_x \cos(\mu_x, x), \qquad \mu_x = J_x^\top \mathbf 1

    in the column ``centroid_alignment``, in [-1, 1]; and the mean of the cosine's
    magnitude in ``centroid_magnitude``, for the definition of the paper lets a centroid
    point the other way. With ``at=`` the map begins at a submodule's input, which then
    takes the place of x, flattened: for networks of tokens the embedded ones. A network
    without a centroid (its outputs sum to a constant) counts as 0.

    Cross-entropy does not see what is added to all logits, so it does not shape their
    sum, and the aligned solution has centroids of length 0 (Eq. ci_ce). With labels,
    ``answer_alignment`` is the mean cosine of x with the Jacobian's row of the true
    class, which that solution aligns.

    It costs two forward passes and one backward pass (two with labels) over all samples
    at once, however many outputs there are;
    :func:`normalign.training.stacked_geometry` builds whole Jacobians. The samples of a
    batch must not depend on each other.

    Parameters
    ----------
    x : Tensor of shape (n, ...), or one for each member of the ensemble
        Where to measure; integers need ``at``.
    y : integer Tensor of shape (n,), or one for each member, optional
        True classes; they add ``answer_alignment``.
    at : str or At, optional
        See :func:`normalign.local_geometry`.

    Returns
    -------
    callable
        For ``Ensemble(measure=...)``: from a stack of s networks to float64 tensors of
        shape (s,).

    Raises
    ------
    TypeError
        If ``x`` holds integers and there is no ``at``.
    ValueError
        If the shapes do not fit each other, or there is no such submodule.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from normalign.training import Ensemble, Member, rules
    >>> network, x = torch.nn.Linear(2, 2), torch.eye(2)
    >>> _ = torch.nn.init.eye_(network.weight)
    >>> data = SimpleNamespace(x_train=x, y_train=x, x_test=x, y_test=x)
    >>> ensemble = Ensemble([network], data, [Member(0, rules.SGD())], epochs=0,
    ...     loss="squared_error", measure=stacked_centroid_alignment(x))
    >>> round(ensemble.train()[0].history["centroid_alignment"][0], 3)
    0.707
    """
    remedy = "Name where the map begins: at='...'."
    inputs, labels = _check_inputs(
        _CENTROIDS, x, y, tokens=at is not None, remedy=remedy
    )
    return _CentroidAlignment(inputs, labels, at)


class _CentroidAlignment:
    """A measurement of all networks of a stack at some samples."""

    def __init__(self, x: Tensor, y: Tensor | None, at: str | At | None) -> None:
        self.x, self.y, self.at = x, y, at

    @torch.no_grad()
    def __call__(self, stack: Stack) -> dict[str, Tensor]:
        rows, points = stack.rows, _of(_CENTROIDS, stack, self.x)
        dtype = rows.dtype if points.is_floating_point() else points.dtype
        labels = None
        if self.y is not None:
            labels = _of(_CENTROIDS, stack, self.y).to(rows.device)
        start, pulled = _pull_back(
            stack, points.to(rows.device, dtype), labels, self.at
        )
        exact = summing_dtype(rows.device)
        start = start.flatten(2).to(exact)
        cosines = [centroid_alignment(v.flatten(2).to(exact), start) for v in pulled]
        columns = {
            "centroid_alignment": cosines[0].mean(1),
            "centroid_magnitude": cosines[0].abs().mean(1),
        }
        if labels is not None:
            columns["answer_alignment"] = cosines[1].mean(1)
        return columns


def _pull_back(
    stack: Stack, x: Tensor, y: Tensor | None, at: str | At | None
) -> tuple[Tensor, list[Tensor]]:
    """Return where the map begins, and centroids and rows of y there: (s, n, ...)."""
    network, names = stack.networks.network, list(stack.networks.shapes)
    parameters = stack.networks.split(stack.rows)

    def run(values: list[Tensor], x: Tensor) -> Tensor:
        named = dict(zip(names, values, strict=True))
        return functional_call(network, named, (x,)).flatten(1)

    with attention_with_derivatives():
        if at is None:
            tail, start = run, x
        else:
            location = location_in(network, at, _CENTROIDS)
            start = vmap(_head(run, location))(parameters, x)
            tail = _tail(run, location)
        with torch.enable_grad():
            start = start.detach().requires_grad_()
            arguments = (start,) if at is None else (x, start)
            output = vmap(tail)(parameters, *arguments)
            # Samples do not mix, so the sum's gradient holds each one's centroid.
            totals = [output.sum()]
            if y is not None:
                totals.append(output.gather(2, y.unsqueeze(2)).sum())
            pulled = [
                torch.autograd.grad(total, start, retain_graph=True)[0]
                for total in totals
            ]
    return start.detach(), pulled


def _head(run: Callable[..., Tensor], location: Location) -> Callable[..., Tensor]:
    """Return what one network has at a location."""
    return lambda values, x: location.read(lambda: run(values, x))


def _tail(run: Callable[..., Tensor], location: Location) -> Callable[..., Tensor]:
    """Return one network's outputs as a function of what it has at a location."""

    def tail(values: list[Tensor], x: Tensor, hidden: Tensor) -> Tensor:
        with location.replacing(lambda _: hidden):
            return run(values, x)

    return tail
