"""Measurements of a run: time, traffic, memory, FLOPs, the machine's peak, the loss on held-out text."""
