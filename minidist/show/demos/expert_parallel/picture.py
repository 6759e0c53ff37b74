"""One moment of expert parallelism: a column for each rank, its tokens above, its expert's rows below.

A colour is the rank that a token comes from, wherever its rows are. Rows hang below their expert, one below the other,
so that down is time: the longest column keeps the others waiting. After backward, gradients hang there.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from string import ascii_lowercase

from minidist.show.demos.expert_parallel.run import Step
from minidist.show.palette import of_rank
from minidist.show.player.scene import WIDTH, Arrow, Box, Curve, Label, Shape

HEIGHT = 12.9
TOKENS, COPIES, EXPERT, ROWS, END = 1.1, 2.4, 4.3, 5.5, 12.7  # lines: upper edges, and where the longest column ends
HIGH = {"rank": 1.1, "token": 1.2, "copy": 0.9, "expert": 1.1}
GAP = 1.6  # characters between two columns


@dataclass(frozen=True)
class Rows:
    """Where the rows of the tokens are. A distance is how many places after the token's rank the expert's rank is.

    Args:
        announced: whether the experts know how many rows will come.
        arrived: distances whose rows are at the experts.
        home: distances whose rows are at home again.
    """

    announced: bool = False
    arrived: Collection[int] = ()
    home: Collection[int] = ()


def pitch(ranks: int) -> float:
    """Characters from one rank's column to the next."""
    return (WIDTH + GAP) / ranks


def name_of(rank: int, token: int) -> str:
    """Name of a token: its rank, and a letter."""
    return f"{rank}{ascii_lowercase[token]}"


def copy_of(rank: int, token: int, expert: int) -> str:
    """The name of a token's copy for one of its experts, which flies there and home again."""
    return f"{name_of(rank, token)} for expert {expert}"


def homes(step: Step, rows: Rows, routed: bool, combined: bool) -> list[Shape]:
    """The ranks and their tokens; below each the experts that it chose, and once they are ``combined`` the weights.

    What an expert has no room for is crossed out.
    """
    wide = pitch(step.ranks) - GAP
    shapes: list[Shape] = []
    for rank, route in enumerate(step.routes):
        left, colour = rank * pitch(step.ranks), of_rank(rank)
        shapes.append(Label(left + wide / 2, 0.5, f"rank {rank}", colour, "middle"))
        each = wide / len(route.chosen)
        for token, experts in enumerate(route.chosen.tolist()):
            x, w = left + token * each, 0.9 * each
            outline = "ink" if combined else None
            shapes.append(Box(x, TOKENS, w, HIGH["token"], colour, name_of(rank, token), str(rank), outline))
            part = w / len(experts)
            for place, expert in enumerate(experts if routed else ()):
                at_home = (step.rank_of(expert) - rank) % step.ranks in rows.home
                fill = colour if at_home or not rows.announced else None
                weight = f"{route.weights[token, place]:.2f}"
                texts = (weight, weight[1:], "") if combined else (f"→{expert}", str(expert), "")
                text = next(text for text in texts if len(text) <= part - 0.15 or not text)
                name = copy_of(rank, token, expert) if fill else ""
                box = x + place * part, COPIES, part - 0.15, HIGH["copy"]
                if rows.announced and token not in step.tokens(rank, expert):
                    shapes.append(Box(*box, "paper", "✗"[: round(part)], "x", "wrong", copy_of(rank, token, expert)))
                    continue
                shapes.append(Box(*box, fill, text, str(rank) if fill else " ", "faint", name))
    return shapes


def row_height(step: Step) -> float:
    """Lines of a row, chosen so that the longest column fills its place."""
    return min(1.0, (END - ROWS) / max(step.loads))


def stacks(step: Step, rows: Rows, computed: int | None = None) -> list[Shape]:
    """The experts, with the rows that are expected, have arrived, or have gone home again.

    Args:
        computed: rows that each rank has computed, if it has as many; a shorter column is idle until then.
    """
    wide, high = pitch(step.ranks) - GAP, row_height(step)
    now = ROWS + (computed or 0) * high
    shapes: list[Shape] = [Curve(((0, now), (WIDTH, now)), "ink", 4)] if computed else []  # below what is computed
    for rank, load in enumerate(step.loads):
        left = rank * pitch(step.ranks)
        shapes.append(_expert(step, rank, f"{load} row{'s' * (load != 1)}" if rows.announced else ""))
        here = [(source, token) for source in range(step.ranks) for token in step.tokens(source, rank)]
        for place, (source, token) in enumerate(here if rows.announced else ()):
            distance = (rank - source) % step.ranks
            present = distance in rows.arrived and distance not in rows.home
            done = computed is not None and place < computed
            text = name_of(source, token) + (" ✓" if done else "") if present and high >= 0.75 else ""
            fill, mark = (of_rank(source), str(source)) if present else (None, " ")
            name = copy_of(source, token, rank) if present else ""
            box = left, ROWS + place * high, wide, 0.92 * high
            shapes.append(Box(*box, fill, text, mark, "faint", name))
        if computed is not None and load < computed:
            text = "idle" if (computed - load) * high >= 0.75 else ""
            shapes.append(Box(left, ROWS + load * high, wide, (computed - load) * high, "faint", text, "."))
    return shapes


def _expert(step: Step, rank: int, what: str) -> Box:
    """The head of a column, whose expert is on that rank."""
    wide = pitch(step.ranks) - GAP
    texts = ([f"expert {rank}: {what}"] if what else []) + [f"expert {rank}", str(rank)]
    text = next(text for text in texts if len(text) <= wide)
    outline = "ink" if what and step.loads[rank] == max(step.loads) else of_rank(rank)
    return Box(rank * pitch(step.ranks), EXPERT, wide, HIGH["expert"], "paper", text, " ", outline)


def arrows(step: Step, distance: int) -> list[Shape]:
    """One message from each rank to the rank ``distance`` places after it, in its colour."""
    shapes: list[Shape] = []
    wide = pitch(step.ranks) - GAP
    for source in range(step.ranks):
        rank = (source + distance) % step.ranks
        count = int(step.rows[source, rank])
        if not count or not distance:  # no row at all, or on the rank itself
            continue
        x, to_x = (one * pitch(step.ranks) + wide / 2 for one in (source, rank))
        what = f"{source} → {rank}: {count} row{'s' * (count > 1)}"
        shapes.append(Arrow(x, COPIES + HIGH["copy"], to_x, EXPERT - 0.1, of_rank(source), what))
    return shapes


def gradients(
    step: Step, norms: Sequence[float], correct: Sequence[float], most: float, wrong: Collection[int]
) -> list[Shape]:
    """The norm of each expert's gradient, on a scale that ends at ``most``; outlines are as long as the correct one."""
    wide = pitch(step.ranks) - GAP
    shapes: list[Shape] = []
    for expert, (norm, right) in enumerate(zip(norms, correct, strict=True)):
        left, scale = expert * pitch(step.ranks), (END - ROWS) / most
        shapes.append(_expert(step, expert, ""))
        if not norm:
            shapes.append(Label(left + wide / 2, ROWS + 0.6, "no rows", "faint", "middle"))
            continue
        fill, mark = ("wrong", "!") if expert in wrong else (of_rank(expert), "=")
        text = f"{norm / right:.1f}×" if expert in wrong else f"{norm:.2f}"
        high = max(0.3, norm * scale)
        shapes.append(Box(left, ROWS, wide, high, fill, text if high >= 0.75 else "", mark))
        shapes.append(Box(left, ROWS, wide, right * scale, None, outline="ink"))
    return shapes
