"""Runs a learner's answers inside a rank and cleans up after them, so that no answer can affect the next one."""
