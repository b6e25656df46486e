r"""A block Krylov space of :math:`J J^\top`, grown from products with J and J^T."""

from __future__ import annotations

import torch
from torch import Tensor

from normalign._linear_map import LinearMap, rounding
from normalign.geometry.alignment import safe_ratio
from normalign.geometry.exact import column_slabs
from normalign.geometry.spectrum import finite_eigh

__all__ = ["KrylovSpace", "gaussian"]


class Compressed:
    """A linearization seen through p output directions that hold its whole range.

    With orthonormal columns Q, (k, p), and ``J = Q B``: products with B and ``B^T``.

    Parameters
    ----------
    linear : LinearMap
    basis : Tensor of shape (k, p), optional
        The columns of Q; without it B is J itself.
    """

    def __init__(self, linear: LinearMap, basis: Tensor | None) -> None:
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


class KrylovSpace:
    """A growing orthonormal basis Q of outputs with its image J^T Q, for each sample.

    The image is by far the largest thing here; it is kept once, in the precision in
    which the model gives it, and only products of it are taken in float64.

    Attributes
    ----------
    basis : Tensor of shape (n, p, m)
        In the coordinates of the compressed outputs.
    gram : Tensor of shape (n, m, m)
        ``Q^T J J^T Q``.
    energy : Tensor of shape (n,)
        The leading Ritz value of ``J J^T``, an estimate of ``s_1^2`` from below.
    weights : Tensor of shape (n, m)
        Its vector, in the basis.
    tilt : Tensor of shape (n,)
        Bound on the sine of the angle to the true leading vector, from the time of the
        last :meth:`settle`.
    can_grow : bool
        Whether there is room and anything left to add, likewise.
    """

    def __init__(self, linear: Compressed, start: Tensor, max_rank: int) -> None:
        self._linear = linear
        self._generator = torch.Generator().manual_seed(1)
        self._fresh = _orthonormal(start, start[..., :0], self._generator)
        self._pulled: Tensor | None = None
        self._images: list[Tensor] = []
        self.can_grow = True
        self._room = min(max_rank, linear.shape[1])
        # Products carry the rounding of the model's own precision.
        self._noise = linear.noise
        self.basis = start[..., :0]
        self.gram = start.new_zeros(len(start), 0, 0)
        self.grow()

    def grow(self) -> None:
        """Add a block to the space, a pull-back for each of its vectors."""
        self.settle()
        self.basis = torch.cat([self.basis, self._fresh], 2)
        self._pulled = self._linear.pull(self._fresh.permute(2, 0, 1))
        image = self._pulled.transpose(0, 1)
        cross, inner = self.products(image), _products(image, image, self.basis)
        self.gram = torch.cat(
            [torch.cat([self.gram, cross], 2), torch.cat([cross.mT, inner], 2)], 1
        )
        self._images.append(image)
        self._values, self._vectors = finite_eigh(self.gram)
        self.energy = self._values[:, -1].clamp_min(0)
        self.weights = self._vectors[..., -1]

    def products(self, pulled: Tensor) -> Tensor:
        """Return ``(J^T Q)^T h`` for each of the vectors h, (n, b, d) -> (n, m, b)."""
        if not self._images:
            return self.gram.new_zeros(len(pulled), 0, pulled.shape[1])
        found = [_products(image, pulled, self.basis) for image in self._images]
        return torch.cat(found, 1)

    def leading_image(self) -> Tensor:
        """Return ``J^T u`` of the leading Ritz vector u, (n, d)."""
        widths = [image.shape[1] for image in self._images]
        found: Tensor | float = 0.0
        for image, weights in zip(
            self._images, self.weights.split(widths, 1), strict=True
        ):
            found = found + torch.einsum("nm,nmd->nd", weights, image.to(weights))
        assert isinstance(found, Tensor)
        return found

    def settle(self) -> None:
        """Push the last block forward: what it says of the error, and the next block.

        Kept apart from :meth:`grow`, for the last block of all need not be pushed.
        """
        if self._pulled is None:
            return
        returned = self._linear.push(self._pulled).to(self.basis).permute(1, 2, 0)
        returned = self.off(self.off(returned))  # once is not enough in floating point
        self.tilt = self._bound(returned, self._values, self._vectors)
        news = returned.flatten(1).norm(dim=1)
        room = self._room - self.basis.shape[2]
        self.can_grow = room > 0 and bool((news > self._noise * self.energy).any())
        if self.can_grow:
            fresh = _orthonormal(returned, self.basis, self._generator)
            self._fresh = fresh[..., :room]
        self._pulled = None

    def off(self, block: Tensor) -> Tensor:
        """Return the part of each block (n, p, b) orthogonal to the basis."""
        return block - self.basis @ (self.basis.mT @ block)

    def _bound(self, returned: Tensor, values: Tensor, vectors: Tensor) -> Tensor:
        # The residual of the first pair over its distance from the second eigenvalue,
        # which lies within the second residual of the second Ritz value.
        energy = values[:, -1].clamp_min(0)
        tail = vectors[:, -returned.shape[2] :, -2:]
        residual = (returned @ tail).norm(dim=1)
        second = values[:, -2] + residual[:, 0] if values.shape[1] > 1 else 0 * energy
        gap = (energy - second - self._noise * energy).clamp_min(0)
        tilt = safe_ratio(residual[:, -1], gap).clamp(max=1)
        return torch.where((gap == 0) & (energy != 0), 1.0, tilt)


def _products(left: Tensor, right: Tensor, like: Tensor) -> Tensor:
    """Return ``left right^T`` of (n, p, d) and (n, q, d), summed in float64."""
    found = like.new_zeros(len(left), left.shape[1], right.shape[1])
    for part in column_slabs(left):
        found += left[:, :, part].to(like) @ right[:, :, part].to(like).mT
    return found


def gaussian(
    shape: tuple[int, ...], generator: torch.Generator, like: Tensor
) -> Tensor:
    """Return standard normal numbers in the dtype and on the device of another tensor.

    They are drawn on the CPU: the same on every device.
    """
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(like)


def _orthonormal(block: Tensor, against: Tensor, generator: torch.Generator) -> Tensor:
    """Return an orthonormal basis (n, p, b) of each block, off the basis given.

    A column with nothing new in it, of a sample whose range is exhausted before that
    of the others, is replaced by a random one: normalised rounding would not be
    orthogonal to anything.
    """
    block = torch.where(torch.isfinite(block), block, 0.0)
    basis = torch.linalg.qr(block)[0]
    basis = basis - against @ (against.mT @ basis)
    empty = basis.norm(dim=1, keepdim=True) < 0.1
    if bool(empty.any()):
        spare = gaussian(tuple(basis.shape), generator, basis)
        for _ in range(2):
            spare = spare - against @ (against.mT @ spare)
        basis = torch.where(empty, spare, basis)
    return torch.linalg.qr(basis)[0]
