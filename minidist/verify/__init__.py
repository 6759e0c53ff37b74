"""The proof: every layout matches the single-process run bit for bit."""
