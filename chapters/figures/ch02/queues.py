"""All one-way queues between ranks."""

from minidist.show.figures.waits import positions
from minidist.show.palette import ink_on, of_rank


def draw(ranks: int):
    """Return a matplotlib Figure: ranks on a circle, and an arrow for each queue in the colour of its writer."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 4.2), layout="constrained")
    axes, places = figure.subplots(), positions(ranks)
    for source in range(ranks):
        colour = of_rank(source)
        axes.plot(*places[source], "s", markersize=44, color=colour)
        ink = ink_on(colour)
        axes.text(*places[source], f"rank {source}", color=ink, ha="center", va="center", fontweight="bold")
        for destination in range(ranks):
            if destination != source:
                curve = {"connectionstyle": "arc3,rad=0.16", "shrinkA": 27, "shrinkB": 27, "mutation_scale": 13}
                arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 2} | curve
                axes.annotate("", xy=places[destination], xytext=places[source], arrowprops=arrow)
    axes.set(xlim=(-1.4, 1.4), ylim=(-1.35, 1.35), aspect="equal")
    axes.set_title("Each arrow is a queue, in its writer's colour", fontsize=11)
    axes.axis("off")
    return figure
