"""Training: one step (step.py), the one place where axes meet (parallelize.py), and the loop around them."""
