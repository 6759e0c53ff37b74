"""Figure of the cost of each layout: on the left a bar of memory, on the right one of time or traffic, in segments."""

from collections.abc import Mapping

from minidist.show.figures import memory
from minidist.show.figures.subplots import subplots
from minidist.show.palette import AXES, MEANINGS, on_paper

COLOURS = {
    **memory.COLOURS,
    **AXES,
    "compute": MEANINGS["computing"],
    "recompute": MEANINGS["recomputed"],
    "bubble": on_paper("idle"),
}
OTHER = "#A0A0A0"

Segments = Mapping[str, float]


def draw(
    costs: Mapping[str, tuple[Segments, Segments]],
    titles: tuple[str, str],
    limits: tuple[float | None, float | None] = (None, None),
    longest: tuple[float | None, float | None] = (None, None),
):
    """Return a matplotlib Figure: a row for each layout, title -> (segments of the left bar, of the right bar).

    Args:
        titles: of the two sides, with their units.
        limits: for each side, where to draw a line that bars should not cross.
        longest: for each side, where it ends; a longer bar is cut off there, and its length is written next to it.
    """
    figure, grid = subplots(11, 1.1 + 0.42 * len(costs), 1, 2, sharey=True)
    for side, axes in enumerate(grid):
        shown: dict[str, str] = {}
        sums = [sum(both[side].values()) for both in costs.values()]
        end = longest[side] or max(sums)
        for place, both in enumerate(costs.values()):
            left = 0.0
            for name, amount in both[side].items():
                colour = COLOURS.get(name, OTHER)
                axes.barh(place, max(0.0, min(amount, end - left)), 0.7, left, color=colour)
                left += amount
                if amount:
                    shown.setdefault(name, colour)
            cut = "» " if left > end else ""
            axes.text(min(left, end) + 0.01 * end, place, cut + short(left), va="center", fontsize=9)
        if limits[side]:
            axes.axvline(limits[side], color=on_paper("wrong"), linewidth=1.2, linestyle="--")
        axes.set_xlim(0, 1.16 * end)
        axes.set_title(titles[side], fontsize=10, loc="left")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        handles = [axes.barh(0, 0, color=colour, label=name) for name, colour in shown.items()]
        place = {"loc": "upper center", "bbox_to_anchor": (0.45, -0.5 / (0.42 * len(costs)))}
        axes.legend(handles=handles, ncols=3 if len(shown) > 4 else 4, frameon=False, fontsize=9, **place)
    axes = figure.axes[0]
    axes.set_yticks(range(len(costs)), costs, fontsize=9)
    axes.invert_yaxis()
    return figure


def short(number: float) -> str:
    """Return a number as text: three significant digits, and whole numbers from 100 on."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
