"""Estimates of the squared norm of each sample's Jacobian, differentiable.

Each returns ``(output, squared)``: what the model returns, from a pass that is shared
with the task loss, and one number for each sample. Both are differentiable in the
parameters. If the model draws random numbers (dropout), the estimate is of the map that
was drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from normalign._hooks import At
from normalign._torch_compat import unwrap
from normalign.regularizers._call import Call, check_call, normal_noise
from normalign.regularizers._formulas import PenaltyForm

__all__ = [
    "augmented_norm",
    "exact_norm",
    "finite_noise",
    "input_probes",
    "nuclear_split",
    "orthogonal_probes",
    "output_probes",
]

Model = Callable[..., Any]


def output_probes(
    model: Model,
    x: Tensor,
    *,
    n_probes: int = 1,
    probe: str = "sphere",
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Return the outputs and the squared norms, by probes of the output space.

    .. math:: \lVert J_x \rVert_F^2 = \mathbb{E}_v \lVert J_x^\top v \rVert_2^2

    (Alg. output_approximation.) One forward pass and one pull-back per probe: the
    cheapest. With :math:`A = J_x J_x^\top` and k outputs the variance of one probe is
    :math:`2 \lVert A \rVert_F^2` for ``"normal"``, as in the paper, and
    :math:`\frac{2k}{k+2} (\lVert A \rVert_F^2 - (\mathrm{tr} A)^2 / k)` for
    ``"sphere"``: lower, and zero for one output.

    Parameters
    ----------
    model : callable
        Maps ``x`` to outputs of shape (n, ...), each sample on its own. Batch
        normalisation in training mode counts as the affine map at fixed statistics.
    x : Tensor of shape (n, ...)
        Floating point. It is not changed, and need not require a gradient.
    n_probes : int, default=1
        Number of probes for each sample; the estimate is their mean.
    probe : {"sphere", "normal"}
        Uniform on the sphere of radius :math:`\sqrt k`, or standard normal.
    generator : torch.Generator, optional
        Source of the probes; ``None`` is torch's default generator.

    Returns
    -------
    output : Tensor of shape (n, ...)
        What ``model(x)`` returns.
    squared : Tensor of shape (n,)

    Raises
    ------
    ValueError
        If the outputs do not depend on ``x``, or if the estimate would not be
        differentiable in any parameter, so that penalising it would do nothing.

    Examples
    --------
    >>> model = torch.nn.Linear(3, 1, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> output_probes(model, torch.ones(2, 3))[1]  # one output: exact
    tensor([3., 3.], grad_fn=<...>)
    """
    form = _form("output_probes", "output", n_probes, probe)
    return _estimate("output_probes", model, x, form, generator)


def input_probes(
    model: Model,
    x: Tensor,
    *,
    n_probes: int = 1,
    probe: str = "sphere",
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Return the outputs and the squared norms, by probes of the input space.

    .. math:: \lVert J_x \rVert_F^2 = \mathbb{E}_u \lVert J_x u \rVert_2^2

    (Alg. input_approximation.) The number by the pull-back of a pull-back, which is a
    push-forward, and its gradient by a pull-back of :math:`J_x u`: three pull-backs,
    and two more for each further probe. The variance is that of :func:`output_probes`
    with :math:`A = J_x^\top J_x` and d in the place of k. Parameters and results are
    those of :func:`output_probes`.

    Examples
    --------
    >>> model = torch.nn.Linear(1, 2, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> input_probes(model, torch.ones(2, 1))[1]  # one input: exact
    tensor([2., 2.], grad_fn=<...>)
    """
    form = _form("input_probes", "input", n_probes, probe)
    return _estimate("input_probes", model, x, form, generator)


def orthogonal_probes(
    model: Model,
    x: Tensor,
    *,
    n_probes: int = 1,
    probe: str = "sphere",
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Return the outputs and what each Jacobian does away from its point.

    .. math:: \mathcal R_\perp(x) = \lVert J_x P_{\hat x^\perp} \rVert_F^2
        = \mathbb{E}_u \lVert J_x (u - \langle u, \hat x\rangle \hat x) \rVert_2^2

    (Alg. input_approximation_orthogonal, Lemma hutchinson_projected.) Zero exactly for
    ``J = c x^T``. Where x is zero nothing is projected out. Its exact value is
    :func:`normalign.theory.orthogonal_energy`.

    Parameters and results are those of :func:`output_probes`.

    Examples
    --------
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> orthogonal_probes(model, torch.ones(1, 2))[1].abs() < 1e-12  # J = 1 x^T
    tensor([True])
    """
    form = _form("orthogonal_probes", "orthogonal", n_probes, probe)
    return _estimate("orthogonal_probes", model, x, form, generator)


def nuclear_split(
    model: Model,
    x: Tensor,
    *,
    at: str | At | None = None,
    n_probes: int = 1,
    probe: str = "sphere",
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Return the outputs and the mean squared norm of a model's two halves.

    .. math:: \mathcal R_{\mathrm{Nuc}}(x) = \tfrac12 \big(
        \lVert J_x(h) \rVert_F^2 + \lVert J_{h(x)}(g) \rVert_F^2 \big),
        \qquad f = g \circ h

    (Sec. nuclear_norm_regularization.) At least the nuclear norm of :math:`J_x`, with
    equality for the best of all factorisations: a penalty on the rank. Both norms by
    probes of the halves' output spaces; two pull-backs of half the model per probe.

    Parameters
    ----------
    model, x, n_probes, probe, generator
        As for :func:`output_probes`.
    at : str or At, optional
        The submodule whose input is the cut; by default the middle of an
        ``nn.Sequential``. Everything must pass through it.

    Returns
    -------
    output : Tensor of shape (n, ...)
    squared : Tensor of shape (n,)

    Raises
    ------
    ValueError
        As for :func:`output_probes`; or if no cut is given for a model that is not a
        chain, or a connection goes around the cut.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    >>> _ = [torch.nn.init.constant_(p, 3.0) for p in model.parameters()]
    >>> nuclear_split(model, torch.ones(1, 1))[1]  # (3^2 + 3^2) / 2, and |J|_* = 9
    tensor([9.], grad_fn=<...>)
    """
    form = _form("nuclear_split", "nuclear", n_probes, probe, at=at)
    return _estimate("nuclear_split", model, x, form, generator)


def exact_norm(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return the outputs and the squared norm of each Jacobian, without probes.

    .. math:: \lVert J_x \rVert_F^2 = \sum_{i,j} (\partial f_i / \partial x_j)^2

    By k pull-backs or d push-forwards, the cheaper: for few outputs, few inputs and for
    tests. Parameters and results are those of :func:`output_probes`.

    Examples
    --------
    >>> model = torch.nn.Linear(3, 2, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> exact_norm(model, torch.ones(2, 3))[1]
    tensor([6., 6.], grad_fn=<...>)
    """
    form = _form("exact_norm", "exact", 1, "sphere")
    return _estimate("exact_norm", model, x, form, None)


def finite_noise(
    model: Model,
    x: Tensor,
    *,
    std: float = 0.01,
    n_probes: int = 1,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Return the outputs and how far they move when the inputs are shaken.

    .. math:: \mathcal R_\sigma(x) = \mathbb{E}_\epsilon\, \lVert f(x + \epsilon)
        - f(x) \rVert_2^2 / \sigma^2, \qquad \epsilon \sim \mathcal N(0, \sigma^2 I)

    (Sec. 3.1.4.) Tends to :math:`\lVert J_x \rVert_F^2` as :math:`\sigma \to 0`, and
    is an estimate of it where the model is affine within a few :math:`\sigma`. Needs
    no derivative in x: one more forward pass per probe, from the buffers and with the
    dropout masks of the first, so that only the points differ. A difference of close
    numbers: too small a ``std`` leaves rounding.

    Parameters and results are those of :func:`output_probes`, with ``std`` the standard
    deviation :math:`\sigma`; batch normalisation in training mode is refused.

    Examples
    --------
    >>> model = torch.nn.Linear(3, 2)
    >>> _ = [torch.nn.init.zeros_(p) for p in model.parameters()]
    >>> finite_noise(model, torch.ones(2, 3))[1]
    tensor([0., 0.], grad_fn=<...>)
    """
    form = _form("finite_noise", "noise", n_probes, "normal", std=std)
    return _estimate("finite_noise", model, x, form, generator)


def augmented_norm(
    model: Model,
    x: Tensor,
    *,
    n_probes: int = 1,
    probe: str = "normal",
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Return the outputs and an estimate of the squared norm of each local map.

    .. math:: \lVert J_x \rVert_F^2 + \lVert b_x \rVert_2^2
        = \mathbb{E}_v\!\left[ \lVert J_x^\top v \rVert_2^2
        + \big(v^\top f(x) - \langle J_x^\top v, x\rangle\big)^2 \right]

    It is Hutchinson's estimator (Lemma *hutchinson*, Alg. output_approximation) for the
    augmented Jacobian :math:`(J_x, b_x)` in the constraint of Theorem 1: since
    :math:`b_x = f(x) - J_x x`, the one vector :math:`J_x^\top v` gives both terms.
    Unbiased for every ``n_probes``; with
    :math:`A = J_x J_x^\top + b_x b_x^\top` the variance is that of
    :func:`output_probes`. The released experiments penalise the square root of the
    first term (biased low) and estimate the second with a second forward pass; this
    form needs neither.

    Parameters and results are those of :func:`output_probes`. The cost is one forward
    pass and one pull-back per probe.

    Examples
    --------
    >>> model = torch.nn.Linear(3, 1)
    >>> _ = [torch.nn.init.zeros_(p) for p in model.parameters()]
    >>> augmented_norm(model, torch.ones(2, 3))[1]  # J = 0 and b = 0
    tensor([0., 0.], grad_fn=<...>)
    """
    form = _form("augmented_norm", "output", n_probes, probe, offset=True)
    return _estimate("augmented_norm", model, x, form, generator)


def _form(
    callee: str, estimator: str, n_probes: int, probe: str, **others: Any
) -> PenaltyForm:
    others = {"offset": False, **others}
    return PenaltyForm(
        estimator=estimator, n_probes=n_probes, probe=probe, callee=callee, **others
    )


def _estimate(
    callee: str,
    model: Model,
    x: Tensor,
    form: PenaltyForm,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    model = unwrap(model, parallel=False)
    check_call(model, x, form, callee)
    call = Call(model, form, callee, trial=False)  # which would be one for each call
    return call(model, x, normal_noise(generator))
