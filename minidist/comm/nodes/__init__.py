"""Groups on several nodes: which ranks share one, collectives for two speeds of links, and what they cost."""
