"""Figures of chapter 14: what is planned, beside what was published."""
