"""`layer_profile`: the local geometry through the layers of a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike
from torch import Tensor

from normalign._errors import module_of_extra
from normalign._hooks import At
from normalign._linear_map import ChunkSize
from normalign._torch_compat import outside_inference_mode
from normalign.geometry.matrix_free import MatrixFreeOptions
from normalign.geometry.profile_run import ProfileRun
from normalign.geometry.report import GeometryPlan, LocalGeometry, Method

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LayerProfile", "layer_profile"]

FORMAT = "normalign layer profile"
VERSION = 1

_SHOWN = {
    "centroid_alignment": "centroid",
    "normal_alignment": "normal",
    "alignment_ratio": "ratio",
    "effective_rank": "rank",
    "jacobian_norm": "norm",
}


@dataclass(frozen=True, repr=False)
class LayerProfile(Mapping[str, LocalGeometry]):
    """The local geometry of the maps from several places of a network to its output.

    A mapping from the name of a place to its :class:`~normalign.LocalGeometry`, in
    order; ``"input"`` is the network's own input.

    Attributes
    ----------
    geometries : dict of str to LocalGeometry
    automatic : bool
        Whether the places were found by :func:`layer_profile` itself.
    """

    geometries: dict[str, LocalGeometry]
    automatic: bool = False

    def __getitem__(self, place: str) -> LocalGeometry:
        return self.geometries[place]

    def __iter__(self) -> Iterator[str]:
        return iter(self.geometries)

    def __len__(self) -> int:
        return len(self.geometries)

    def means(self) -> dict[str, dict[str, float]]:
        """Return the mean of each measure over the samples, by place."""
        return {place: geometry.mean() for place, geometry in self.items()}

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame with columns place, sample, measure and value."""
        pd = module_of_extra("LayerProfile.to_frame", "pandas", "frames")
        columns = ["place", "sample", "measure", "value"]
        rows = [
            (place, sample, measure, value)
            for place, geometry in self.items()
            for measure, values in geometry.measures().items()
            for sample, value in enumerate(values.tolist())
        ]
        return pd.DataFrame(rows, columns=columns)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON can hold it; what is not finite is None."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "automatic": self.automatic,
            "at": {place: _told(geometry) for place, geometry in self.items()},
        }

    def __repr__(self) -> str:
        counts = {len(geometry) for geometry in self.values()}
        found = ", places found" if self.automatic else ""
        if len(counts) == 1:
            found += f", means over {counts.pop()} samples"
        lines = [f"LayerProfile of {len(self)} places{found}"]
        width = max((len(place) for place in self), default=0) + 2
        head = "".join(f"{name:>10}" for name in _SHOWN.values())
        lines.append(f"{'':{width}}{head}{'samples':>9}")
        for place, geometry in self.items():
            mean = geometry.mean()
            numbers = "".join(f"{mean[name]:10.4g}" for name in _SHOWN)
            lines.append(f"{place:{width}}{numbers}{len(geometry):9}")
        return "\n".join(lines)


def layer_profile(  # noqa: PLR0913  (those of local_geometry, and two more)
    model: Callable[..., Any],
    x: Tensor,
    y: Tensor | ArrayLike | None = None,
    *,
    places: Sequence[str | At | None] | None = None,
    output: Callable[[Any], Tensor] | None = None,
    method: Method = "auto",
    chunk_size: ChunkSize = "auto",
    memory_budget: int | None = None,
    options: MatrixFreeOptions | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> LayerProfile:
    r"""Local geometry of the maps from several places of a network to its output.

    For a place with input h, the map :math:`h \mapsto f`, everything else that reaches
    the output held fixed, has its own Jacobian, centroid :math:`J^\top \mathbf{1}` and
    alignment with h. The centroid alignment by place is the measure of the paper's
    figure on residual networks (fig:resnet_alignment).

    Up to 256 outputs all places are measured exactly and from the same passes: a
    profile costs about what the input costs alone, and as much more memory as the rows
    of all places take (they are split where that exceeds the budget). With more
    outputs each place takes the matrix-free route on its own; passes over all outputs,
    where one needs them for its norm, are shared.

    Parameters
    ----------
    model : nn.Module or callable
        A function of each sample alone: in evaluation mode if it holds BatchNorm.
    x : Tensor of shape (n, ...)
    y : Tensor or array-like of int of shape (n,), optional
        True classes; they add ``local_robustness``.
    places : sequence of str, At or None, optional
        Submodules, as ``at`` in :func:`~normalign.local_geometry`; None or
        ``"input"`` is the model's own input. By default that and up to twelve stages
        of the network: its children that are made of several layers (``layer1`` to
        ``layer4``), or what these are made of if there are few (``blocks.0``, ...).
    output, method, chunk_size, memory_budget, options
        As in :func:`~normalign.local_geometry`.
    progress : callable, optional
        Called with a place, the number of its samples done, and the number of all.

    Returns
    -------
    LayerProfile

    Raises
    ------
    ValueError
        If a place is not there, comes twice, or the model mixes samples.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    >>> list(layer_profile(model, torch.ones(3, 2, 2)))
    ['input']
    """
    plan = GeometryPlan(
        method=method,
        chunk_size=chunk_size,
        memory_budget=memory_budget,
        options=options or MatrixFreeOptions(),
    )
    with outside_inference_mode():
        run = ProfileRun(model, x, y, places=places, output=output, plan=plan)
        for place, done in run:
            if progress is not None:
                progress(place, done, len(x))
        return LayerProfile(run.geometries(), automatic=run.automatic)


def _told(geometry: LocalGeometry) -> dict[str, Any]:
    return {
        "method": geometry.method,
        "n": len(geometry),
        "mean": {name: _finite(v) for name, v in geometry.mean().items()},
        "samples": _lists(geometry.measures()),
        "error": _lists(geometry.error),
    }


def _lists(measures: Mapping[str, Tensor]) -> dict[str, list[float | None]]:
    return {
        name: [_finite(v) for v in values.tolist()] for name, values in measures.items()
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
