"""Figures of chapter 10: long sequences."""
