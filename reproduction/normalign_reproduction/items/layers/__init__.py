"""Figure 4: Centroid alignment through the layers of robust networks."""
