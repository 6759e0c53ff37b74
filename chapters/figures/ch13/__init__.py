"""Figures of chapter 13: the network."""
