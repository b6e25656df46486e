"""A walk through the ideas: one network, trained twice, measured and drawn."""

from normalign.paper.tour.tour import TourResult, run_tour

__all__ = ["TourResult", "run_tour"]
