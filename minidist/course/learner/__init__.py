"""Tools for learners: check, hints, progress, reset, and training on their own code."""
