"""One file for each challenge: its cases, what a right answer is, and what its score counts."""
