"""Figures of chapter 9: composing."""
