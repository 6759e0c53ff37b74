"""Stories of a deadlock: GPUs in a ring, and an arrow from each one that waits to the one it waits for."""

from collections.abc import Mapping
from math import cos, pi, sin

from minidist.comm.failures import Deadlock
from minidist.show.demos.deadlock.run import FITS, Event, moments
from minidist.show.palette import MEANINGS
from minidist.show.stage.marks import Mark, box, line, text
from minidist.show.stage.network import Network
from minidist.show.stage.story import Beat, Question, Story

PACE = 1.1  # seconds from one event to the next
AREA = (140, 0, 1000, 600)
WAITS, DONE = MEANINGS["communication"], "right"
# the programs as a scene shows them
TOGETHER = ("ops = [isend(x, right),", "       irecv(y, left)]", "for work in batch(ops):", "    work.wait()")
ODD = (
    "if rank % 2 == 0:",
    "    send(x, right)",
    "    recv(y, left)",
    "else:",
    "    recv(y, left)",
    "    send(x, right)",
)
SEND_FIRST = ("send(x, right)", "recv(y, left)")
CHOICES = ("all ranks finish", "all wait forever", "only the last rank waits")


def tell(
    name: str,
    question: str,
    why: str,
    program: tuple[str, ...],
    events: list[Event],
    size: int,
    error: Deadlock | None = None,
    bug: str = "",
    verdict: str = "",
) -> Story:
    """Show a run event by event: an arrow from a rank to the one it waits for grows, and goes when the wait is over."""
    events = sorted(events, key=lambda event: event.time)
    ranks = 1 + max(event.rank for event in events)
    size_of, large = ((300, 140), 44) if ranks <= 4 else ((230, 96), 30)
    net = Network.on_ring(ranks, size_of, AREA, onward=False, names="rank {}")
    for rank, (x, y) in enumerate(net.places):  # the name above, the call below
        net.names[rank] = text(x, y - 0.24 * size_of[1], f"rank {rank}")
    marks: list[Mark] = [*net.names]
    calls: dict[int, list[Mark]] = {}  # rank -> its call, a line for each message
    arrows: dict[tuple[int, int], Mark] = {}
    frames: dict[int, Mark] = {}  # rank -> its frame, while it waits
    below: list[Mark] = [*net.ways, *net.boxes]
    beats = [
        Beat(
            0,
            "Each rank sends an array to the next. No rank has made a call yet.",
            asks=Question(question, CHOICES, int(error is not None), why),
        )
    ]
    for number, (event, state) in enumerate(zip(events, moments(events, size <= FITS), strict=True), 1):
        at = (number - 1) * PACE + 0.3
        x, y = net.places[event.rank]
        for before in calls.get(event.rank, ()):
            before.leave(at, 0.1)
        words, colour = (event.call or "done").split(", "), "ink" if event.call else DONE
        levels = (0.05, 0.35) if len(words) > 1 else (0.2,)  # below the box's middle, as shares of its height
        calls[event.rank] = [
            text(x, y + level * size_of[1], line, large, weight=700, fill=colour).enter(at, 0.1)
            for level, line in zip(levels, words, strict=True)
        ]
        marks += calls[event.rank]
        wanted = {(rank, awaited) for rank, all_of_them in state.waiting.items() for awaited in all_of_them}
        for pair in [pair for pair in arrows if pair not in wanted]:
            arrows.pop(pair).leave(at + 0.2, 0.2)
        for pair in sorted(wanted - arrows.keys()):
            arrows[pair] = _arrow(net, *pair, at + 0.2)
            marks.append(arrows[pair])
        for rank in frames.keys() - state.waiting.keys():
            frames.pop(rank).leave(at + 0.2, 0.2)
        for rank in sorted(state.waiting.keys() - frames.keys()):
            frames[rank] = _frame(net, rank, WAITS).enter(at + 0.2, 0.2)
            below.append(frames[rank])
        says = f"Rank {event.rank} has its numbers and ends." if not event.call else f"Rank {event.rank}: {event.call}."
        waiting = f"{len(state.waiting)} of {ranks} ranks"
        beats.append(
            Beat(
                number * PACE,
                says,
                {"waiting": waiting, "a message": f"{8 * size:,} bytes", "a queue holds": f"{8 * FITS:,} bytes"},
                lines=lines_of(program, state.calls),
            )
        )
    end = len(events) * PACE
    if error is not None:
        for arrow in arrows.values():
            arrow.to(end + 0.2, 0.5, fill="wrong")
        below += [_frame(net, rank, "wrong").enter(end + 0.2, 0.5) for rank in frames]
        beats.append(Beat(end + 1, "The arrows form a ring: no rank can ever move.", answers=beats[0].asks))
    else:
        last = beats[-1]
        beats[-1] = Beat(last.at, last.says, last.facts, answers=beats[0].asks, lines=last.lines)
    details = str(error) if error is not None else ""
    return Story(
        name, question, below + marks, beats, verdict, bug, details, program, {"waits for": WAITS, "done": DONE}
    )


def _frame(net: Network, rank: int, colour: str) -> Mark:
    place = net.boxes[rank].now
    return box(place["x"], place["y"], place["w"], place["h"], "none", stroke=colour, width=10, round=10)


def _arrow(net: Network, rank: int, awaited: int, at: float) -> Mark:
    """Draw an arrow along the ring, from a rank to the one that it waits for."""
    assert net.ring is not None
    (x, y), (wide, high) = net.ring
    start, end = (2 * pi * one / len(net.places) for one in (rank, awaited))
    turn = (end - start + pi) % (2 * pi) - pi or pi
    inset = min(0.5, abs(turn) / 3) * (1 if turn > 0 else -1)
    lane = 1 if turn > 0 else 0.8  # two ranks that wait for each other have two arrows side by side
    way = [start + inset + (turn - 2 * inset) * i / 16 for i in range(17)]
    points = [(x + lane * wide * sin(a), y - lane * high * cos(a)) for a in way]
    return line(points, WAITS, 12, head=True).begin(turn=0).to(at, 0.4, turn=1)


def lines_of(program: tuple[str, ...], calls: Mapping[int, str]) -> tuple[int, ...]:
    """Return the program's lines, counted from 0, that some rank is in; a rank that has ended is in none.

    Args:
        calls: rank -> the call that it is in; "" once it has ended.
    """
    if program == TOGETHER:
        return (2, 3) if any(calls.values()) else ()
    found = {_line(program, rank, call) for rank, call in calls.items() if call}
    return tuple(sorted(found))


def _line(program: tuple[str, ...], rank: int, call: str) -> int:
    kind = call.split()[0]
    start = program.index("else:") if program == ODD and rank % 2 else 0
    return next(number for number in range(start, len(program)) if program[number].strip().startswith(kind))
