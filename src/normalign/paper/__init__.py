"""The paper's experiments, from the run to the report.

Public names are loaded on first use: what is stored can be read without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normalign.paper.tour import TourResult as TourResult
    from normalign.paper.tour import run_tour as run_tour

__all__ = ["TourResult", "run_tour"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from normalign.paper import tour

    return getattr(tour, name)
