"""Figures of chapter 16: what a Llama changes."""
