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
from normalign.geometry.output_range import range_basis

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
        Bytes of working memory for "auto"; by default 1 GiB, on a GPU two fifths of
        what is free.
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
    passes = min(k, d) if basis is None else min(d, basis.shape[1])
    if basis is not None and passes < basis.shape[1]:
        basis = None  # columns are cheaper still
    exact = method == "exact" or (method == "auto" and passes <= EXACT_UP_TO)
    options = options or MatrixFreeOptions()
    plan = plan_chunks(
        local_map,
        x,
        chunk_size=chunk_size,
        memory_budget=memory_budget,
        n_vectors=min(passes, 64),
        kept_per_sample=_kept_bytes(passes, k, d, element_size, exact, options),
    )
    generator = torch.Generator().manual_seed(0)
    measured: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []
    with torch.no_grad():
        for piece in plan.pieces(len(x)):
            linear = Linearization(
                local_map.on(x[piece]), vmappable=local_map.vmappable
            )
            labels = None if y is None else y[piece].to(linear.input.device).long()
            if exact:
                measures = exact_measures(
                    linear, labels, vectors=plan.vectors, range_basis=basis
                )
                measured.append((measures, {}))
            else:
                measured.append(
                    matrix_free_measures(
                        linear,
                        labels,
                        options=options,
                        generator=generator,
                        vectors=max(plan.vectors, options.block),
                        range_basis=basis,
                    )
                )
    if not measured:
        measured.append((_nothing(x, y is not None, exact), {}))
    kept = torch.float64 if x.dtype == torch.float64 else torch.float32
    values, errors = (_joined([m[i] for m in measured], kept) for i in (0, 1))
    return LocalGeometry(
        **values,  # pyright: ignore[reportArgumentType]
        error=errors,
        method="exact" if exact else "matrix_free",
    )


def _kept_bytes(
    passes: int,
    k: int,
    d: int,
    element_size: int,
    exact: bool,
    options: MatrixFreeOptions,
) -> int:
    if exact:  # the Jacobian, its float64 copy, and a temporary of the reductions
        other = d if passes <= k and passes < d else k
        return passes * other * (2 * element_size + 8 + 8) + 8 * 3 * passes * k
    rank = min(options.max_rank, k, d)
    # Basis and image of the space in float64, probes beside them, with temporaries.
    return 8 * (4 * rank * (k + d) + options.block * (k + d))


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
