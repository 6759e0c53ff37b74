"""Helpers of several demonstrations: warm ranks and training runs, sizes, and records of time and of memory."""
