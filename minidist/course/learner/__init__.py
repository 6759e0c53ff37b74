"""For those who solve tasks: check, hints, progress, a fresh start, and training on their own code."""
