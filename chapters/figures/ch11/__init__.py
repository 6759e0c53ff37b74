"""Figures of chapter 11: experts."""
