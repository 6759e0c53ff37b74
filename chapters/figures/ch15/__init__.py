"""Figures of chapter 15: who waits for whom, what is stale, what is left out, and what is joined when."""
