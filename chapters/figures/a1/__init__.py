"""Figures of appendix 1: what carries a message, how fast a link is, and what a time limit takes away."""
