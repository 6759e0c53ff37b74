"""How the loss follows from parameters, tokens and FLOPs: published laws, and fits to runs of your own."""
