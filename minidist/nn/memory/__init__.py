"""What waits in memory for the backward pass, in which form, and what is computed again instead."""
