"""`layer_profile`: the local geometry through the layers of a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from normalign._errors import module_of_extra, require
from normalign._hooks import At
from normalign._linear_map import ChunkSize, LocalMap, default_budget, plan_chunks
from normalign._torch_compat import outside_inference_mode
from normalign.geometry._exact import measures_of, range_basis
from normalign.geometry._jacobian import check_batch, shape_of
from normalign.geometry._local_geometry import (
    FEW_PASSES,
    GeometryPlan,
    LocalGeometry,
    Method,
    Piece,
    Work,
    add_piece,
    join_pieces,
    measured_pieces,
)
from normalign.geometry._margin import as_labels, check_labels
from normalign.geometry._matrix_free import MatrixFreeOptions
from normalign.geometry._shared_pass import (
    SharedPass,
    SharedPlace,
    can_share,
    shared_place,
)
from normalign.geometry._stages import stages

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["INPUT", "LayerProfile", "ProfileRun", "layer_profile"]

INPUT = "input"

Place = str | At | None

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
            "at": {place: _geometry_dict(geometry) for place, geometry in self.items()},
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


class ProfileRun:
    """The measurement of several places of one model, a step at a time.

    Iterating does the work and yields, after every piece of it, the place and the
    number of its samples that are done. Stopping early, also by an interrupt, leaves
    what is finished in :meth:`geometries`.

    Parameters
    ----------
    model, x, y, output
        As in :func:`~normalign.local_geometry`.
    places : sequence of str, At or None; or None
        None, and ``"input"`` in the sequence, stand for the model's own input; None
        for the sequence lets the stages of the network be found.
    plan : GeometryPlan
    """

    def __init__(
        self,
        model: Callable[..., Any],
        x: Tensor,
        y: Tensor | ArrayLike | None,
        *,
        places: Sequence[Place] | None,
        output: Callable[[Any], Tensor] | None,
        plan: GeometryPlan,
        callee: str = "layer_profile",
    ) -> None:
        plan.check(callee)
        self._x, self._plan = x, plan
        self._y = None if y is None else as_labels(callee, y)
        self._whole = LocalMap(model, output=output, callee=callee)
        self.automatic = places is None
        # Tokens are checked with the place from which they are measured.
        floating = not isinstance(x, Tensor) or x.is_floating_point()
        if floating:
            check_batch(x, self._whole, plan.memory_budget)
        if places is None:
            places = stages(self._whole, x)
            if x.is_floating_point() or not places:
                places = [None, *places]
        require(len(places) > 0, callee, "places", "at least one", "none")
        names = [_place_name(place) for place in places]
        require(
            len(set(names)) == len(names), callee, "places",
            "different from each other", ", ".join(names),
        )  # fmt: skip
        self._maps = {
            name: LocalMap(
                model, at=None if name == INPUT else place, output=output, callee=callee
            )
            for name, place in zip(names, places, strict=True)
        }
        self._pieces: dict[str, list[Piece]] = {name: [] for name in names}
        for i, local_map in enumerate(self._maps.values()):
            if i == 0 and not floating:
                check_batch(x, local_map, plan.memory_budget)
            elif local_map.at is None:
                local_map.require_floating(x)

    @property
    def places(self) -> list[str]:
        """The names of the places, in order."""
        return list(self._maps)

    def geometries(self) -> dict[str, LocalGeometry]:
        """Return what is finished: places without a finished sample are not there."""
        return {
            name: join_pieces(pieces, self._x)
            for name, pieces in self._pieces.items()
            if pieces
        }

    def __iter__(self) -> Iterator[tuple[str, int]]:
        for name, piece in self._work():
            add_piece(self._pieces[name], piece)
            yield name, piece.samples.stop

    def _work(self) -> Iterator[tuple[str, Piece]]:
        x, y, plan = self._x, self._y, self._plan
        shareable: dict[str, SharedPlace] = {}
        if len(x) and len(self._maps) > 1:
            found = {name: shared_place(m, x) for name, m in self._maps.items()}
            shareable = {name: place for name, place in found.items() if place}
        if not can_share(list(shareable.values()), x):
            shareable = {}
        exact = self._exact_together(shareable)
        for group in exact:
            yield from self._shared_pieces(group)
        done = {name for group in exact for name in group}
        left = {name: place for name, place in shareable.items() if name not in done}
        norms = _SharedNorms(left, x, self._whole, plan) if len(left) > 1 else None
        runs: dict[str, Iterator[Piece]] = {}
        for name, local_map in self._maps.items():
            if name not in done:
                known = norms.of(name) if norms is not None and name in left else None
                runs[name] = measured_pieces(local_map, x, y, plan, norms=known)
        reached = dict.fromkeys(runs, 0)
        while runs:  # all places of the first samples, then those of the next
            name = min(runs, key=lambda name: reached[name])
            piece = next(runs[name], None)
            if piece is None:
                del runs[name]
                continue
            reached[name] = piece.samples.stop
            yield name, piece

    def _exact_together(
        self, places: dict[str, SharedPlace]
    ) -> list[dict[str, SharedPlace]]:
        """Return groups of places whose rows fit into the memory budget together."""
        if not places:
            return []
        x, plan = self._x, self._plan
        k, _, _ = shape_of(next(iter(places.values())).local_map, x)
        budget = plan.memory_budget or default_budget(x.device)
        groups: list[dict[str, SharedPlace]] = []
        room = 0
        for name, place in places.items():
            work = _work_at(place, k, plan)
            if k > place.d or not work.is_exact(None):
                continue
            if k > FEW_PASSES and range_basis(place.local_map, x) is not None:
                continue  # fewer passes than outputs, if it goes alone
            need = work.kept_bytes(None)
            if not groups or need > room:
                groups.append({})
                room = budget
            groups[-1][name] = place
            room -= need
        return groups

    def _shared_pieces(
        self, group: dict[str, SharedPlace]
    ) -> Iterator[tuple[str, Piece]]:
        """Yield the exact measures of a group of places, from the same passes."""
        x, y, plan = self._x, self._y, self._plan
        places = list(group.values())
        k, _, _ = shape_of(places[0].local_map, x)
        if y is not None:
            check_labels(places[0].local_map.callee, y, (len(x),), k)
        cut = plan_chunks(
            self._whole if x.is_floating_point() else places[0].local_map,
            x,
            chunk_size=plan.chunk_size,
            memory_budget=plan.memory_budget,
            n_vectors=min(k, 64),
            kept_per_sample=sum(_work_at(p, k, plan).kept_bytes(None) for p in places),
        )
        for piece in cut.pieces(len(x)):
            with torch.no_grad():
                found = _exact_of_all(places, x[piece], y, piece, cut.vectors)
            for name, values in zip(group, found, strict=True):
                yield name, Piece(piece, values, {}, "exact")


def _place_name(place: Place) -> str:
    if place is None or isinstance(place, str):
        return place or INPUT
    choices = [
        f"{key}={getattr(place, key)}"
        for key in ("call", "argument", "token")
        if getattr(place, key) is not None
    ]
    return f"{place.name}[{', '.join(choices)}]" if choices else place.name


def _work_at(place: SharedPlace, k: int, plan: GeometryPlan) -> Work:
    size = torch.empty((), dtype=place.dtype).element_size()
    return Work(k, place.d, size, plan.method, plan.options)


def _exact_of_all(
    places: Sequence[SharedPlace],
    x: Tensor,
    y: Tensor | None,
    piece: slice,
    vectors: int,
) -> list[dict[str, Tensor]]:
    shared = SharedPass(places, x, at_once=vectors)
    output = shared.output
    k = output.shape[1]
    rows: list[Tensor] = []
    for part, pulled in shared.blocks(torch.eye(k).to(output)):
        if not rows:
            rows = [p.new_empty(len(x), k, p.shape[2]) for p in pulled]
        for whole, block in zip(rows, pulled, strict=True):
            whole[:, part] = block.transpose(0, 1)
    inputs = shared.inputs
    del shared
    found = []
    for point in inputs:
        narrow = rows.pop(0)
        labels = None if y is None else y[piece].to(narrow.device).long()
        found.append(measures_of(narrow, point.to(narrow.device), output, labels))
        del narrow
    return found


class _SharedNorms:
    """Squared norms of all places, summed once for all when the first of them must.

    For many outputs each place is measured on its own; where its norm needs a pass for
    each output, these passes give the norms of the places after it too.
    """

    def __init__(
        self,
        places: dict[str, SharedPlace],
        x: Tensor,
        whole: LocalMap,
        plan: GeometryPlan,
    ) -> None:
        self._places, self._x = places, x
        self._whole, self._plan = whole, plan
        self._at_once: int | None = None
        self._totals: dict[tuple[str, int], Tensor] = {}
        self.k = shape_of(next(iter(places.values())).local_map, x)[0]

    def of(self, name: str) -> Callable[[slice], _PlaceNorms]:
        """Return what is known of one place, by samples."""
        return lambda piece: _PlaceNorms(self, name, piece)

    def totals(self, name: str, passes: int) -> Tensor:
        """Return the norms of a place, (n,), not a number where they are not known."""
        unknown = torch.full((len(self._x),), torch.nan, dtype=torch.float64)
        return self._totals.setdefault((name, passes), unknown)

    def sum(self, name: str, piece: slice, directions: Tensor) -> None:
        """Sum the norms of some samples at a place and at those after it."""
        names = list(self._places)
        names = names[names.index(name) :]
        shared = SharedPass(
            [self._places[n] for n in names], self._x[piece], at_once=self._vectors()
        )
        norms = shared.squared_norms(directions.to(shared.output))
        for n, norm in zip(names, norms, strict=True):
            self.totals(n, len(directions))[piece] = norm.cpu().double()

    def _vectors(self) -> int:
        if self._at_once is None:
            place = next(iter(self._places.values()))
            floating = self._x.is_floating_point()
            size = torch.empty((), dtype=place.dtype).element_size()
            self._at_once = plan_chunks(
                self._whole if floating else place.local_map,
                self._x,
                chunk_size="auto",
                memory_budget=self._plan.memory_budget,
                n_vectors=64,
                kept_per_sample=8 * size * sum(p.d for p in self._places.values()),
            ).vectors
        return self._at_once


@dataclass(frozen=True)
class _PlaceNorms:
    """The squared norms of some samples at one place."""

    shared: _SharedNorms
    name: str
    piece: slice

    def look_up(self, range_basis: Tensor | None) -> Tensor | None:
        passes = self.shared.k if range_basis is None else range_basis.shape[1]
        found = self.shared.totals(self.name, passes)[self.piece]
        return None if bool(found.isnan().any()) else found

    def compute(self, range_basis: Tensor | None) -> Tensor:
        eye = range_basis is None
        directions = torch.eye(self.shared.k) if eye else range_basis.mT
        self.shared.sum(self.name, self.piece, directions)
        return self.shared.totals(self.name, len(directions))[self.piece]


def _geometry_dict(geometry: LocalGeometry) -> dict[str, Any]:
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
