"""A roofline with kernels on it, such as prefill and decode, and how near they are to the roof.

Left of the ridge point the limit is memory bandwidth, a slope; right of it, arithmetic, a flat roof (Williams, Waterman
and Patterson, 2009: see plan/cluster/roofline.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minidist.nn.gpt import GPTConfig
from minidist.plan.cluster.roofline import decode, prefill
from minidist.plan.units import in_units
from minidist.show.figures.subplots import subplot
from minidist.show.palette import MEANINGS, RANKS

RATES = {" P": 1e15, " T": 1e12, " G": 1e9, " M": 1e6, " ": 1}  # ready for the unit's name
MARKERS = "oDs^"  # different ones, since two dots may coincide
MEMORY_BOUND, COMPUTE_BOUND = MEANINGS["read"], MEANINGS["computing"]
BATCHES = (1, 4, 16, 64, 256)
PROMPTS = (128, 512, 2048)  # tokens


@dataclass(frozen=True)
class Dot:
    """Kernel on the picture. intensity: FLOPs per byte. flops: measured FLOP/s; None puts the kernel on the roof."""

    label: str
    intensity: float
    flops: float | None = None


def ends_of_the_roofline(config: GPTConfig, bytes_each: float = 2) -> dict[str, list[Dot]]:
    """Return kernels of a model: decode at several batches, its attention, and prefill of one prompt by length."""
    context = config.context
    return {
        "decode: products, by batch": [
            Dot(str(batch), decode(config, batch, context, bytes_each)["products"].intensity) for batch in BATCHES
        ],
        "decode: attention, any batch": [Dot("", decode(config, 1, context, bytes_each)["attention"].intensity)],
        "prefill: products, by tokens of the prompt": [
            Dot(f"{tokens:,}", prefill(config, 1, tokens, bytes_each)["products"].intensity) for tokens in PROMPTS
        ],
    }


def draw(peak: float, bandwidth: float, series: Mapping[str, Sequence[Dot]], title: str, precision: str = ""):
    """Return a matplotlib Figure: the roof on two logarithmic axes, and kernels, filled if they were measured.

    Args:
        peak: FLOP/s.
        bandwidth: memory bandwidth, bytes/s.
        series: the kernels by the names of their series.
        precision: precision of the peak, named on the picture.
    """

    def place(dot: Dot) -> tuple[float, float]:
        return dot.intensity, min(peak, dot.intensity * bandwidth) if dot.flops is None else dot.flops

    ridge = peak / bandwidth
    places = [place(dot) for dots in series.values() for dot in dots]
    intensities = [ridge, *(intensity for intensity, _ in places)]
    low, high = min(intensities) / 2.5, max(intensities) * 4
    bottom = min([low * bandwidth, *(flops for _, flops in places)]) / 2

    figure, axes = subplot(9, 4.8)
    slope = [low * bandwidth, peak]
    axes.fill_between([low, ridge], slope, bottom, color=MEMORY_BOUND, alpha=0.13, linewidth=0)
    axes.fill_between([ridge, high], [peak, peak], bottom, color=COMPUTE_BOUND, alpha=0.16, linewidth=0)
    axes.plot([low, ridge], slope, color=MEMORY_BOUND, linewidth=3)
    axes.plot([ridge, high], [peak, peak], color=COMPUTE_BOUND, linewidth=3)
    axes.plot([ridge, ridge], [bottom, peak], color="#808080", linewidth=1, linestyle=":")
    axes.text(ridge * 1.06, bottom * 1.2, f"ridge: {ridge:.3g} FLOPs per byte", color="#606060", fontsize=9)
    reached = f"{in_units(peak, RATES, 4)}FLOP/s" + f", {precision}" * bool(precision)
    axes.text(high, peak * 1.25, reached, ha="right", color="#2070A0", fontsize=9)
    memory = f"{in_units(bandwidth, RATES, 4)}B/s of memory bandwidth"
    axes.text(0.02, 0.95, memory, transform=axes.transAxes, va="top", color="#9A6400", fontsize=9)
    for (name, dots), colour, marker in zip(series.items(), RANKS, MARKERS, strict=False):
        measured = any(dot.flops is not None for dot in dots)
        axes.plot(
            *zip(*map(place, dots), strict=True),
            marker=marker,
            markersize=8,
            linestyle="none",
            color=colour,
            markerfacecolor=colour if measured else "white",
            markeredgewidth=2,
            label=name,
            zorder=3,
        )
        for dot in dots:
            below = {"xytext": (7, -12), "textcoords": "offset points", "zorder": 4}
            axes.annotate(dot.label, place(dot), fontsize=9, color=colour, **below)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(bottom, peak * 2.5))
    axes.set_xlabel("arithmetic intensity: FLOPs per byte moved")
    axes.set_ylabel("FLOP/s")
    axes.set_title(title, loc="left", fontsize=11)
    axes.legend(loc="lower right", frameon=False, fontsize=9, bbox_to_anchor=(1, 0.08))
    return figure
