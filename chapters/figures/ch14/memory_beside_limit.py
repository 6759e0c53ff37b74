"""Figure of what the fullest GPU of planned layouts holds, next to its capacity: stacked bars and a line."""

from collections.abc import Mapping
from dataclasses import asdict

from minidist.plan.memory import Memory
from minidist.show.figures.subplots import subplot
from minidist.show.palette import MEANINGS, PAPER

COLOURS = {
    "parameters": MEANINGS["parameters"],
    "gradients": MEANINGS["gradients"],
    "optimizer": MEANINGS["optimizer state"],
    "activations": MEANINGS["activations"],
    "recomputed": MEANINGS["recomputed"],
    "gathered": MEANINGS["all-gather"],
    "assumed: fragments, CUDA, NCCL": PAPER["faint"],
}


def parts(memory: Memory) -> dict[str, float]:
    """Return the bytes of each kind that is drawn; both assumptions are one kind."""
    found = asdict(memory)
    assumed = found.pop("fragmentation") + found.pop("reserved")
    return found | {"assumed: fragments, CUDA, NCCL": assumed}


def draw(memories: Mapping[str, Memory], limit: float):
    """Return a matplotlib Figure: a horizontal bar for each layout, the first on top, and a line at ``limit`` bytes."""
    from matplotlib.patches import Rectangle

    figure, axes = subplot(11, 0.5 * len(memories) + 1.5)
    for row, memory in enumerate(memories.values()):
        level = 0.0
        for kind, nbytes in parts(memory).items():
            axes.barh(row, nbytes / 1e9, left=level / 1e9, height=0.62, color=COLOURS[kind])
            level += nbytes
        fits = memory.total <= limit
        axes.text(
            level / 1e9 + 0.008 * limit / 1e9,
            row,
            f"{level / 1e9:.0f}" + ("" if fits else f": {(level - limit) / 1e9:.0f} too much"),
            va="center",
            fontsize=9,
            color=PAPER["ink" if fits else "wrong"],
            bbox={"color": PAPER["paper"], "pad": 0.5},
        )
    axes.axvline(limit / 1e9, color=PAPER["wrong"], lw=1.5)
    axes.set_yticks(range(len(memories)), list(memories), fontsize=9)
    axes.invert_yaxis()
    most = max([limit, *(memory.total for memory in memories.values())])
    axes.set(xlim=(0, 1.22 * most / 1e9), xlabel=f"GB on the fullest GPU; the line: the {limit / 1e9:.0f} that it has")
    used = [kind for kind in COLOURS if any(parts(memory)[kind] for memory in memories.values())]
    handles = [Rectangle((0, 0), 1, 1, color=COLOURS[kind], label=kind) for kind in used]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(used), frameon=False, fontsize=9)
    return figure
