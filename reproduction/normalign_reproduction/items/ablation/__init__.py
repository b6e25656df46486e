"""Figure 7: Regularization strategies compared on MNIST."""
