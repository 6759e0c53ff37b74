"""Figures of chapter 12: when machines fail."""
