"""Figures of chapter 6: tensor parallelism."""
