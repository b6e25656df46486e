"""`local_geometry`: every measure of every sample, in one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from normalign._checks import require
from normalign.geometry.chunks import ChunkSize, plan_chunks
from normalign.geometry.exact import exact_measures
from normalign.geometry.jacobian import check_batch, shape_of
from normalign.geometry.linearize import Linearization
from normalign.geometry.local_map import At, LocalMap
from normalign.geometry.margin import check_labels
from normalign.geometry.matrix_free import MatrixFreeOptions, matrix_free_measures
from normalign.geometry.output_range import holds_range, range_basis

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
        import pandas as pd

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
    y: Tensor | None = None,
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
    y : integer Tensor of shape (n,), optional
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
    callee = "local_geometry"
    known = ("auto", "exact", "matrix_free")
    require(method in known, callee, "method", f"one of {known}", repr(method))
    local_map = LocalMap(model, at=at, output=output, callee=callee)
    check_batch(x, local_map)
    k, d, element_size = shape_of(local_map, x)
    if y is not None:
        check_labels(callee, y, (len(x),), k)
    basis = range_basis(local_map, x) if min(k, d) > FEW_PASSES and len(x) else None
    if basis is not None and basis.shape[1] > d:
        basis = None  # columns are cheaper still
    work = _Work(k, d, element_size, method, options or MatrixFreeOptions())
    room = {"chunk_size": chunk_size, "memory_budget": memory_budget}
    with torch.no_grad():
        measured = _measured(local_map, x, y, work, basis, **room)
        if measured is None:  # the range holds at the first sample and not at all
            basis = None
            measured = _measured(local_map, x, y, work, None, **room)
    assert measured is not None
    exact = work.is_exact(basis)
    if not measured:
        measured.append((_nothing(x, y is not None, exact), {}))
    kept = torch.float64 if x.dtype == torch.float64 else torch.float32
    values, errors = (_joined([m[i] for m in measured], kept) for i in (0, 1))
    return LocalGeometry(
        **values,  # pyright: ignore[reportArgumentType]
        error=errors,
        method="exact" if exact else "matrix_free",
    )


@dataclass(frozen=True)
class _Work:
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
        if self.is_exact(basis):
            # The Jacobian and the blocks it comes from, two float64 copies of it and a
            # temporary; beside it, a few matrices over all outputs.
            other = k if basis is None and k > d else d
            beside = 8 * 3 * passes * k if basis is not None else 8 * 8 * k
            return passes * other * (2 * self.element_size + 3 * 8) + beside
        rank = min(self.options.max_rank, k, d)
        # Basis and image of the space in float64, probes beside them, temporaries.
        return 8 * (4 * rank * (k + d) + self.options.block * (k + d))


def _measured(
    local_map: LocalMap,
    x: Tensor,
    y: Tensor | None,
    work: _Work,
    basis: Tensor | None,
    *,
    chunk_size: ChunkSize,
    memory_budget: int | None,
) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]] | None:
    """Return measures and errors of each piece, or None if the range does not hold."""
    exact, options = work.is_exact(basis), work.options
    plan = plan_chunks(
        local_map,
        x,
        chunk_size=chunk_size,
        memory_budget=memory_budget,
        n_vectors=min(work.passes(basis), 64),
        kept_per_sample=work.kept_bytes(basis),
    )
    generator = torch.Generator().manual_seed(0)
    measured = []
    for piece in plan.pieces(len(x)):
        linear = Linearization(local_map.on(x[piece]), vmappable=local_map.vmappable)
        if basis is not None and not holds_range(linear, basis):
            return None
        labels = None if y is None else y[piece].to(linear.input.device).long()
        if exact:
            found = exact_measures(
                linear, labels, vectors=plan.vectors, range_basis=basis
            )
            measured.append((found, {}))
        else:
            found = matrix_free_measures(
                linear,
                labels,
                options=options,
                generator=generator,
                vectors=max(plan.vectors, options.block),
                range_basis=basis,
            )
            measured.append(found)
    return measured


def _joined(parts: list[dict[str, Tensor]], dtype: torch.dtype) -> dict[str, Tensor]:
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
