"""Figures of chapter 14: plans next to published runs."""
