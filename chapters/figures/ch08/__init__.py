"""Figures of chapter 8: memory and precision."""
