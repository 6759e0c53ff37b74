"""The collectives of one step in several layouts: bars of the bytes a rank sent, a segment for each kind of call."""

from collections.abc import Mapping, Sequence

from minidist.analysis.traffic import by_kind
from minidist.show.figures.subplots import subplot
from minidist.show.palette import AXES, COLLECTIVES

NAMES = {"all_reduce": "all-reduce", "reduce_scatter_tensor": "reduce-scatter", "all_gather_into_tensor": "all-gather"}
COLOURS = {("tp", name): COLLECTIVES[kind] for name, kind in NAMES.items()} | {("dp", "all_reduce"): AXES["dp"]}
OTHER = "#A0A0A0"


def sums(rows: Sequence[dict]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return (axis, name) -> calls and bytes sent, in the order of COLOURS."""
    order = list(COLOURS)
    found = by_kind(rows)
    return {kind: found[kind] for kind in sorted(found, key=lambda k: order.index(k) if k in order else len(order))}


def merged(rows: Sequence[dict]) -> list[tuple]:
    """Return (axis, collective, elements, dtypes, calls, bytes sent) of the calls of each size, over all dtypes."""
    found: dict[tuple, list] = {}
    for row in rows:
        counts = found.setdefault((row["axis"], row["name"], row["elements"]), [[], 0, 0])
        counts[0].append(row["dtype"])
        counts[1] += row["calls"]
        counts[2] += row["bytes_sent"]
    return [
        (axis, NAMES[name], elements, ", ".join(dtypes), calls, nbytes)
        for (axis, name, elements), (dtypes, calls, nbytes) in found.items()
    ]


def draw(layouts: Mapping[str, Sequence[dict]]):
    """Return a matplotlib Figure: a bar for each layout, title -> rows of ``RankResult.collectives``."""
    figure, axes = subplot(11, 0.9 + 0.62 * len(layouts))
    shown, longest = {}, max(sum(nbytes for _, nbytes in sums(rows).values()) for rows in layouts.values()) / 1e3
    for place, rows in enumerate(layouts.values()):
        left = 0.0
        for (axis, name), (calls, nbytes) in sums(rows).items():
            colour = COLOURS.get((axis, name), OTHER)
            axes.barh(place, nbytes / 1e3, 0.66, left, color=colour, edgecolor="white")
            if nbytes / 1e3 > 0.05 * longest:
                ink = "white" if axis == "dp" or name == "reduce_scatter_tensor" else "black"
                text = f"{calls} calls" if calls > 1 else "1 call"
                axes.text(left + nbytes / 2e3, place, text, ha="center", va="center", fontsize=9, color=ink)
            shown[f"{NAMES.get(name, name)} over {axis}"] = colour
            left += nbytes / 1e3
        axes.text(left + 0.01 * longest, place, f"{left:,.0f} kB", va="center", fontsize=10)
    axes.set_yticks(range(len(layouts)), layouts)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.1 * longest)
    axes.set_xlabel("kB that rank 0 sends in one step")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    handles = [axes.barh(0, 0, color=colour, label=name) for name, colour in shown.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(shown), frameon=False)
    return figure
