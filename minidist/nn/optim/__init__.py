"""Clipping and optimizers: from summed gradients to the next weights."""
