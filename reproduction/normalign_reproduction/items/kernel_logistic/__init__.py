"""Figure 5: Gaussian kernel logistic regression aligns as it learns."""
