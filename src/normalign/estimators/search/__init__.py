"""Cross-validation over the iterations of Algorithm 1: folds, candidates, scores."""
