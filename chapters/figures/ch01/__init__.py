"""Figures of chapter 1: a transformer in NumPy."""
