"""Figures of chapter 7: pipeline parallelism."""
