"""The last step of several runs, one above the other on one time axis, so that they can be compared.

``timeline`` draws one run from beginning to end.
"""

from collections.abc import Mapping, Sequence

from minidist.analysis.steps import kind_of, last_step, step_length
from minidist.show.figures.subplots import subplots
from minidist.show.figures.timeline import COLOURS


def draw(runs: Mapping[str, Sequence[list]]):
    """Return a matplotlib Figure of the last step of each run: title -> its logs, one for each rank.

    Each rank has a lane of compute and, below it, a thin lane of communication. A dashed line ends the step.
    """
    panels = {title: last_step(logs) for title, logs in runs.items()}
    ranks = [len(logs) for logs in panels.values()]
    shown: dict[str, str] = {}
    figure, rows = subplots(
        11,
        0.9 + 0.55 * sum(ranks) + 0.35 * len(ranks),
        len(panels),
        1,
        sharex=True,
        gridspec_kw={"height_ratios": ranks},
    )
    for axes, (title, logs) in zip(rows, panels.items(), strict=True):
        for rank, log in enumerate(logs):
            for kind, colour in COLOURS.items():
                spans = [(e.start / 1e6, (e.end - e.start) / 1e6) for e in log if kind_of(e) == kind]
                lane, height = (rank + 0.42, 0.3) if kind == "communication" else (rank, 0.4)
                axes.broken_barh(spans, (lane, height), facecolors=colour, edgecolor="white", linewidth=0.3)
                if spans:
                    shown[kind] = colour
        end = step_length(logs) / 1e6
        axes.axvline(end, color="#606060", linewidth=1, linestyle="--")
        axes.text(end, -0.12, f" {end:.0f} ms", fontsize=9, color="#606060", ha="left", va="top")
        axes.set_yticks([rank + 0.36 for rank in range(len(logs))], [f"rank {rank}" for rank in range(len(logs))])
        axes.set_ylim(len(logs) - 0.1, -0.2)
        axes.set_title(title, loc="left", fontsize=11)
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    rows[-1].set_xlabel("milliseconds")
    rows[-1].set_xlim(0, 1.07 * rows[-1].get_xlim()[1])
    handles = [rows[0].barh(0, 0, color=colour, label=kind) for kind, colour in shown.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(shown), frameon=False)
    return figure
