"""A wait-for graph with the calls: on the left the call each rank is in, on the right the ranks on a circle."""

from collections.abc import Mapping, Sequence, Set

from minidist.analysis.wait_for import FINISHED, PATIENT, RUNNING, STUCK, state_of
from minidist.show.palette import MEANINGS, of_rank
from minidist.show.player.scene import Arrow, Box, Label, Shape
from minidist.show.waits import OF_STATES, positions

WORDS = {RUNNING: "can act", PATIENT: "waits", STUCK: "waits forever", FINISHED: "finished"}
COLOURS = {state: MEANINGS[meaning] for state, meaning in OF_STATES.items()}
KEY = {word: COLOURS[state] for state, word in WORDS.items()}
MARKS = {RUNNING: "+", PATIENT: ".", STUCK: "X", FINISHED: " "}
MIDDLE, RADIUS = 54, 14  # of the circle, across, in characters
NODE = 5, 1.5  # width and height of a rank on it


def height(ranks: int) -> float:
    return max(11, 2 + ranks * _pitch(ranks))


def _pitch(ranks: int) -> float:
    return 2 if ranks <= 6 else 1.5


def draw(
    ranks: int,
    program: str,
    calls: Mapping[int, str],
    waiting: Mapping[int, Sequence[int]],
    finished: Set[int],
    deadlock: bool,
) -> tuple[Shape, ...]:
    """The shapes of one moment.

    Args:
        program: what all ranks run, in one line.
        calls: rank -> the call it is in, "" if it has finished; ranks that have made no call are missing.
        waiting: rank -> the ranks that it waits for.
        finished: ranks that will make no more calls.
        deadlock: whether the parent has ended the run.
    """
    shapes: list[Shape] = [Label(0, 0.5, program, "ink")]
    states = {rank: state_of(rank, first_of(waiting), finished) for rank in range(ranks)}
    for rank, state in states.items():
        y = 2 + rank * _pitch(ranks)
        shapes.append(Label(0, y + 0.5, f"rank {rank}", of_rank(rank)))
        text = "ended" if rank in finished else calls.get(rank, "no call yet")
        shapes.append(Box(7, y, 24, 1, COLOURS[state], text, MARKS[state], _outline(state), f"rank {rank}"))
    places = _places(ranks)
    shapes += [_arrow(rank, other, places, states[rank]) for rank, others in waiting.items() for other in others]
    w, h = NODE
    shapes += [
        Box(x - w / 2, y - h / 2, w, h, COLOURS[states[rank]], str(rank), MARKS[states[rank]], _outline(states[rank]))
        for rank, (x, y) in enumerate(places)
    ]
    if deadlock:
        shapes.append(Label(MIDDLE, _middle(ranks), "Deadlock", "wrong", "middle"))
    return tuple(shapes)


def first_of(waiting: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Rank -> the first of the ranks it waits for: enough to find a cycle if each rank waits for one."""
    return {rank: awaited[0] for rank, awaited in waiting.items()}


def _outline(state: str) -> str | None:
    return "wrong" if state == STUCK else None


def _places(ranks: int) -> list[tuple[float, float]]:
    """The middle of each rank on the circle, which fills the height below the first line."""
    radius = (height(ranks) - 1 - NODE[1]) / 2
    return [(MIDDLE + RADIUS * x, _middle(ranks) - radius * y) for x, y in positions(ranks)]


def _middle(ranks: int) -> float:
    return 1 + (height(ranks) - 1) / 2


def _arrow(rank: int, awaited: int, places: list, state: str) -> Arrow:
    """From the border of one node to that of the other. Between two ranks, the directions are side by side."""
    (x, y), (to_x, to_y) = places[rank], places[awaited]
    start, end = _border((x, y), (to_x, to_y)), _border((to_x, to_y), (x, y))
    line = "wrong" if state == STUCK else "ink"
    bend = 0.0 if len(places) > 2 else 6.0 if to_y > y else -6.0
    return Arrow(*start, *end, line, f"{rank} waits for {awaited}", bend)


def _border(place: tuple[float, float], towards: tuple[float, float]) -> tuple[float, float]:
    """The point just outside a node on the way from its middle to ``towards``."""
    across, down = towards[0] - place[0], towards[1] - place[1]
    reach = min(0.5 * side / abs(way) if way else float("inf") for side, way in zip(NODE, (across, down), strict=True))
    return place[0] + 1.1 * reach * across, place[1] + 1.1 * reach * down
