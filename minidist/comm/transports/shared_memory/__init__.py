"""Ranks of one machine: a segment of shared memory that all of them see, and a queue in it for each pair."""
