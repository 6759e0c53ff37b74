"""What went from each rank to each, as a matrix: a colour for the axis, the darker the more; frames are machines."""

from collections.abc import Mapping, Sequence

import numpy as np

from figures.axes import COLOURS, along
from figures.machines import inside_and_across

LITTLE = 0.01  # of the largest entry: below it nothing is shown (the norm and the loss, a few bytes each)


def moved(sent: np.ndarray, shape: Sequence[int], order: Sequence[int]) -> np.ndarray:
    """What would have gone between places, had the ranks of a mesh been numbered with its axes in another order.

    Args:
        sent: (N, N), from each rank to each.
        shape: of the mesh that they were numbered in.
        order: its axes, the slowest first.
    """
    ranks = np.arange(len(sent)).reshape(shape).transpose(order).ravel()  # the rank at each place
    return sent[np.ix_(ranks, ranks)]


def image(sent: np.ndarray, shape: Sequence[int], names: Sequence[str]) -> np.ndarray:
    """The matrix in colours, (N, N, 4): that of the axis along which two ranks differ, as opaque as the log of what
    went there; white where nothing did."""
    found = np.ones((*sent.shape, 4))
    largest = sent.max()
    for name, flow in along(sent, shape, names).items():
        there = flow > LITTLE * largest
        colour = np.array([int(COLOURS[name][i : i + 2], 16) / 255 for i in (1, 3, 5)])
        found[there, :3] = colour
        found[there, 3] = 1 - 0.85 * np.log(flow[there] / largest) / np.log(LITTLE)
    return found


def draw(panels: Mapping[str, tuple], in_machine: int, unit: float, unit_name: str):
    """A matplotlib Figure: side by side, for each numbering of the ranks its matrix; rows send, columns receive.

    Args:
        panels: title -> (sent (N, N), shape, names of the axes).
        in_machine: ranks in one machine.
        unit, unit_name: what goes between machines is given over ``unit``, in ``unit_name``.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(11, 0.9 + 10 / len(panels)), layout="constrained")
    shown: dict[str, str] = {}
    for axes, (title, (sent, shape, names)) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        axes.imshow(image(sent, shape, names))
        for machine in range(len(sent) // in_machine):
            corner = machine * in_machine - 0.5
            frame = Rectangle((corner, corner), in_machine, in_machine, fill=False, edgecolor="#404040", linewidth=1.6)
            axes.add_patch(frame)
        _, across = inside_and_across(sent, in_machine)
        axes.set_title(f"{title}\nbetween machines: {across / unit:.2f} {unit_name}", fontsize=10)
        axes.set_xticks(range(0, len(sent), in_machine))
        axes.set_yticks(range(0, len(sent), in_machine))
        axes.set_xticks(np.arange(len(sent) - 1) + 0.5, minor=True)
        axes.set_yticks(np.arange(len(sent) - 1) + 0.5, minor=True)
        axes.grid(which="minor", color="#F0F0F0", linewidth=0.5)
        axes.tick_params(which="both", length=0, labelsize=8)
        axes.spines[:].set_color("#D0D0D0")
        axes.set_xlabel("to rank", fontsize=9)
        shown |= {name: COLOURS[name] for name, flow in along(sent, shape, names).items() if flow.any()}
    figure.axes[0].set_ylabel("from rank", fontsize=9)
    handles = [Rectangle((0, 0), 1, 1, color=colour, label=name) for name, colour in shown.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(shown), frameon=False)
    return figure
