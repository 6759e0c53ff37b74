"""Figures of chapter 5: ZeRO."""
