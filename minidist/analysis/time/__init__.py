"""Where the time of a step goes: by kind, hidden behind compute, in bubbles, to a slow rank, and as utilization."""
