"""Figure 1, right: A wider network aligns more; more images, less."""
