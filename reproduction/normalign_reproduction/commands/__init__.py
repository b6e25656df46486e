"""The commands about the paper, registered with `normalign` by entry points."""
