"""Curves of training runs in several precisions, with one colour for each run in all panels."""

from collections.abc import Mapping, Sequence

import numpy as np

from figures.ch08.spacing import COLOURS
from minidist.show.palette import SERIES, on_paper

FLOAT32 = {"color": COLOURS["float32"], "linewidth": 4, "alpha": 0.35}
STYLES = {  # run -> its line
    "float32": FLOAT32,
    "float32, another seed": {"color": "#A0A0A0", "linewidth": 1},
    "bf16": {"color": COLOURS["bfloat16"]},
    "bf16, master weights": {"color": COLOURS["bfloat16"]},
    "bf16, no masters": {"color": SERIES[1]},
    "fp16": {"color": COLOURS["float16"]},
    "fp16, no scaling": {"color": SERIES[5]},
    "fp16, gradients scaled by 2⁻¹²": {"color": SERIES[1]},
    "fp16, dynamic scaling": {"color": on_paper("result"), "linestyle": "--"},
    "fp8": {"color": COLOURS["e4m3"]},
    "fp8, no scales": {"color": SERIES[3]},
}


def draw(panels: Mapping[str, Mapping[str, Sequence[float]]], **settings: Mapping):
    """Return a matplotlib Figure with the panels side by side, and a legend below them.

    Args:
        panels: what a panel shows -> run (one of ``STYLES``) -> value of each step.
        settings: a panel's settings by its letter, a for the first: a={"yscale": "log"}.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    handles = {}
    for number, (title, runs) in enumerate(panels.items()):
        axes = figure.add_subplot(1, len(panels), number + 1)
        for name, values in runs.items():
            (handles[name],) = axes.plot(np.asarray(values), **{"linewidth": 1.4, "label": name} | STYLES[name])
        axes.set(xlabel="step", ylabel=title, **settings.get("ab"[number], {}))
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(handles=list(handles.values()), loc="outside lower center", ncols=len(handles), frameon=False)
    return figure
