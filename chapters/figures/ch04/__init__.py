"""Figures of chapter 4: data parallelism."""
