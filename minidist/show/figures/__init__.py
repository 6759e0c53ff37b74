"""Still pictures of results, with Matplotlib. Each file has one kind of picture: its colours, and ``draw``.

subplots.py has the empty figure from which most of them start, here and in chapters/figures.
"""
