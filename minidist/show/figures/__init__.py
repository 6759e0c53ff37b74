"""Still pictures of results, with Matplotlib. Each file has one kind: what its colours mean, and ``draw``.

subplots.py has the empty figure that most of them, and of those in chapters/figures, begin with.
"""
