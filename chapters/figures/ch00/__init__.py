"""Figures of chapter 0: one GPU is never enough."""
