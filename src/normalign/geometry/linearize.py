"""A model's derivative at a batch of points as a pair of linear maps.

:class:`Linearization` gives products with the Jacobian (``push``) and with its
transpose (``pull``) without ever holding the Jacobian. Both take a block of vectors, so
that one call does the work of many.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap

from normalign.geometry.local_map import PointMap
from normalign.geometry.quirks import (
    attention_with_derivatives,
    forward_mode,
    frozen_randomness,
    outside_autocast,
    rounding,
)

__all__ = ["Compressed", "Linearization"]

Product = Callable[[Tensor], Tensor]

# What torch.func says of autograd functions of the older style and of activation
# checkpointing; plain autograd takes both.
REFUSED_BY_FUNC = ("setup_context", "saved tensor hooks")


# What torch says of an autograd function without a rule for vmap, of layers in two
# precisions at once, as autocast runs them, and of normalisation on channels last.
REFUSED_BY_VMAP = ("vmap over", "expected scalar type", "inside of vmap")


class Linearization:
    """The products ``J u`` and ``J^T v`` of a map at each of n points.

    Built on ``torch.func``, so it works under ``no_grad``; of ``inference_mode`` see
    :func:`~normalign.geometry.quirks.outside_inference_mode`. A model that
    ``torch.func`` refuses (an ``autograd.Function`` of the older style, activation
    checkpointing) is differentiated by plain autograd instead, one vector at a time,
    and the result carries no graph.

    Parameters
    ----------
    point_map : PointMap
    vmappable : bool
        Whether a block of vectors may go through ``vmap``; else they go one by one.
    at_once : int, optional
        Most vectors that go through together, of however many are given.

    Attributes
    ----------
    input : Tensor of shape (n, d)
    output : Tensor of shape (n, k)
    """

    def __init__(
        self,
        point_map: PointMap,
        *,
        vmappable: bool = True,
        at_once: int | None = None,
    ) -> None:
        self._function, self._point = point_map.function, point_map.point
        self._vmappable, self._at_once = vmappable, at_once
        self.input = self._point.flatten(1)
        with attention_with_derivatives(), frozen_randomness():
            try:
                self.output, pullback, *_ = vjp(self._function, self._point)
                # A flag: a method kept here would be a circle, and keep the graph.
                self._has_forward_mode = True
                # A graph of the derivative itself is wanted only if something upstream
                # is being trained; it doubles the memory.
                create_graph = self.output.requires_grad
            except RuntimeError as error:
                if not any(words in str(error) for words in REFUSED_BY_FUNC):
                    raise
                self.output, pullback = self._plain_autograd()
                self._has_forward_mode = False
                self._vmappable, create_graph = False, False
        self._pull_one: Product = lambda v: pullback(v, create_graph=create_graph)[0]

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of points, outputs and inputs, ``(n, k, d)``."""
        return len(self.input), self.output.shape[1], self.input.shape[1]

    def pull(self, cotangents: Tensor) -> Tensor:
        """Return ``J^T v`` for a block of cotangents, (b, n, k) -> (b, n, d)."""
        cotangents = cotangents.to(self.output)
        with attention_with_derivatives(), outside_autocast(cotangents.device):
            return self._block(self._pull_one, cotangents).flatten(2)

    def push(self, tangents: Tensor) -> Tensor:
        """Return ``J u`` for a block of tangents, (b, n, d) -> (b, n, k)."""
        tangents = tangents.to(self._point).unflatten(2, self._point.shape[1:])
        with attention_with_derivatives():
            if self._has_forward_mode:
                try:
                    return self._block(self._forward_mode, tangents)
                except NotImplementedError:  # an operator without a forward-mode rule
                    self._has_forward_mode = False
                except RuntimeError as error:  # normalisation on channels last
                    if "view size is not compatible" not in str(error):
                        raise
                    self._has_forward_mode = False
            return self._block(self._double_backward, tangents)

    def _block(self, product: Product, vectors: Tensor) -> Tensor:
        if self._at_once is not None and len(vectors) > self._at_once:
            parts = vectors.split(self._at_once)
            return torch.cat([self._block(product, part) for part in parts])
        together = self._vmappable and product != self._double_backward
        if together and len(vectors) > 1:
            try:
                return vmap(product, randomness="same")(vectors)
            except RuntimeError as error:
                if not any(words in str(error) for words in REFUSED_BY_VMAP):
                    raise
                self._vmappable = False
        return torch.stack([product(v) for v in vectors])

    def _forward_mode(self, tangent: Tensor) -> Tensor:
        with forward_mode(), frozen_randomness():
            return jvp(self._function, (self._point,), (tangent,))[1]

    def _double_backward(self, tangent: Tensor) -> Tensor:
        # v -> J^T v is linear, so its own pull-back is u -> J u, whatever v.
        with torch.inference_mode(False), torch.enable_grad(), frozen_randomness():
            point = self._point.detach().clone().requires_grad_()
            output = self._function(point)
            v = torch.zeros_like(output, requires_grad=True)
            (pulled,) = torch.autograd.grad(output, point, v, create_graph=True)
            (pushed,) = torch.autograd.grad(pulled, v, tangent.clone())
        return pushed

    def _plain_autograd(self) -> tuple[Tensor, Callable[..., tuple[Tensor]]]:
        with torch.inference_mode(False), torch.enable_grad():
            point = self._point.detach().clone().requires_grad_()
            output = self._function(point)
        pullback = partial(torch.autograd.grad, output, point, retain_graph=True)

        def pull(v: Tensor, create_graph: bool) -> tuple[Tensor]:
            return pullback(grad_outputs=v, create_graph=create_graph)  # pyright: ignore

        return output.detach(), pull


class Compressed:
    """A linearization seen through p output directions that hold its whole range.

    With orthonormal columns Q, (k, p), and ``J = Q B``: products with B and ``B^T``.

    Parameters
    ----------
    linear : Linearization
    basis : Tensor of shape (k, p), optional
        The columns of Q; without it B is J itself.
    """

    def __init__(self, linear: Linearization, basis: Tensor | None) -> None:
        self._linear, self._basis = linear, basis
        n, k, d = linear.shape
        self.shape = (n, k if basis is None else basis.shape[1], d)
        self.noise = rounding(linear.output.dtype)

    def pull(self, cotangents: Tensor) -> Tensor:
        """Return ``B^T v`` for a block of cotangents, (b, n, p) -> (b, n, d)."""
        if self._basis is not None:
            cotangents = cotangents @ self._basis.mT.to(cotangents)
        return self._linear.pull(cotangents)

    def push(self, tangents: Tensor) -> Tensor:
        """Return ``B u`` for a block of tangents, (b, n, d) -> (b, n, p)."""
        pushed = self._linear.push(tangents)
        return pushed if self._basis is None else self.coordinates(pushed)

    def coordinates(self, outputs: Tensor) -> Tensor:
        """Return ``Q^T v`` of vectors of outputs, (..., k) -> (..., p)."""
        return outputs if self._basis is None else outputs @ self._basis.to(outputs)

    def outputs(self, coordinates: Tensor) -> Tensor:
        """Return ``Q c`` of columns of coordinates, (n, p, m) -> (n, k, m)."""
        basis = self._basis
        return coordinates if basis is None else basis.to(coordinates) @ coordinates
