"""A picture of bytes on devices: what a model needs, poured into as many GPUs as it takes."""

from collections.abc import Mapping

COLOURS = {  # of Okabe and Ito; a bucket keeps its colour in every chapter
    "parameters": "#56B4E9",
    "gradients": "#0072B2",
    "master weights": "#00573F",
    "exp_avg": "#009E73",
    "exp_avg_sq": "#7FCEB9",
    "optimizer": "#009E73",
    "activations": "#CC79A7",
}
OTHER = "#A0A0A0"
EPS = 1e-9  # of a device: what rounding may leave over


def pour(buckets: Mapping[str, float], capacity: float) -> list[list[tuple[str, float, float]]]:
    """Fill one device after the other, the buckets in their order.

    Args:
        buckets: how much of each kind there is, in the unit of ``capacity``.
        capacity: of one device.

    Returns:
        For each device its pieces (bucket, from, to), from the bottom up.
    """
    devices: list[list[tuple[str, float, float]]] = []
    level = capacity  # of the device that is being filled: none yet
    for name, amount in buckets.items():
        while amount > EPS * capacity:
            if capacity - level <= EPS * capacity:
                devices.append([])
                level = 0.0
            piece = min(amount, capacity - level)
            devices[-1].append((name, level, level + piece))
            level, amount = level + piece, amount - piece
    return devices


def draw(buckets: Mapping[str, float], capacity: float, title: str, unit: str = "GB"):
    """A matplotlib Figure: each device a glass of ``capacity``, the buckets poured in from left to right."""
    from matplotlib.figure import Figure

    devices = pour(buckets, capacity)
    figure = Figure(figsize=(min(11, 2.5 + 0.62 * len(devices)), 2.9), layout="constrained")
    axes = figure.subplots()
    for number, pieces in enumerate(devices):
        for name, low, high in pieces:
            axes.bar(number, high - low, 0.76, low, color=COLOURS.get(name, OTHER))
        axes.bar(number, capacity, 0.76, color="none", edgecolor="black", linewidth=1.2)
    axes.set_xticks(range(len(devices)), [str(number + 1) for number in range(len(devices))])
    axes.set_xlabel("GPU")
    axes.set_ylabel(unit)
    axes.set_yticks([0, capacity / 2, capacity])
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    handles = [
        axes.bar(0, 0, color=COLOURS.get(name, OTHER), label=f"{name}  {amount:,.0f} {unit}")
        for name, amount in buckets.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False)
    return figure
