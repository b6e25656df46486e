"""Pictures; needs matplotlib, the extra ``normalign[plots]``."""

from normalign._errors import missing_extra

try:
    from normalign.plots._centroids import plot_centroids
    from normalign.plots._curves import plot_curves
    from normalign.plots._partition import plot_partition
    from normalign.plots._profile import plot_profile
except ModuleNotFoundError as error:
    raise missing_extra("normalign.plots", "plots", error) from error

__all__ = ["plot_centroids", "plot_curves", "plot_partition", "plot_profile"]
