"""Figure 3: A normal-aligned network for any sample."""
