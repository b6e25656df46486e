"""What a Jacobian does away from its point: the energy that alignment removes."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import normalize

from normalign._errors import require

__all__ = [
    "aligned_coefficients",
    "factored_energy",
    "orthogonal_energy",
    "probed_energy",
]


def aligned_coefficients(jacobian: Tensor, x: Tensor) -> Tensor:
    r"""The best fit of each Jacobian by a rank-one matrix along its point.

    .. math:: c^\star = J \hat u = \arg\min_c |J - c\,\hat u^\top|_F^2, \qquad
        \hat u = x / |x|_2

    (Prop. alignment_frob-proj_equivalence.) Note that it multiplies the *unit*
    vector: in the definition ``J = c x^T`` the coefficients are :math:`c^\star /
    |x|`. Zero for a zero x.

    Parameters
    ----------
    jacobian : Tensor of shape (..., k, d)
    x : Tensor of shape (..., d)

    Returns
    -------
    Tensor of shape (..., k)

    Examples
    --------
    >>> import torch
    >>> aligned_coefficients(torch.eye(2), torch.tensor([0.0, 5.0]))
    tensor([0., 1.])
    """
    _check("aligned_coefficients", jacobian, x)
    return (jacobian @ normalize(x, dim=-1).unsqueeze(-1)).squeeze(-1)


def orthogonal_energy(jacobian: Tensor, x: Tensor) -> Tensor:
    r"""Squared distance from each Jacobian to the nearest normal-aligned matrix.

    .. math:: \mathcal R_\perp(x) = |J P_{\hat u^\perp}|_F^2
        = \min_c |J - c\,\hat u^\top|_F^2 = |J|_F^2 - |J \hat u|_2^2, \qquad
        P_{\hat u^\perp} = I - \hat u \hat u^\top

    (Prop. alignment_frob-proj_equivalence.) Non-negative, and zero exactly for
    ``J = c x^T``. With a zero x it is the whole :math:`|J|_F^2`. Computed by
    projecting, not from the last form, which loses small values to cancellation.
    ``1 - orthogonal_energy / |J|_F^2`` is the squared
    :func:`normalign.geometry.alignment_ratio`.

    Parameters
    ----------
    jacobian : Tensor of shape (..., k, d)
    x : Tensor of shape (..., d)

    Returns
    -------
    Tensor of shape (...)

    Examples
    --------
    >>> import torch
    >>> orthogonal_energy(3 * torch.eye(2), torch.tensor([0.0, 5.0]))
    tensor(9.)
    """
    fit = aligned_coefficients(jacobian, x)
    unit = normalize(x, dim=-1)
    rest = jacobian - fit.unsqueeze(-1) * unit.unsqueeze(-2)
    return rest.square().sum((-2, -1))


def probed_energy(
    jacobian: Tensor, probes: Tensor, *, orthogonal_to: Tensor | None = None
) -> Tensor:
    r"""Mean squared length of a Jacobian's images of probe vectors.

    .. math:: \frac1s \sum_{j=1}^s |J z_j|_2^2, \qquad
        \mathbb E\,|J z|_2^2 = \mathrm{tr}(J J^\top) = |J|_F^2
        \quad\text{if}\quad \mathbb E z z^\top = I

    (Lemma hutchinson. For probes u of the output space transpose the Jacobian; the
    lemma's second half, printed with the two moments run together, asks for
    :math:`\mathbb E u = 0` and :math:`\mathbb E u u^\top = I`. Only the second is
    used.) With ``orthogonal_to`` each probe is first projected off that direction,
    and the expectation is :func:`orthogonal_energy` (Lemma hutchinson_projected).

    Parameters
    ----------
    jacobian : Tensor of shape (k, d)
    probes : Tensor of shape (s, d)
    orthogonal_to : Tensor of shape (d,), optional

    Returns
    -------
    Tensor of shape ()

    Examples
    --------
    >>> import torch
    >>> probes = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    >>> probed_energy(torch.tensor([[3.0, 4.0]]), probes)
    tensor(25.)
    """
    require(
        jacobian.ndim == 2 and probes.ndim == 2
        and jacobian.shape[1] == probes.shape[1],
        "probed_energy", "probes", f"of shape (s, d) for {tuple(jacobian.shape)}",
        probes,
    )  # fmt: skip
    if orthogonal_to is not None:
        unit = normalize(orthogonal_to, dim=-1)
        probes = probes - (probes @ unit).unsqueeze(-1) * unit
    return (probes @ jacobian.T).square().sum(-1).mean()


def factored_energy(outer: Tensor, inner: Tensor) -> Tensor:
    r"""Half the squared Frobenius norms of two Jacobians that are composed.

    .. math:: \mathcal R_{\mathrm{Nuc}} = \tfrac12 (|J_g|_F^2 + |J_h|_F^2)
        \ge |J_g J_h|_\star

    For :math:`f = g \circ h` it bounds the nuclear norm of the whole Jacobian, with
    equality for balanced factors, :math:`J_g = U S^{1/2}` and :math:`J_h = S^{1/2}
    V^\top`. That is what lies under the theorem of Scarvelis and Solomon quoted in
    the appendix: minimising over g and h as well as over f, the two penalties have the
    same least value, if the inner width is at least the rank and the models are rich
    enough to reach the balanced factors.

    Parameters
    ----------
    outer : Tensor of shape (..., k, h)
    inner : Tensor of shape (..., h, d)

    Returns
    -------
    Tensor of shape (...)

    Examples
    --------
    >>> import torch
    >>> factored_energy(torch.eye(2), torch.eye(2))
    tensor(2.)
    """
    return (outer.square().sum((-2, -1)) + inner.square().sum((-2, -1))) / 2


def _check(who: str, jacobian: Tensor, x: Tensor) -> None:
    require(jacobian.ndim >= 2, who, "jacobian", "at least 2-D", jacobian)
    rule = (*jacobian.shape[:-2], jacobian.shape[-1])
    require(
        x.shape == rule, who, "x", f"of shape {rule} to match the Jacobian", x,
        "Flatten images first.",
    )  # fmt: skip
