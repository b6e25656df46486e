"""Table 6: Regularization strategies, their probes and weights."""
