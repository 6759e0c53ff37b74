"""The roofline of a chip with names on it: where prefill and decode are, and at which batch decode meets the roof."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minidist.nn.gpt import GPTConfig
from minidist.plan.cluster.hardware import Accelerator
from minidist.plan.cluster.inference import decode, prefill
from minidist.plan.cluster.roofline import Work, attainable_flops, peak_flops, ridge_point
from minidist.show.palette import RANKS

MARKERS = "oDs^"  # two dots may be in one place
MEMORY_BOUND, COMPUTE_BOUND = "#E69F00", "#56B4E9"
BATCHES = (1, 4, 16, 64, 256)
PROMPTS = (128, 512, 2048)  # tokens


@dataclass(frozen=True)
class Dot:
    """A kernel on the picture. seconds: measured; None puts it on the roof."""

    label: str
    work: Work
    seconds: float | None = None

    def flops(self, accelerator: Accelerator, precision: str) -> float:
        """FLOP/s: measured, or what the roof allows."""
        if self.seconds is None:
            return attainable_flops(accelerator, precision, self.work.intensity)
        return self.work.flops / self.seconds


def ends_of_the_roofline(config: GPTConfig, bytes_each: float = 2) -> dict[str, list[Dot]]:
    """Decode at several batches, its attention, and prefill of one prompt of several lengths."""
    context = config.context
    return {
        "decode: products, by batch": [
            Dot(str(batch), decode(config, batch, context, bytes_each)["products"]) for batch in BATCHES
        ],
        "decode: attention, any batch": [Dot("", decode(config, 1, context, bytes_each)["attention"])],
        "prefill: products, by tokens of the prompt": [
            Dot(f"{tokens:,}", prefill(config, 1, tokens, bytes_each)["products"]) for tokens in PROMPTS
        ],
    }


def draw(accelerator: Accelerator, precision: str, series: Mapping[str, Sequence[Dot]], title: str):
    """A matplotlib Figure: the roof on two logarithmic axes, and kernels, filled where they were measured."""
    from matplotlib.figure import Figure

    peak, ridge = peak_flops(accelerator, precision), ridge_point(accelerator, precision)
    dots = [dot for some in series.values() for dot in some]
    low = min([ridge, *(dot.work.intensity for dot in dots)]) / 2.5
    high = max([ridge, *(dot.work.intensity for dot in dots)]) * 4
    bottom = (
        min([attainable_flops(accelerator, precision, low), *(dot.flops(accelerator, precision) for dot in dots)]) / 2
    )

    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots()
    slope = [attainable_flops(accelerator, precision, low), peak]
    axes.fill_between([low, ridge], slope, bottom, color=MEMORY_BOUND, alpha=0.13, linewidth=0)
    axes.fill_between([ridge, high], [peak, peak], bottom, color=COMPUTE_BOUND, alpha=0.16, linewidth=0)
    axes.plot([low, ridge], slope, color=MEMORY_BOUND, linewidth=3)
    axes.plot([ridge, high], [peak, peak], color=COMPUTE_BOUND, linewidth=3)
    axes.plot([ridge, ridge], [bottom, peak], color="#808080", linewidth=1, linestyle=":")
    axes.text(ridge * 1.06, bottom * 1.2, f"ridge: {ridge:.3g} FLOPs per byte", color="#606060", fontsize=9)
    axes.text(high, peak * 1.12, f"{written(peak)}FLOP/s, {precision}", ha="right", color="#2070A0", fontsize=9)
    bandwidth = f"{written(accelerator.memory_bandwidth)}B/s of memory bandwidth"
    axes.text(0.02, 0.95, bandwidth, transform=axes.transAxes, va="top", color="#9A6400", fontsize=9)
    for (name, some), colour, marker in zip(series.items(), RANKS, MARKERS, strict=False):
        places = [(dot.work.intensity, dot.flops(accelerator, precision)) for dot in some]
        measured = any(dot.seconds is not None for dot in some)
        axes.plot(
            *zip(*places, strict=True),
            marker=marker,
            markersize=8,
            linestyle="none",
            color=colour,
            markerfacecolor=colour if measured else "white",
            markeredgewidth=2,
            label=name,
            zorder=3,
        )
        for dot, place in zip(some, places, strict=True):
            axes.annotate(
                dot.label, place, (0, -16), textcoords="offset points", ha="center", fontsize=9, color=colour, zorder=4
            )
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(bottom, peak * 2.5))
    axes.set_xlabel("arithmetic intensity: FLOPs per byte moved")
    axes.set_ylabel("FLOP/s")
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False, fontsize=9, bbox_to_anchor=(1, 0.08))
    return figure


def written(value: float) -> str:
    """A rate in the largest unit of which there is at least one, ready for the unit's name: ``3.35 T``."""
    for exponent, unit in ((15, "P"), (12, "T"), (9, "G"), (6, "M")):
        if value >= 10**exponent:
            return f"{value / 10**exponent:.4g} {unit}"
    return f"{value:.4g} "
