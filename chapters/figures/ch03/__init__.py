"""Figures of chapter 3: collectives."""
