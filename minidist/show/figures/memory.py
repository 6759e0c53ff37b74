"""Memory that a model needs, spread over as many GPUs as it takes."""

from collections.abc import Mapping

from minidist.show.palette import MEANINGS

COLOURS = {  # of Okabe and Ito; a kind of memory has one colour in every chapter
    "parameters": MEANINGS["parameters"],
    "gradients": MEANINGS["gradients"],
    "master weights": MEANINGS["master weights"],
    "exp_avg": MEANINGS["optimizer state"],
    "exp_avg_sq": MEANINGS["second moments"],
    "optimizer": MEANINGS["optimizer state"],
    "activations": MEANINGS["activations"],
}
OTHER = "#A0A0A0"
EPS = 1e-9  # of a device: smaller amounts come from rounding


def fill(amounts: Mapping[str, float], capacity: float) -> list[list[tuple[str, float, float]]]:
    """Fill one device after the other, with one kind after the other.

    Args:
        amounts: amount of each kind, in the unit of ``capacity``.
        capacity: capacity of one device.

    Returns:
        For each device its pieces (kind, from, to), from the bottom up.
    """
    devices: list[list[tuple[str, float, float]]] = []
    level = capacity  # of the device that is being filled: none yet
    for name, amount in amounts.items():
        while amount > EPS * capacity:
            if capacity - level <= EPS * capacity:
                devices.append([])
                level = 0.0
            piece = min(amount, capacity - level)
            devices[-1].append((name, level, level + piece))
            level, amount = level + piece, amount - piece
    return devices


def draw(amounts: Mapping[str, float], capacity: float, title: str, unit: str = "GB"):
    """Return a matplotlib Figure: a bar of height ``capacity`` for each device, filled from left to right."""
    from matplotlib.figure import Figure

    devices = fill(amounts, capacity)
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
        for name, amount in amounts.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False)
    return figure
