"""A still picture of the explorer, for a notebook that runs no scripts: the memory of the well-known cases."""

from matplotlib.figure import Figure

from minidist.plan.cluster.hardware import load
from minidist.show.explorer.choices import CHOICES
from minidist.show.explorer.presets import PRESETS
from minidist.show.explorer.table import GIGA, MEMORY, Planner
from minidist.show.palette import PAPER, on_paper


def draw(gpu: str, models: tuple[str, ...], colours: dict[str, str]) -> Figure:
    """Stacked bars of memory, one for each preset of these models, and the line that none may pass.

    Args:
        colours: part of memory -> its meaning in the palette.
    """
    chip = load().accelerators[gpu]
    limit, widest = chip.memory / GIGA, 2 * chip.memory / GIGA
    found = [(preset, CHOICES[preset.model]) for preset in PRESETS if preset.model in models]
    presets = [(one, choice, at) for one, choice in found if (at := one.position(choice.sliders(chip))) is not None]
    figure = Figure(figsize=(10, 1.4 + 0.5 * len(presets)), layout="constrained")
    axes = figure.add_subplot()
    for row, (_, choice, position) in enumerate(presets):
        run, left = Planner(choice, gpu)(position), 0.0
        for part, nbytes in vars(run.memory).items():
            axes.barh(row, nbytes / GIGA, left=left, color=on_paper(colours[part]), label="" if row else MEMORY[part])
            left += nbytes / GIGA
        beyond = left > widest
        words = axes.text(min(left, widest), row, f" {left:.0f} GB{' →' if beyond else ''} ", va="center")
        words.set(ha="right" if beyond else "left", backgroundcolor=PAPER["paper"] if beyond else "none")
    axes.axvline(limit, color=PAPER["wrong"], linewidth=2)
    axes.set_yticks(range(len(presets)), [preset.name for preset, *_ in presets])
    axes.invert_yaxis()
    axes.set_xlim(0, widest)
    axes.set_xlabel(f"GB on the fullest GPU; the line is what one {chip.name} has")
    figure.legend(ncols=4, loc="outside upper center")
    return figure
