"""Figure 1, left: Augmentation makes data dense, and alignment goes."""
