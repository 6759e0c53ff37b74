"""Messages as arrows between the lifelines of ranks: a space-time diagram (Lamport, 1978).

The arrows are flights: of a real run (analysis/traffic.py), or of a run replayed on another network
(analysis/replay.py).
"""

from collections.abc import Sequence

from minidist.analysis.replay import Flight
from minidist.show.palette import of_rank


def draw(
    flights: Sequence[Flight],
    ranks: int,
    title: str,
    unit: str = "steps",
    busy: Sequence[tuple[int, float, float]] = (),
    waiting: Sequence[tuple[int, float, float]] = (),
    width: float = 8.0,
):
    """Return a matplotlib Figure: a lifeline for each rank, an arrow in the sender's colour for each flight.

    ``busy`` and ``waiting`` are (rank, start, end) on the lifelines, in the rank's colour and in grey.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 0.9 + 0.5 * ranks), layout="constrained")
    draw_on(figure.subplots(), flights, ranks, title, unit, busy, waiting)
    return figure


def draw_on(axes, flights, ranks: int, title: str, unit: str = "steps", busy=(), waiting=()) -> None:
    """Draw the messages on existing axes; arguments as for ``draw``."""
    last = max([flight.end for flight in flights] + [end for _, _, end in [*busy, *waiting]], default=1.0)
    line, head = (1.6, 11) if len(flights) <= 64 else (1.0, 7)
    for rank in range(ranks):
        axes.axhline(rank, color="#C8C8C8", linewidth=1, zorder=0)
    for rank, start, end in waiting:
        axes.barh(rank, end - start, left=start, height=0.18, color="#D0D0D0", zorder=1)
    for rank, start, end in busy:
        axes.barh(rank, end - start, left=start, height=0.3, color=of_rank(rank), alpha=0.55, zorder=1)
    for flight in flights:
        axes.annotate(
            "",
            xy=(flight.end, flight.destination),
            xytext=(flight.start, flight.source),
            arrowprops={
                "arrowstyle": "-|>",
                "color": of_rank(flight.source),
                "linewidth": line,
                "shrinkA": 0,
                "shrinkB": 1,
                "mutation_scale": head,
            },
            zorder=2,
        )
    axes.set_xlim(-0.01 * last, 1.02 * last)
    axes.set_ylim(ranks - 0.6, -0.4)
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    for rank, label in enumerate(axes.get_yticklabels()):
        label.set_color(of_rank(rank))
    if unit == "steps":
        axes.set_xticks(range(int(last) + 1))
        axes.grid(axis="x", color="#EEEEEE", zorder=-1)
    axes.set_xlabel(unit)
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
