"""Still pictures of results, with Matplotlib. Each file has one kind: what its colours mean, and ``draw``."""
