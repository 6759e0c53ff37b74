"""Figures of chapter 17: documents."""
