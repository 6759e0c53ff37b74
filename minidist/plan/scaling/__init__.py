"""The loss as a function of parameters, tokens and FLOPs: published laws, and fits to your own runs."""
