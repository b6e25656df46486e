"""The centroids of all networks of an ensemble, one pull-back for each sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from normalign._errors import require, require_kind
from normalign._hooks import At, Location, location_in
from normalign._torch_compat import attention_with_derivatives
from normalign.geometry import centroid_alignment
from normalign.geometry._exact import summing_dtype
from normalign.training.stack import Measure, Stack

__all__ = ["stacked_centroid_alignment"]

CALLEE = "stacked_centroid_alignment"


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
    inputs = _inputs(x, at)
    labels = None if y is None else _labels(y, inputs.shape[1])

    return _CentroidAlignment(inputs, labels, at)


class _CentroidAlignment:
    """A measurement of all networks of a stack at some samples."""

    def __init__(self, x: Tensor, y: Tensor | None, at: str | At | None) -> None:
        self.x, self.y, self.at = x, y, at

    @torch.no_grad()
    def __call__(self, stack: Stack) -> dict[str, Tensor]:
        rows, points = stack.rows, _of(stack, self.x)
        dtype = rows.dtype if points.is_floating_point() else points.dtype
        answers = None if self.y is None else _of(stack, self.y).to(rows.device)
        start, pulled = _pulled(stack, points.to(rows.device, dtype), answers, self.at)
        exact = summing_dtype(rows.device)
        start = start.flatten(2).to(exact)
        cosines = [centroid_alignment(v.flatten(2).to(exact), start) for v in pulled]
        columns = {
            "centroid_alignment": cosines[0].mean(1),
            "centroid_magnitude": cosines[0].abs().mean(1),
        }
        if answers is not None:
            columns["answer_alignment"] = cosines[1].mean(1)
        return columns


def _pulled(
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
            location = location_in(network, at, CALLEE)
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


def _inputs(x: Tensor | Sequence[Tensor], at: str | At | None) -> Tensor:
    """Return samples as (1, n, ...) or (s, n, ...), or complain."""
    parts = list(x) if isinstance(x, Sequence) else [x]
    rule, told = "a tensor, or one for each member", bool(parts)
    told = told and all(isinstance(part, Tensor) for part in parts)
    require_kind(told, CALLEE, "x", rule, x)
    shapes = {tuple(part.shape) for part in parts}
    rule = "of one shape for all members, and non-empty"
    fits = len(shapes) == 1 and parts[0].ndim >= 2 and len(parts[0]) > 0
    require(fits, CALLEE, "x", rule, f"{sorted(shapes)}")
    real = at is not None or parts[0].is_floating_point()
    remedy = "Name where the map begins: at='...'."
    require_kind(real, CALLEE, "x", "of a real dtype", parts[0], remedy)
    return torch.stack([part.detach() for part in parts])


def _labels(y: Tensor | Sequence[Tensor], n: int) -> Tensor:
    """Return labels as (1, n) or (s, n), or complain."""
    parts = list(y) if isinstance(y, Sequence) else [y]
    told = all(isinstance(v, Tensor) and not v.is_floating_point() for v in parts)
    rule = "an integer tensor, or one for each member"
    require_kind(told and bool(parts), CALLEE, "y", rule, y)
    fits, rule = {v.shape for v in parts} == {(n,)}, f"of shape ({n},), one per sample"
    require(fits, CALLEE, "y", rule, parts[0])
    return torch.stack([part.detach().long() for part in parts])


def _of(stack: Stack, value: Tensor) -> Tensor:
    """Return the samples, (s, n, ...), of the networks that the stack still holds."""
    if len(value) == 1:
        return value.expand(stack.size, *value.shape[1:])
    last = max(stack.positions)
    rule = f"one for each member of the ensemble, {last + 1} or more"
    require(last < len(value), CALLEE, "x", rule, f"{len(value)}")
    return value[stack.positions]
