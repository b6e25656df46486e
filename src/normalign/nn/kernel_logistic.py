"""Logistic regression on Gaussian kernel features with learned centers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normalign._errors import require

__all__ = ["GaussianKernelLogistic"]


class GaussianKernelLogistic(nn.Module):
    r"""A Gaussian kernel logistic regression model, weights and centers learned.

    .. math:: f_c(x) = \sum_{j=1}^K W_{cj}\, \phi_j(x), \qquad
        \phi_j(x) = \exp(-\gamma\, |x - \tau_j|_2^2)

    The smallest model of the paper that aligns. Its outputs are logits, to be used
    with cross-entropy. The paper starts the centers at the means of a k-means
    clustering of the training data: pass them as ``centers``.

    Parameters
    ----------
    n_features, n_classes, n_centers : int
        The sizes d, k and K.
    gamma : float
        Inverse squared width of the kernel; a fixed hyper-parameter.
    centers : Tensor of shape (n_centers, n_features), optional
        Where the centers start (copied); standard normal unless given.
    generator : torch.Generator, optional
        Source of the start values; torch's own as for every torch layer if absent.

    Attributes
    ----------
    weight : Parameter of shape (n_classes, n_centers)
        Starts uniform in plus and minus ``1 / sqrt(n_centers)``.
    centers : Parameter of shape (n_centers, n_features)

    Examples
    --------
    >>> model = GaussianKernelLogistic(2, 3, 1, gamma=0.5, centers=torch.zeros(1, 2))
    >>> model.features(torch.zeros(1, 2))
    tensor([[1.]], grad_fn=...)
    """

    def __init__(
        self,
        n_features: int,
        n_classes: int,
        n_centers: int,
        gamma: float,
        *,
        centers: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        who = "GaussianKernelLogistic"
        sizes = {
            "n_features": n_features,
            "n_classes": n_classes,
            "n_centers": n_centers,
        }
        for name, size in sizes.items():
            require(size >= 1, who, name, "at least 1", size)
        require(gamma > 0, who, "gamma", "positive", gamma)
        if centers is None:
            centers = torch.randn(n_centers, n_features, generator=generator)
        rule = (n_centers, n_features)
        require(centers.shape == rule, who, "centers", f"of shape {rule}", centers)
        self.gamma = gamma
        self.centers = nn.Parameter(centers.detach().clone())
        start = torch.rand(n_classes, n_centers, generator=generator) * 2 - 1
        self.weight = nn.Parameter(start.to(self.centers) / n_centers**0.5)

    def features(self, x: Tensor) -> Tensor:
        """Kernel values between points and centers, of shape (..., n_centers)."""
        squares = (
            x.square().sum(-1, keepdim=True)
            - 2 * x @ self.centers.T
            + self.centers.square().sum(-1)
        )
        return torch.exp(-self.gamma * squares)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (..., n_classes) for points of shape (..., n_features)."""
        return self.features(x) @ self.weight.T

    def jacobian(self, x: Tensor) -> Tensor:
        r"""Input-output Jacobians in closed form (Lemma gaussian_jacobian).

        .. math:: J_x^{(c)} = -2\gamma \sum_j W_{cj} \phi_j(x)\, x
            + 2\gamma \sum_j W_{cj} \phi_j(x)\, \tau_j

        The first part is aligned with x; the model is normal-aligned where the
        second vanishes or points along x too.

        Parameters
        ----------
        x : Tensor of shape (..., n_features)

        Returns
        -------
        Tensor of shape (..., n_classes, n_features)
        """
        share = self.weight * self.features(x).unsqueeze(-2)  # (..., k, K)
        aligned = share.sum(-1, keepdim=True) * x.unsqueeze(-2)
        return 2 * self.gamma * (share @ self.centers - aligned)

    def extra_repr(self) -> str:
        """Sizes and gamma, for the module's repr."""
        k, n_centers = self.weight.shape
        return (
            f"n_features={self.centers.shape[1]}, n_classes={k}, "
            f"n_centers={n_centers}, gamma={self.gamma}"
        )
