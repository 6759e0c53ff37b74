"""Corrupted numbers: ranks that must hold equal bits compare them, and a step that is computed again must agree."""
