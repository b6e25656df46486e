"""Tables and answers as people hand them in: arrays, tensors, frames, labels."""
