"""Reads the source of answers and of graders, without running either: stubs, tasks, and what depends on what."""
