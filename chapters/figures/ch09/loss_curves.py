"""Loss curves of runs with a bug next to the correct run and to another seed."""

from collections.abc import Mapping, Sequence

from minidist.show.figures.subplots import subplot
from minidist.show.palette import of_rank


def draw(curves: Mapping[str, Sequence[float]]):
    """Return a matplotlib Figure with all curves.

    Args:
        curves: title -> loss of each step. The first is the correct run and drawn thick, the second another seed and
            drawn dashed; a colour each for the others.
    """
    figure, axes = subplot(11, 3)
    styles = [{"color": "#444444", "linewidth": 3}, {"color": "#A0A0A0", "linewidth": 1.5, "linestyle": "--"}]
    styles += [{"color": of_rank(number), "linewidth": 1.5} for number in range(len(curves) - 2)]
    for (title, losses), style in zip(curves.items(), styles, strict=True):
        axes.plot(losses, label=title, **style)
    axes.set(xlabel="step", ylabel="loss")
    axes.legend(frameon=False, fontsize=9)
    return figure
