"""Space-time diagrams of several algorithms, one above the other, on one time axis."""

from collections.abc import Mapping

from figures import space_time
from minidist.analysis import replay


def draw(runs: Mapping[str, list], unit: int):
    """Return a matplotlib Figure.

    Args:
        runs: name of the algorithm -> the logs of its ranks.
        unit: bytes of a message that takes one unit of time.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.1 * len(runs)), layout="constrained")
    last = 0.0
    for axes, (name, logs) in zip(figure.subplots(len(runs), 1, sharex=True), runs.items(), strict=True):
        flights = replay.flights(logs, lambda nbytes: nbytes / unit)
        end = max(flight.end for flight in flights)
        space_time.draw_on(axes, flights, len(logs), f"{name}: {end:g} units of time", "")
        last = max(last, end)
    axes.set_xlim(-0.1, last + 0.1)
    axes.set_xlabel("time, in units of sending M bytes once")
    return figure
