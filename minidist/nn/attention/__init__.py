"""Causal attention: with all of its scores in memory, or tile by tile."""
