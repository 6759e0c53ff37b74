"""A message to scale: its header field by field, then the payload."""

from collections.abc import Mapping

from minidist.show.palette import SERIES


def draw(parts: Mapping[str, int]):
    """Return a matplotlib Figure.

    Args:
        parts: name -> bytes, in order; the last part is the payload.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.5), layout="constrained")
    axes, left = figure.subplots(), 0
    for label, width in parts.items():
        colour = SERIES[1 if label == "payload" else 0]
        axes.barh(0, width, left=left, color=colour, edgecolor="white", alpha=0.85)
        turned = 90 if width < 20 else 0
        axes.text(left + width / 2, 0, label, ha="center", va="center", rotation=turned, color="white", fontsize=8)
        left += width
    *_, call, payload = parts.values()
    axes.set(xlim=(0, left), yticks=[], xticks=[0, left - payload - call, left - payload, left], xlabel="bytes")
    axes.spines[:].set_visible(False)
    return figure
