"""Beyond the paper: Along the identity weight: what robustness costs."""
