"""Figure 6: Jacobians of zero cost accuracy."""
