"""The scene of the experts' load: bars of each expert's share as training goes on, and what the busiest rank costs."""

from collections.abc import Sequence

import numpy as np

from minidist.show.demos.expert_parallel.balance import EXPERTS_OF_RANK, STEPS, STRIDE, Load, Loads
from minidist.show.demos.expert_parallel.run import TOP_K
from minidist.show.palette import of_rank
from minidist.show.player.scene import Box, Curve, Frame, Label, Scene, Shape

TITLE = "Balance: without a loss for it, a few experts take all"
HEIGHT = 13.0
LEFT, WIDE = (3.0, 40.5), 31.0  # of the two runs: left edges, and width
TOP, BASE = 1.5, 7.0  # lines: of the bars
CURVE_TOP, CURVE_BASE = 9.5, 11.9  # of the curves below


def scene_of(loads: Loads, right: Loads | None = None) -> Scene:
    """Step by step, the share of each expert in both runs.

    Args:
        right: the runs without the bug, if these have it.
    """
    off, on = loads.values()
    most = _most((*loads.values(), *(right or {}).values()))
    wrongs = [_differs(load, right[name]) if right else np.zeros(STEPS, bool) for name, load in loads.items()]
    frames = []
    for now in range(0, STEPS + 1, STRIDE):
        shapes: list[Shape] = []
        for left, (name, load), wrong in zip(LEFT, loads.items(), wrongs, strict=True):
            shapes += _bars(left, name, load, now, bool(wrong[:now].any()))
            shapes += _curve(left, load, now, most)
        note = _note(off, on, now) if not any(wrong[:now].any() for wrong in wrongs) else _wrong_note(loads, right, now)
        frames.append(Frame(tuple(shapes), note, _facts(off, on, now)))
    first = min(int(np.argmax(wrong)) for wrong in wrongs) if right else None
    first_wrong = None if first is None else -(-(first + 1) // STRIDE)
    key = {f"experts of rank {rank}": of_rank(rank) for rank in range(off.counts.shape[1] // EXPERTS_OF_RANK)}
    stills = (len(frames) // 3, len(frames) - 1)
    if right is None:
        return Scene("balance", TITLE, tuple(frames), HEIGHT, key, _verdict(off, on), None, stills)
    key |= {"not the right loads": "wrong"}
    verdict = _harm(loads, right)
    return Scene("broken balance", TITLE, tuple(frames), HEIGHT, key, verdict, first_wrong, stills, twin="balance")


def _differs(load: Load, right: Load) -> np.ndarray:
    """The steps in which the experts have other loads than without the bug, bool (steps,)."""
    return (load.counts != right.counts).any(axis=1)


def _most(loads: Sequence[Load]) -> float:
    """The upper end of the curves' scale: how many times the mean the busiest rank has at most, rounded up."""
    return float(np.ceil(max(load.pace().max() for load in loads)))


def _bars(left: float, name: str, load: Load, now: int, wrong: bool) -> list[Shape]:
    """A bar for each expert: its share in the last step, or a line of even shares before the first."""
    experts = load.counts.shape[1]
    each, unit = WIDE / experts, (BASE - TOP) / (experts / TOP_K)  # no expert can get more than every token
    even = BASE - unit
    shapes: list[Shape] = [
        Label(left, 0.7, name, "wrong" if wrong else "ink"),
        Curve(((left, BASE), (left + WIDE, BASE)), "ink", 2),
        Curve(((left, even), (left + WIDE, even)), "ink", 2),
        Label(left - 0.4, even, "1×", "ink", "end"),
    ]
    excess = load.excess()[now - 1] if now else np.zeros(experts)
    for expert, times in enumerate(excess):
        x = left + expert * each
        shapes.append(Label(x + each / 2, BASE + 0.6, str(expert), "ink", "middle"))
        if times:
            fill = of_rank(expert // EXPERTS_OF_RANK)
            text = f"{times:.1f}" if times * unit >= 0.8 and each >= 3.2 else ""
            outline = "wrong" if wrong else None
            box = x, BASE - times * unit, each - 0.5, times * unit
            shapes.append(Box(*box, fill, text, str(expert // EXPERTS_OF_RANK), outline, f"{name}, expert {expert}"))
        elif now:
            shapes.append(Label(x + each / 2, BASE - 0.5, "0", "wrong", "middle"))
    return shapes


def _curve(left: float, load: Load, now: int, most: float) -> list[Shape]:
    """How many times the mean the busiest rank computes, over the steps."""

    def up(times: float) -> float:
        return CURVE_BASE - (CURVE_BASE - CURVE_TOP) * (times - 1) / (most - 1)

    wide = WIDE - 4  # the last value is to the right
    shapes: list[Shape] = [
        Label(left, CURVE_TOP - 0.7, "busiest rank, × mean", "faint"),
        Curve(((left, CURVE_TOP), (left, CURVE_BASE), (left + wide, CURVE_BASE)), "ink", 2),
        Label(left - 0.4, CURVE_BASE, "1×", "ink", "end"),
        Label(left - 0.4, CURVE_TOP, f"{most:.0f}×", "ink", "end"),
    ]
    for step in (0, STEPS // 2, STEPS):
        shapes.append(Label(left + wide * step / STEPS, HEIGHT - 0.3, str(step), "faint", "middle"))
    pace = load.pace()[:now]
    if now:
        points = tuple((left + wide * (step + 1) / STEPS, up(times)) for step, times in enumerate(pace))
        shapes.append(Curve(points, "wrong" if pace[-1] > 1.5 else "right", 5))
        shapes.append(Label(points[-1][0] + 0.4, up(pace[-1]), f"{pace[-1]:.1f}"))
    return shapes


def _note(off: Load, on: Load, now: int) -> str:
    if not now:
        return "Two runs from the same weights on the same tokens. A bar: an expert's share, 1× is even."
    busy, even = off.excess()[now - 1].max(), on.excess()[now - 1].max()
    return (
        f"After {now} steps, the busiest expert has {busy:.1f} times its even share without the loss; with it, "
        f"{even:.1f} times."
    )


def _wrong_note(loads: Loads, right: Loads, now: int) -> str:
    differences = [load.counts[now - 1] - right[name].counts[now - 1] for name, load in loads.items()]
    rows = sum(int(np.abs(each).sum()) // 2 for each in differences)
    return f"After {now} steps {rows} rows go to other experts than they should. Nothing crashes, no curve looks wrong."


def _facts(off: Load, on: Load, now: int) -> dict[str, str]:
    step = max(0, now - 1)
    return {
        "steps": f"{now} of {STEPS}",
        "loss without, with": f"{off.losses[step]:.3f}, {on.losses[step]:.3f}" if now else "",
        "rows of a step": f"{off.counts[step].sum()}",
    }


def _verdict(off: Load, on: Load) -> str:
    idle, experts = [(load.counts[-1] == 0).sum() for load in (off, on)], off.counts.shape[1]
    return (
        f"Without a balance loss {idle[0]} of {experts} experts are idle in the end; with it, {idle[1]}. The busiest "
        f"rank has {off.pace()[-1]:.1f} and {on.pace()[-1]:.1f} times the mean. Both runs match the single-process run "
        f"bit for bit (SHA-256 {off.fingerprint[:8]}, {on.fingerprint[:8]})."
    )


def _harm(loads: Loads, right: Loads) -> str:
    ends = [(load.losses[-1], right[name].losses[-1]) for name, load in loads.items()]
    losses = " and ".join(f"{bad:.3f} instead of {good:.3f}" for bad, good in ends)
    return (
        "The bug hardly shows here. Adam divides a gradient by its own size, so that one too large does little harm: "
        f"the last losses are {losses}. Only a comparison of bits finds it."
    )
