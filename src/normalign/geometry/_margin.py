"""Local robustness: how far the local affine map lets a sample move."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from normalign._errors import describe, require, require_kind
from normalign._torch_compat import in_own_precision
from normalign.geometry._alignment import matching_input
from normalign.geometry._spectrum import wide

__all__ = ["as_labels", "check_labels", "local_robustness", "nearest_boundary"]


@in_own_precision
def local_robustness(
    jacobian: Tensor, offset: Tensor, x: Tensor, y: Tensor | ArrayLike
) -> Tensor:
    r"""Distance from each sample to the nearest boundary of its local affine map.

    .. math:: \rho(x; \tilde f) = \min_{c \neq y} \frac{f_y(x) - f_c(x)}
              {\|J_x^{(y)} - J_x^{(c)}\|_2} \quad \text{(Section 2.2)}

    In the Euclidean norm. It is 0 where the sample is not classified as y, and
    infinite where no class competes: a single output, or rows equal to that of y. The
    true distance for a piecewise-affine network is the same if the boundary is
    reached before the tile is left.

    Parameters
    ----------
    jacobian : Tensor of shape (..., k, d)
    offset : Tensor of shape (..., k)
    x : Tensor of shape (..., d), or (n, ...) with d numbers for each sample
    y : Tensor or array-like of int of shape (...)
        The true class of each sample.

    Returns
    -------
    Tensor of shape (...)

    Examples
    --------
    >>> import torch
    >>> local_robustness(
    ...     torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.zeros(2),
    ...     torch.tensor([3.0, 7.0]), torch.tensor(0),
    ... )
    tensor(3.)
    """
    callee = "local_robustness"
    x = matching_input(callee, jacobian, x)
    k = jacobian.shape[-2]
    require(
        offset.shape == jacobian.shape[:-1],
        callee,
        "offset",
        f"of shape {tuple(jacobian.shape[:-1])} to match the Jacobian",
        offset,
    )
    y = as_labels(callee, y)
    check_labels(callee, y, jacobian.shape[:-2], k)
    rows, y = wide(jacobian), y.to(jacobian.device).long()
    if rows.numel():  # the distance ignores the scale of the map, and squares do not
        size = rows.detach().abs().amax((-2, -1), keepdim=True)
        size = torch.where(size == 0, 1.0, size)
        rows, offset = rows / size, wide(offset) / size.squeeze(-1)
    output = (rows @ wide(x).unsqueeze(-1)).squeeze(-1) + wide(offset)
    own = rows.take_along_dim(y[..., None, None], -2)
    distance = nearest_boundary(output, (own - rows).norm(dim=-1), y)
    return distance.to(jacobian.dtype)


def nearest_boundary(output: Tensor, row_distance: Tensor, y: Tensor) -> Tensor:
    """Return the least margin over row distance, from outputs (..., k).

    ``row_distance[..., c]`` is ``|J_y - J_c|``; the entry of y itself is ignored.
    """
    own = torch.zeros_like(output, dtype=torch.bool)
    own = own.scatter(-1, y.unsqueeze(-1), True)
    margin = output.take_along_dim(y.unsqueeze(-1), -1) - output
    moving = row_distance != 0
    ratio = margin / torch.where(moving, row_distance, 1.0)
    ratio = torch.where(moving, ratio, torch.where(margin <= 0, 0.0, torch.inf))
    ratio = torch.where(margin <= 0, 0.0, ratio)  # wrong already, or a tie
    return torch.where(own, torch.inf, ratio).amin(-1)


def as_labels(callee: str, y: Any, remedy: str = "") -> Tensor:
    """Return labels as a tensor, those of an array, a list or a Series, too.

    Examples
    --------
    >>> as_labels("local_geometry", [1, 0])
    tensor([1, 0])
    """
    if isinstance(y, Tensor):
        return y
    try:
        labels = np.asarray(y)
        if labels.dtype.kind == "O":  # nullable integers of pandas
            labels = np.array(labels.tolist())
        numeric = labels.dtype.kind in "biuf"
    except ValueError:  # rows of different lengths
        labels, numeric = np.empty(0), False
    rule = "a tensor, or an array, of class indices"
    require_kind(numeric, callee, "y", rule, describe(y), remedy)
    native = labels.astype(labels.dtype.newbyteorder("="))
    return torch.tensor(native, device="cpu")


def check_labels(callee: str, y: Tensor, shape: tuple[int, ...], k: int) -> None:
    """Check that y holds one class index below k for each sample."""
    integer = not y.is_floating_point() and not y.is_complex()
    require_kind(
        integer and y.dtype != torch.bool, callee, "y", "of an integer dtype", y
    )
    require(
        y.shape == shape, callee, "y", f"of shape {tuple(shape)}, one per sample", y
    )
    if y.numel():
        whole = y.long()  # few operations know integers without a sign
        low, high = int(whole.min()), int(whole.max())
        require(
            low >= 0 and high < k,
            callee,
            "y",
            f"class indices from 0 to {k - 1}",
            f"values from {low} to {high}",
        )
