"""From summed gradients to the next weights: clipping, and optimizers."""
