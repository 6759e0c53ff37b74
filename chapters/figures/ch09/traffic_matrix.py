"""A traffic matrix: what each rank sent to each, coloured by axis, darker for more; frames are nodes."""

from collections.abc import Mapping, Sequence

import numpy as np

from minidist.analysis.traffic import along, inside_and_between
from minidist.show.palette import AXES

LITTLE = 0.01  # of the largest entry: smaller ones (the norm and the loss, a few bytes each) are not shown


def image(sent: np.ndarray, shape: Sequence[int], names: Sequence[str]) -> np.ndarray:
    """Return the matrix in colours, (N, N, 4): the colour of the axis along which two ranks differ, as opaque as the
    log of their traffic; white without traffic."""
    found = np.ones((*sent.shape, 4))
    largest = sent.max()
    for name, flow in along(sent, shape, names).items():
        there = flow > LITTLE * largest
        colour = np.array([int(AXES[name][i : i + 2], 16) / 255 for i in (1, 3, 5)])
        found[there, :3] = colour
        found[there, 3] = 1 - 0.85 * np.log(flow[there] / largest) / np.log(LITTLE)
    return found


def draw(panels: Mapping[str, tuple], ranks_per_node: int, unit: float, unit_name: str):
    """Return a matplotlib Figure: a matrix for each numbering of the ranks, side by side; rows send, columns receive.

    Args:
        panels: title -> (sent (N, N), shape, names of the axes).
        unit, unit_name: the traffic between nodes is divided by ``unit`` and labelled ``unit_name``.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(11, 0.9 + 10 / len(panels)), layout="constrained")
    shown: dict[str, str] = {}
    for axes, (title, (sent, shape, names)) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        axes.imshow(image(sent, shape, names))
        for node in range(len(sent) // ranks_per_node):
            corner = node * ranks_per_node - 0.5
            frame = Rectangle(
                (corner, corner), ranks_per_node, ranks_per_node, fill=False, edgecolor="#404040", linewidth=1.6
            )
            axes.add_patch(frame)
        _, between = inside_and_between(sent, ranks_per_node)
        axes.set_title(f"{title}\nbetween nodes: {between / unit:.2f} {unit_name}", fontsize=10)
        axes.set_xticks(range(0, len(sent), ranks_per_node))
        axes.set_yticks(range(0, len(sent), ranks_per_node))
        axes.set_xticks(np.arange(len(sent) - 1) + 0.5, minor=True)
        axes.set_yticks(np.arange(len(sent) - 1) + 0.5, minor=True)
        axes.grid(which="minor", color="#F0F0F0", linewidth=0.5)
        axes.tick_params(which="both", length=0, labelsize=8)
        axes.spines[:].set_color("#D0D0D0")
        axes.set_xlabel("to rank", fontsize=9)
        shown |= {name: AXES[name] for name, flow in along(sent, shape, names).items() if flow.any()}
    figure.axes[0].set_ylabel("from rank", fontsize=9)
    handles = [Rectangle((0, 0), 1, 1, color=colour, label=name) for name, colour in shown.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(shown), frameon=False)
    return figure
