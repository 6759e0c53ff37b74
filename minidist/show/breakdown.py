"""Where the time of a step goes: computing, communicating, or waiting for the others to come to the collective.

The same collective begins on every rank of a group when the last of them calls it. What a rank that came earlier spends
until then is waiting; from then on it communicates. All else is computing, the Python around the products included.
"""

from collections.abc import Mapping, Sequence

from minidist.show.overlap import last_step
from minidist.show.timeline import COLOURS

KINDS = {"compute": COLOURS["backward"], "communication": COLOURS["communication"], "waiting": COLOURS["wait"]}


def seconds(logs: Sequence[list]) -> list[dict[str, float]]:
    """Of each rank's last step the seconds of each kind.

    Args:
        logs: of ranks that make the same collectives in the same order, none of them in the background.

    Raises:
        ValueError: if they do not, or a log holds no step.
    """
    steps = last_step(logs)
    calls = [[event for event in step if event.track == "communication"] for step in steps]
    if len({tuple(call.name for call in rank) for rank in calls}) != 1:
        raise ValueError("these ranks did not make the same collectives in the same order")
    begins = [max(call.start for call in same) for same in zip(*calls, strict=True)]
    found = []
    for step, mine in zip(steps, calls, strict=True):
        (whole,) = (event for event in step if event.track == "step")
        waiting = sum(begin - call.start for begin, call in zip(begins, mine, strict=True))
        communication = sum(call.end - begin for begin, call in zip(begins, mine, strict=True))
        compute = whole.end - whole.start - waiting - communication
        found.append({"compute": compute / 1e9, "communication": communication / 1e9, "waiting": waiting / 1e9})
    return found


def draw(runs: Mapping[str, Sequence[Mapping[str, float]]], title: str):
    """A matplotlib Figure: a bar for each rank of each run, a piece for each kind.

    Args:
        runs: for each run by its name, what ``seconds`` found for its ranks.
    """
    from matplotlib.figure import Figure

    rows = [(f"{name}, rank {r}", one) for name, ranks in runs.items() for r, one in enumerate(ranks)]
    figure = Figure(figsize=(9, 0.8 + 0.34 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, (_, one) in enumerate(rows):
        left = 0.0
        for kind, colour in KINDS.items():
            axes.barh(place, 1e3 * one[kind], 0.7, left, color=colour)
            left += 1e3 * one[kind]
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds of a step")
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    handles = [axes.barh(0, 0, color=colour, label=kind) for kind, colour in KINDS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(KINDS), frameon=False)
    return figure
