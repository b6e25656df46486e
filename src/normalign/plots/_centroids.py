"""Inputs beside what the model's Jacobian holds of them, drawn as images."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from normalign._errors import require
from normalign.geometry import At, centroid_alignment, local_affine, power_diagram

__all__ = ["plot_centroids"]


def plot_centroids(
    model: Callable[..., Any],
    x: Tensor,
    *,
    at: str | At | None = None,
    n: int = 8,
    image_shape: tuple[int, ...] | None = None,
    figure: Figure | None = None,
) -> Figure:
    r"""Draw inputs above the centroids of their tiles, and the cosine between them.

    .. math:: \mu_x = J_x^\top \mathbf{1}, \qquad
        \cos(\mu_x, x) \in [-1, 1] \quad\text{(Proposition on centroids and radii)}

    For a model that is centroid-aligned, both rows show the same picture. Every image
    is divided by its largest absolute value and drawn from -1 (blue) over 0 (white) to
    1 (red), since the cosine does not see scale. An image with several channels is
    drawn as their mean. Any model with a Jacobian will do.

    Parameters
    ----------
    model : nn.Module or callable
        In evaluation mode if it has layers that differ.
    x : Tensor of shape (n, ...)
    at : str or At, optional
        Draw the input of this submodule, and the centroid of the map from there.
    n : int, default=8
        How many of the inputs, from the first.
    image_shape : tuple, optional
        ``(height, width)`` or ``(channels, height, width)``; by default the shape of
        an input, or a square for a vector whose length is a square number.
    figure : matplotlib Figure, optional
        Where to draw; by default a new one.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If there is no input, or its numbers do not fill the image.

    Examples
    --------
    >>> figure = plot_centroids(torch.nn.Linear(9, 2), torch.rand(4, 9))
    >>> len(figure.axes)  # four inputs, four centroids
    8
    """
    callee = "plot_centroids"
    require(n >= 1, callee, "n", "at least 1", n)
    require(len(x) >= 1, callee, "x", "at least one input", x)
    with torch.no_grad():
        affine = local_affine(model, x[:n], at=at)
    centroid = power_diagram(affine.jacobian, affine.offset).centroid
    cosine = centroid_alignment(centroid, affine.input)
    natural = tuple(x.shape[1:]) if at is None else (affine.input.shape[1],)
    shape = _image_shape(natural, image_shape)

    count = len(affine.input)
    figure = figure or plt.figure(figsize=(0.8 * count, 2.0))
    axes = figure.subplots(2, count, squeeze=False)
    for place in range(count):
        for row, vector in enumerate((affine.input[place], centroid[place])):
            axis = axes[row, place]
            axis.imshow(_picture(vector, shape), cmap="RdBu_r", vmin=-1, vmax=1)
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_linewidth(0.4)
        shown = round(float(cosine[place]), 2) + 0.0  # no minus before a zero
        axes[1, place].set_xlabel(f"{shown:.2f}", fontsize="small")
    axes[0, 0].set_ylabel("input", fontsize="small")
    axes[1, 0].set_ylabel("centroid", fontsize="small")
    return figure


def _picture(vector: Tensor, shape: tuple[int, ...]) -> Any:
    """Return a vector as a matrix of numbers within [-1, 1]."""
    image = vector.detach().double().cpu().reshape(shape)
    image = image if image.ndim == 2 else image.mean(dim=0)
    largest = image.abs().max()
    return (image / largest if largest > 0 else image).numpy()


def _image_shape(
    natural: tuple[int, ...], wanted: tuple[int, ...] | None
) -> tuple[int, ...]:
    """Return (height, width) or (channels, height, width) for inputs of a shape."""
    callee, size = "plot_centroids", math.prod(natural)
    if wanted is not None:
        rule = f"(height, width) or (channels, height, width) of {size} numbers"
        fits = len(wanted) in (2, 3) and math.prod(wanted) == size
        require(fits, callee, "image_shape", rule, wanted)
        return wanted
    if len(natural) in (2, 3):
        return natural
    side = math.isqrt(size)
    rule = "given for inputs whose length is no square number"
    got = f"None for inputs of shape {natural}"
    remedy = "Pass image_shape=(height, width)."
    require(side * side == size, callee, "image_shape", rule, got, remedy)
    return (side, side)
