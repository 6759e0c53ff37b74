"""The layouts of published models: ranks along each axis, and memory for parameters, gradients and optimizer."""

from collections.abc import Mapping, Sequence

from figures.ch09.cost import COLOURS
from minidist.show.figures.subplots import subplots
from minidist.show.palette import on_paper

NODE, MEMORY = 8, 80  # GPUs of a node; GB of a GPU


def draw(billions: Sequence[float], ranks: Mapping[str, Sequence[float]], gigabytes: Sequence[float]):
    """Return a matplotlib Figure: on the left the ranks along each axis, on the right the model states of a GPU.

    Args:
        billions: parameters of each model, in 10^9.
        ranks: axis -> ranks along it, for each model.
        gigabytes: parameters, gradients and optimizer on each GPU, for each model.
    """
    figure, (left, right) = subplots(11, 3.2, 1, 2)
    for name, values in ranks.items():
        left.plot(billions, values, "o-", color=COLOURS[name], label=name)
    left.set(xscale="log", yscale="log", xlabel="billions of parameters", ylabel="ranks along the axis")
    left.set_yticks([1, 2, 4, 8, 16, 32, 64], [1, 2, 4, 8, 16, 32, 64])
    left.axhline(NODE, color="#A0A0A0", linewidth=0.8, linestyle=":")
    left.text(billions[0], NODE + 0.5, "GPUs per node", fontsize=8, color="#606060")
    left.legend(frameon=False)
    places = range(len(billions))
    right.bar(places, gigabytes, color=COLOURS["parameters"], label="16 bytes per parameter / (tp · pp)")
    right.axhline(MEMORY, color=on_paper("wrong"), linestyle="--", linewidth=1.2)
    right.text(
        places[-1] + 0.4, MEMORY - 4, "memory of a GPU", ha="right", va="top", fontsize=8, color=on_paper("wrong")
    )
    right.set_xticks(places, [f"{size:g}" for size in billions], fontsize=8)
    right.set(xlabel="billions of parameters", ylabel="GB per GPU", ylim=(0, 1.1 * MEMORY))
    right.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 0.9))
    for axes in (left, right):
        axes.minorticks_off()
    return figure
