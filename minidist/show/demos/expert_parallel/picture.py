"""One moment of expert parallelism: tokens at home on the left, their rows at the experts on the right, a panel below.

A line of tokens and the experts beside it belong to the same rank. A colour is the rank that a token comes from,
wherever its rows are. The panel shows the time of the ranks, then the gradients of the experts, then the fingerprints:
there, yellow is what the ranks have, and an outline is what one process has.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from minidist.show.demos.expert_parallel.run import Step
from minidist.show.palette import MEANINGS, of_rank
from minidist.show.player.scene import Arrow, Box, Label, Shape

TOKENS, TOKENS_END = 7, 39  # left and right edge of the tokens
ARROWS = 39, 45  # where arrows between tokens and experts begin and end
EXPERTS, QUEUES, END = 46, 50, 71.5  # columns of the experts' names and of their rows
OF_RANKS = MEANINGS["result"]  # gradients and fingerprints
LANES = 8  # left edge of the time
BARS, BAR = (4, 40), 19  # left edges of the two columns of gradients, and the width of the longest bar


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


def pitch(ranks: int) -> int:
    """Lines from one rank to the next."""
    return 3 if ranks <= 4 else 2


def panel_top(ranks: int) -> int:
    return 1 + ranks * pitch(ranks)


def height(ranks: int) -> float:
    return panel_top(ranks) + 1 + ranks


def tokens(step: Step, rows: Rows, routed: bool, combined: bool) -> list[Shape]:
    """The tokens of each rank, the experts that each chose, and once they are ``combined`` the weights."""
    size = len(step.routes[0].chosen)
    step_x = min(8, (TOKENS_END - TOKENS) // size)
    width = step_x - (1 if step_x > 5 else 0.2)  # of a token
    shapes: list[Shape] = [Label(0, 0.5, "tokens, and the experts of each" if routed else "tokens", "faint")]
    for rank, route in enumerate(step.routes):
        y, colour = 1 + rank * pitch(step.ranks), of_rank(rank)
        shapes.append(Label(0, y + 0.5, f"rank {rank}", colour))
        for token in range(size):
            x = TOKENS + token * step_x
            shapes.append(Box(x, y, width, 0.9, colour, f"t{token}", "="))
            part = width / len(route.chosen[token])
            for place, expert in enumerate(route.chosen[token].tolist() if routed else ()):
                fill = colour if (step.rank_of(expert) - rank) % step.ranks in rows.home else None
                text = f"E{expert}" if part >= 2.5 else str(expert)
                name = row_name(token, rank, expert)
                shapes.append(Box(x + place * part, y + 1, part - 0.1, 0.85, fill, text, "=", "faint", name))
            if combined and pitch(step.ranks) > 2 and part >= 3.5:
                weights = " ".join(f"{weight:.2f}".lstrip("0") for weight in route.weights[token])
                shapes.append(Label(x + width / 2, y + 2.4, weights, "ink", "middle"))
    return shapes


def row_name(token: int, rank: int, expert: int) -> str:
    """A token's row for one of its experts."""
    return f"t{token} of rank {rank}, for E{expert}"


def queues(step: Step, rows: Rows) -> list[Shape]:
    """The experts, with the rows that are expected, have arrived, or have gone home again."""
    longest = max(sum(len(step.tokens(source, e)) for source in range(step.ranks)) for e in range(step.experts))
    unit = min(3, (END - QUEUES) // longest) or (END - QUEUES) / longest
    shapes: list[Shape] = [Label(EXPERTS, 0.5, "experts, and their rows", "faint")]
    for expert in range(step.experts):
        rank = step.rank_of(expert)
        line = 1 + rank * pitch(step.ranks) + expert % step.experts_of_rank
        shapes.append(Label(EXPERTS, line + 0.5, f"E{expert}"))
        slots = [(source, token) for source in range(step.ranks) for token in step.tokens(source, expert)]
        for place, (source, token) in enumerate(slots if rows.announced else ()):
            distance = (rank - source) % step.ranks
            here = distance in rows.arrived and distance not in rows.home
            fill, text = (of_rank(source), f"t{token}" * (unit >= 2)) if here else (None, "·" * (unit >= 1))
            name = row_name(token, source, expert) if here else ""  # so that it flies there and home again
            shapes.append(Box(QUEUES + place * unit, line, 0.95 * unit, 0.9, fill, text, "=", "faint", name))
    if pitch(step.ranks) > 2:
        for rank, load in enumerate(step.loads):
            busiest = rows.announced and load == max(step.loads)
            text = f"rank {rank}: {load} rows" if rows.announced else f"rank {rank}"
            shapes.append(Label(QUEUES, 3.4 + rank * pitch(step.ranks), text, "ink" if busiest else "faint"))
    return shapes


def arrows(step: Step, distance: int, back: bool = False) -> list[Shape]:
    """One message from each rank to the rank so many places after it, in its colour; ``back`` leads home."""
    shapes: list[Shape] = []
    for source in range(step.ranks):
        rank = (source + distance) % step.ranks
        count = int(step.rows[source, rank])
        if not count or not distance:  # no row at all, or on the rank itself
            continue
        (x, y), (to_x, to_y) = (
            (at, 2 + one * pitch(step.ranks)) for at, one in zip(ARROWS, (source, rank), strict=True)
        )
        what = f"{count} row{'s' * (count > 1)}"
        if back:
            shapes.append(Arrow(to_x, to_y, x, y, of_rank(source), f"{rank} → {source}: {what}"))
        else:
            shapes.append(Arrow(x, y, to_x, to_y, of_rank(source), f"{source} → {rank}: {what}"))
    return shapes


def lanes(step: Step, now: int, announced: bool = True) -> list[Shape]:
    """What each rank has computed after ``now`` rows: those of one rank's tokens after another's. Grey is idle.

    An outline has the length of all its rows, if they are ``announced``.
    """
    top, scale = panel_top(step.ranks), (END - LANES) / max(step.loads)
    shapes: list[Shape] = [Label(0, top + 0.5, "time of the experts, in rows; grey: idle", "faint")]
    for rank in range(step.ranks):
        y, done = top + 1 + rank, 0
        shapes.append(Label(0, y + 0.5, f"rank {rank}", of_rank(rank)))
        if now:
            shapes.append(Box(LANES, y, scale * now, 0.9, "faint", mark="."))
        for source in range(step.ranks):
            count = min(int(step.rows[source, rank]), now - done)
            if count > 0:
                box = Box(LANES + scale * done, y, scale * count, 0.9, of_rank(source), str(count), "=", "faint")
                shapes.append(box)
                done += count
        if announced:
            shapes.append(Box(LANES, y, scale * step.loads[rank], 0.9, None, outline="faint"))
    return shapes


def gradients(norms: Sequence[float], correct: Sequence[float], most: float, fills: Sequence[str]) -> list[Shape]:
    """The norm of each expert's gradient, on a scale that ends at ``most``, in a frame as long as the correct one."""
    per_line = len(BARS)
    top = 1 + pitch(len(norms) // per_line) * (len(norms) // per_line)
    shapes: list[Shape] = [Label(0, top + 0.5, "gradient of each expert, norm; outlined: one process", "faint")]
    for expert, (norm, right, fill) in enumerate(zip(norms, correct, fills, strict=True)):
        x, y = BARS[expert % per_line], top + 1 + expert // per_line
        shapes.append(Label(x - 0.8, y + 0.5, f"E{expert}", "ink", "end"))
        if norm:
            shapes.append(Box(x, y, BAR * norm / most, 0.9, fill, mark="!" if fill == "wrong" else "="))
        if right:
            shapes.append(Box(x, y, BAR * right / most, 0.9, None, outline="ink"))
        text = f"{norm:.2f}" + (f": {norm / right:.1f} ×" if fill == "wrong" else "")
        shapes.append(Label(x + BAR * norm / most + 0.7, y + 0.5, text if norm else "no rows"))
    return shapes


def fingerprints(ranks: int, reference: str, found: str, loss: tuple[float, float]) -> list[Shape]:
    """The SHA-256 of one process and of the ranks, beside each other, and the losses (one process, ranks)."""
    top = panel_top(ranks)
    shapes: list[Shape] = [Label(0, top + 0.5, "SHA-256 of parameters, optimizer state and losses", "faint")]
    shapes.append(Label(END, top + 0.5, "loss", "faint", "end"))
    shapes += [Label(0, top + 1.5, "one process"), Label(0, top + 2.5, f"{ranks} ranks")]
    shapes.append(Box(13, top + 1, 40, 0.9, None, reference[:32], outline="ink"))
    fill, mark = (OF_RANKS, "=") if found == reference else ("wrong", "!")
    shapes.append(Box(13, top + 2, 40, 0.9, fill, found[:32], mark))
    for line, value in zip((top + 1.5, top + 2.5), loss, strict=True):
        shapes.append(Label(END, line, f"{value:.10f}", "ink", "end"))
    return shapes
