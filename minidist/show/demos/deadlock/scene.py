"""What the animation of a deadlock says: a frame for each event, and the cycle that the parent finds."""

from minidist.analysis.traffic import STUCK, edges, state_of
from minidist.comm.failures import Deadlock
from minidist.show.demos.deadlock import picture
from minidist.show.demos.deadlock.programs import lines_of
from minidist.show.demos.deadlock.run import FITS, Event, Moment, moments
from minidist.show.player.scene import Box, Frame, Scene

FOUND = 0.9  # on the clock: after all events, which are a hundredth apart, and before another rank could start


def of_events(
    name: str, title: str, program: tuple[str, ...], events: list[Event], size: int, verdict: str,
    cycle: dict[int, int] | None = None,
) -> Scene:  # fmt: skip
    """The state before, after each event and, for the broken run, with the cycle that the parent found."""
    events = sorted(events, key=lambda event: event.time)
    ranks = 1 + max(event.rank for event in events)
    states = [Moment({}, {}, frozenset()), *moments(events, size <= FITS)]
    notes = ["No rank has made a call yet: they start one after the other."]
    notes += [_note(*pair) for pair in zip(events, states[1:], strict=True)]
    if cycle is not None:
        states.append(Moment(states[-1].calls, {rank: [awaited] for rank, awaited in cycle.items()}, frozenset()))
        notes.append("The launcher has looked three times: no rank can ever move, so it ends the run with Deadlock.")
    frames = []
    for number, (state, note) in enumerate(zip(states, notes, strict=True)):
        facts = {
            "event": f"{number} of {len(states) - 1}",
            "waiting": f"{len(state.waiting)} of {ranks} ranks",
            "a message": f"{8 * size:,} bytes",
            "a queue holds": f"{8 * FITS:,} bytes",
        }
        ended = cycle is not None and number == len(states) - 1
        at = len(state.calls) + FOUND if ended else _moment(events[:number])
        shapes = picture.draw(ranks, state, ended)
        frames.append(Frame(shapes, note, facts, at, lines_of(program, state.calls)))
    first_wrong = None if cycle is None else next(i for i, state in enumerate(states) if len(state.waiting) == ranks)
    stills = tuple(sorted({len(frames) // 3, 2 * len(frames) // 3, len(frames) - 1}))
    fills = {shape.fill for frame in frames for shape in frame.shapes if isinstance(shape, Box)}
    key = {word: colour for word, colour in picture.KEY.items() if colour in fills}
    return Scene(name, title, tuple(frames), picture.HEIGHT, key, verdict, first_wrong, stills, code=program)


def _moment(events: list[Event]) -> float:
    """Time on a clock that all programs share: ranks that have made a call, and hundredths for what happened since."""
    started = len({event.rank for event in events})
    since = len(events) - next((i for i in range(len(events)) if len({e.rank for e in events[: i + 1]}) == started), 0)
    return started + max(0, since - 1) / 100


def _note(event: Event, state: Moment) -> str:
    if not event.call:
        return f"Rank {event.rank} has its neighbour's numbers, and ends."
    text = f"Rank {event.rank} calls {event.call}"
    if event.rank not in state.waiting:
        return text + "."
    awaited = state.waiting[event.rank]
    if state_of(event.rank, picture.first_of(state.waiting), state.finished) == STUCK:
        return text + ": the cycle is closed, and each rank waits for the next."
    return text + f" and waits for rank {' and rank '.join(map(str, awaited))}."


def verdict(error: Deadlock, seconds: float) -> str:
    """Which call, in which line, and the cycle."""
    cycle, order = edges(error.waiting), [0]
    while cycle[order[-1]] != 0:
        order.append(cycle[order[-1]])
    ring = " → ".join(map(str, [*order, 0]))
    return (
        f"Deadlock, found {seconds:.1f} s after the last call, without a timeout. Rank 0 is in {error.waiting[0]}; "
        f"the same holds for every rank of the ring, {ring}."
    )
