"""`local_geometry`: every measure of every sample, in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from normalign._errors import module_of_extra, require
from normalign._hooks import At
from normalign._linear_map import ChunkSize, LinearMap, LocalMap, plan_chunks
from normalign._torch_compat import outside_inference_mode
from normalign.geometry._exact import exact_measures, holds_range, range_basis
from normalign.geometry._jacobian import check_batch, shape_of
from normalign.geometry._margin import as_labels, check_labels
from normalign.geometry._matrix_free import (
    MatrixFreeOptions,
    SummedNorms,
    matrix_free_measures,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LocalGeometry", "local_geometry"]

Method = Literal["auto", "exact", "matrix_free"]

# Up to this many passes for a sample the exact route is taken: the other one needs
# about as many to be sure of its numbers.
EXACT_UP_TO = 256

# Up to this many outputs (or inputs) it is not worth looking for a narrower range.
FEW_PASSES = 64


@dataclass(frozen=True, repr=False)
class LocalGeometry:
    """The local geometry of a model at each of n samples.

    Every measure is a tensor of shape (n,) on the model's device, in float32, or in
    float64 for inputs in float64. Arithmetic means are the paper's na(f; D), er(f; D).

    Attributes
    ----------
    normal_alignment, effective_rank, alignment_ratio, centroid_alignment : Tensor
        As the functions of the same names.
    jacobian_norm, offset_norm : Tensor
        Frobenius norm of the Jacobian, Euclidean norm of the offset.
    radius : Tensor
        As in :func:`~normalign.power_diagram`.
    participation_rank : Tensor or None
        None on the matrix-free route, which does not know the small singular values.
    local_robustness : Tensor or None
        None where no labels were given.
    error : dict of str to Tensor
        Estimated absolute error of a measure; empty on the exact route.
    method : str
        The route taken, "exact" or "matrix_free".
    """

    normal_alignment: Tensor
    effective_rank: Tensor
    alignment_ratio: Tensor
    centroid_alignment: Tensor
    jacobian_norm: Tensor
    offset_norm: Tensor
    radius: Tensor
    participation_rank: Tensor | None = None
    local_robustness: Tensor | None = None
    error: dict[str, Tensor] = field(default_factory=dict)
    method: str = "exact"

    def measures(self) -> dict[str, Tensor]:
        """Return the measures that are there, by name."""
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in named.items() if _is_measure(value)}

    def mean(self) -> dict[str, float]:
        """Return the mean of each measure over the samples."""
        return {name: float(v.double().mean()) for name, v in self.measures().items()}

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame, one row per sample, one column per measure."""
        pd = module_of_extra("LocalGeometry.to_frame", "pandas", "frames")
        return pd.DataFrame({k: v.cpu().numpy() for k, v in self.measures().items()})

    def __len__(self) -> int:
        return len(self.normal_alignment)

    def __repr__(self) -> str:
        lines = [f"LocalGeometry of {len(self)} samples ({self.method})"]
        lines.append(f"{'':20}{'mean':>12}{'least':>12}{'greatest':>12}")
        if self.error:
            lines[-1] += f"{'error':>12}"
        for name, value in self.measures().items():
            if not len(value):
                continue
            numbers = [value.double().mean(), value.min(), value.max()]
            if name in self.error:
                numbers.append(self.error[name].double().mean())
            lines.append(f"{name:20}" + "".join(f"{float(v):12.4g}" for v in numbers))
        return "\n".join(lines)


def local_geometry(
    model: Callable[..., Any],
    x: Tensor,
    y: Tensor | ArrayLike | None = None,
    *,
    at: str | At | None = None,
    output: Callable[[Any], Tensor] | None = None,
    method: Method = "auto",
    chunk_size: ChunkSize = "auto",
    memory_budget: int | None = None,
    options: MatrixFreeOptions | None = None,
) -> LocalGeometry:
    """Alignment, rank, centroid, radius and robustness of a model at each sample.

    With up to 256 outputs, inputs or features under a linear head the measures are
    exact: the Jacobians of a few samples at a time are reduced to small matrices and
    dropped. With more, the matrix-free route estimates them from products with the
    Jacobian and its transpose, to ``options.rtol``, and says in ``.error`` how sure it
    is. A measurement, not a loss: gradients do not flow through it (compose
    :func:`~normalign.local_affine` with :func:`~normalign.normal_alignment` for that).

    Parameters
    ----------
    model : nn.Module or callable
        A function of each sample alone: in evaluation mode if it holds BatchNorm.
    x : Tensor of shape (n, ...)
    y : Tensor or array-like of int of shape (n,), optional
        True classes; they add ``local_robustness``.
    at : str or At, optional
        A submodule: the map then goes from its input to the model's output.
    output : callable, optional
        Picks the tensor from what the model returns, e.g.
        ``lambda out: out.logits[:, -1]``.
    method : {"auto", "exact", "matrix_free"}
    chunk_size : int, "auto" or None
        Samples worked on at once; "auto" keeps to the memory budget, None takes all.
    memory_budget : int, optional
        Bytes of working memory that "auto" plans for; by default 1 GiB, on a GPU two
        fifths of what is free. A plan, not a wall: small budgets have been seen
        exceeded twofold, and the C allocator keeps more.
    options : MatrixFreeOptions, optional
        Tolerance and limits of the matrix-free route.

    Returns
    -------
    LocalGeometry

    Raises
    ------
    ValueError
        If the model mixes the samples of a batch (BatchNorm in training mode).

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([[3.0, 4.0]])
    >>> aligned = lambda z: z @ x.T * torch.tensor([2.0, -2.0])
    >>> geometry = local_geometry(aligned, x, torch.tensor([0]))
    >>> geometry.normal_alignment, geometry.effective_rank, geometry.local_robustness
    (tensor([1.]), tensor([1.]), tensor([5.]))
    """
    local_map = LocalMap(model, at=at, output=output, callee="local_geometry")
    plan = GeometryPlan(
        method=method,
        chunk_size=chunk_size,
        memory_budget=memory_budget,
        options=options or MatrixFreeOptions(),
    )
    pieces: list[Piece] = []
    with outside_inference_mode():
        check_batch(x, local_map, memory_budget)
        labels = None if y is None else as_labels(local_map.callee, y)
        for piece in measured_pieces(local_map, x, labels, plan):
            add_piece(pieces, piece)
        return join_pieces(pieces, x)


@dataclass(frozen=True)
class GeometryPlan:
    """By which route measures are found, and in how much memory.

    Attributes
    ----------
    method, chunk_size, memory_budget, options
        As in :func:`local_geometry`.
    """

    method: Method
    chunk_size: ChunkSize
    memory_budget: int | None
    options: MatrixFreeOptions

    def check(self, callee: str) -> None:
        """Refuse a route that there is not."""
        known = ("auto", "exact", "matrix_free")
        require(
            self.method in known, callee, "method", f"one of {known}", repr(self.method)
        )


@dataclass(frozen=True)
class Piece:
    """Measures of some samples in a row, and their errors where they have any."""

    samples: slice
    values: dict[str, Tensor]
    errors: dict[str, Tensor]
    method: str


def add_piece(pieces: list[Piece], piece: Piece) -> None:
    """Append a piece; one that starts from the first sample replaces all before it."""
    if piece.samples.start == 0:
        pieces.clear()
    pieces.append(piece)


def join_pieces(pieces: list[Piece], x: Tensor) -> LocalGeometry:
    """Return the geometry that pieces in a row make up."""
    kept = torch.float64 if x.dtype == torch.float64 else torch.float32
    return LocalGeometry(
        **_concatenate([piece.values for piece in pieces], kept),  # pyright: ignore[reportArgumentType]
        error=_concatenate([piece.errors for piece in pieces], kept),
        method=pieces[0].method,
    )


def measured_pieces(
    local_map: LocalMap,
    x: Tensor,
    y: Tensor | None,
    plan: GeometryPlan,
    *,
    norms: Callable[[slice], SummedNorms] | None = None,
) -> Iterator[Piece]:
    """Yield the measures of x in pieces, as they are found; nothing is checked twice.

    Starts again from the first sample, with more passes, if a narrower range of the
    outputs holds at the first samples and not at all: see :func:`add_piece`.

    Parameters
    ----------
    norms : callable, optional
        Returns, for the samples of a piece, where their squared norms may be known.
    """
    plan.check(local_map.callee)
    k, d, element_size = shape_of(local_map, x)
    if y is not None:
        check_labels(local_map.callee, y, (len(x),), k)
    work = Work(k, d, element_size, plan.method, plan.options)
    basis = None
    if min(k, d) > FEW_PASSES and len(x):
        with torch.no_grad():
            basis = range_basis(local_map, x)
    if basis is not None and basis.shape[1] > d:
        basis = None  # columns are cheaper still
    if not len(x):
        exact = work.is_exact(basis)
        method = "exact" if exact else "matrix_free"
        yield Piece(slice(0, 0), _nothing(x, y is not None, exact), {}, method)
        return
    try:
        yield from _pieces(local_map, x, y, work, basis, plan, norms)
    except _RangeFails:
        yield from _pieces(local_map, x, y, work, None, plan, norms)


class _RangeFails(Exception):
    """The outputs of some sample move where those of the first cannot."""


@dataclass(frozen=True)
class Work:
    """The size of the problem, and by which route it is solved."""

    k: int
    d: int
    element_size: int
    method: str
    options: MatrixFreeOptions

    def passes(self, basis: Tensor | None) -> int:
        return min(self.k, self.d) if basis is None else basis.shape[1]

    def is_exact(self, basis: Tensor | None) -> bool:
        few = self.passes(basis) <= EXACT_UP_TO
        return self.method == "exact" or (self.method == "auto" and few)

    def kept_bytes(self, basis: Tensor | None) -> int:
        """Return the bytes of results and temporaries of one sample."""
        passes, k, d = self.passes(basis), self.k, self.d
        if self.is_exact(basis) and basis is None and k > d:
            # The columns and the blocks they come from, two float64 copies of them and
            # a temporary; beside it, a few vectors over all outputs.
            return passes * k * (2 * self.element_size + 3 * 8) + 8 * 8 * k
        if self.is_exact(basis):
            # The rows, a block of them, their Gram matrices, a few vectors.
            rows = (passes + min(passes, 64)) * d * self.element_size
            beside = 8 * 3 * passes * k if basis is not None else 8 * 8 * k
            return rows + 8 * (4 * passes * passes + 4 * d) + beside
        rank = min(self.options.max_rank, k, d)
        # The image of the space, blocks on their way through it, a few vectors; in
        # float64 its basis, twice while it grows, and coordinates of all outputs.
        blocks = 3 * max(self.options.block, self.options.candidates)
        images = (rank + blocks) * d * self.element_size
        return images + 8 * (6 * d + 5 * rank * k + 4 * rank * rank)


def _pieces(
    local_map: LocalMap,
    x: Tensor,
    y: Tensor | None,
    work: Work,
    basis: Tensor | None,
    plan: GeometryPlan,
    norms: Callable[[slice], SummedNorms] | None,
) -> Iterator[Piece]:
    """Yield the pieces by the route that the size of the problem asks for."""
    cut = plan_chunks(
        local_map,
        x,
        chunk_size=plan.chunk_size,
        memory_budget=plan.memory_budget,
        n_vectors=min(work.passes(basis), 64),
        kept_per_sample=work.kept_bytes(basis),
    )
    generator = torch.Generator().manual_seed(0)

    def measure(piece: slice) -> Piece:  # its graph is gone when it returns
        linear = LinearMap(
            *local_map.on(x[piece]), vmappable=local_map.vmappable, at_once=cut.vectors
        )
        if basis is not None and not holds_range(linear, basis):
            raise _RangeFails
        labels = None if y is None else y[piece].to(linear.input.device).long()
        if work.is_exact(basis):
            values = exact_measures(
                linear, labels, vectors=cut.vectors, range_basis=basis
            )
            return Piece(piece, values, {}, "exact")
        values, errors = matrix_free_measures(
            linear,
            labels,
            options=work.options,
            generator=generator,
            vectors=cut.vectors,
            range_basis=basis,
            norms=None if norms is None else norms(piece),
        )
        return Piece(piece, values, errors, "matrix_free")

    for samples in cut.pieces(len(x)):
        with torch.no_grad():
            piece = measure(samples)
        yield piece


def _concatenate(
    parts: list[dict[str, Tensor]], dtype: torch.dtype
) -> dict[str, Tensor]:
    return {name: torch.cat([p[name] for p in parts]).to(dtype) for name in parts[0]}


def _nothing(x: Tensor, labelled: bool, exact: bool) -> dict[str, Tensor]:
    names = [f.name for f in fields(LocalGeometry) if f.name not in ("error", "method")]
    if not labelled:
        names.remove("local_robustness")
    if not exact:
        names.remove("participation_rank")
    return {name: x.new_zeros(0, dtype=torch.float32) for name in names}


def _is_measure(value: Any) -> bool:
    return isinstance(value, Tensor)
