"""Figure of how fast bytes move inside one GPU and between GPUs: bars on a logarithmic axis."""

from collections.abc import Mapping

from minidist.show.figures.subplots import subplot
from minidist.show.palette import MEANINGS

COLOUR, BOTH_WAYS = MEANINGS["communication"], MEANINGS["link in use"]


def draw(links: Mapping[str, tuple[float, float]], nbytes: float, title: str):
    """Return a matplotlib Figure of links, the fastest on top.

    Args:
        links: name -> bytes/s in one direction, and in both together.
        nbytes: each bar's label says how long this many bytes take in one direction.
    """
    figure, axes = subplot(9, 0.9 + 0.62 * len(links))
    slowest = min(one for one, _ in links.values())
    for place, (one, both) in enumerate(links.values()):
        if both > one:
            axes.barh(place, both / 1e9, 0.6, color=BOTH_WAYS)
        axes.barh(place, one / 1e9, 0.6, color=COLOUR)
        label = f" {one / 1e9:,.0f} GB/s" + (f" each way, {both / 1e9:,.0f} both" if both > one else "")
        axes.text(max(one, both) / 1e9, place, f"{label}:  {seconds(nbytes / one)}", va="center", fontsize=9)
    axes.set_yticks(range(len(links)), links)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(slowest / 1e9 / 4, max(max(pair) for pair in links.values()) / 1e9 * 8)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("GB/s")
    axes.set_title(title, loc="left", fontsize=11)
    axes.tick_params(axis="y", length=0)
    return figure


def seconds(value: float) -> str:
    """Return a duration as text, in s, ms or µs."""
    for unit, size in (("s", 1), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} µs"
