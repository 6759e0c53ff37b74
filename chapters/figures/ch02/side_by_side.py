"""Two space-time diagrams side by side, on the same time axis."""

from collections.abc import Mapping

from figures import space_time


def draw(panels: Mapping[str, tuple], ranks: int, unit: str = "steps", height: float = 2.6):
    """Return a matplotlib Figure.

    Args:
        panels: title -> (flights, (rank, start, end) of each wait).
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, height), layout="constrained")
    last = max(flight.end for flights, _ in panels.values() for flight in flights)
    for axes, (title, (flights, waiting)) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        space_time.draw_on(axes, flights, ranks, title, unit, waiting=waiting)
        if unit == "steps":
            axes.set_xticks(range(int(last) + 1))
        axes.set_xlim(right=1.02 * last)
    return figure
