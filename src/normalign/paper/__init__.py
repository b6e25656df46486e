"""The paper's experiments, from the run to the report."""

from normalign.paper.tour import TourResult, run_tour

__all__ = ["TourResult", "run_tour"]
