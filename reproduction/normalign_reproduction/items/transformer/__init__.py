"""Figure 2: Centroids of a transformer that learns modular addition."""
