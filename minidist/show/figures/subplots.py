"""Empty matplotlib Figures, from which most pictures start; their axes are open above and on the right."""


def subplots(width: float, height: float, rows: int, columns: int, **settings):
    """Return a Figure of a size in inches, and a list of its axes; settings: see ``Figure.subplots``."""
    from matplotlib.figure import Figure  # takes a while to import

    figure = Figure(figsize=(width, height), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False, **settings).flat)
    for axes in grid:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, grid


def subplot(width: float, height: float):
    """Return a Figure of a size in inches, and its only axes."""
    figure, (axes,) = subplots(width, height, 1, 1)
    return figure, axes
