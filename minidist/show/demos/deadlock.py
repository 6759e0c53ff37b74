"""Deadlock: a ring in which everybody sends before receiving, and three programs that do the same and end.

Each rank gives an array to its right neighbour and gets one from its left. It tells the parent of every call that it
enters, so that the wait-for graph can be drawn as it was after each of them:

    in a send    a rank waits until the receiver asks for the message, unless the message fits the queue
    in a recv    until the sender has sent

Who waits for whom follows from these calls, as above. In the end the parent finds the circle by itself, from what each
rank says it is blocked on, and tells who waits for whom, in which call and line: the two must agree.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minidist.analysis.wait_for import STUCK, edges, state_of
from minidist.comm.failures import Deadlock
from minidist.comm.runtime.launch import Cluster
from minidist.comm.transports.messages import HEADER_BYTES
from minidist.show.demos import deadlock_picture
from minidist.show.demos.deadlock_programs import (
    Event,
    numbers,
    odd_receive_first,
    posted_together,
    rank_of_a_ring,
    send_first,
)
from minidist.show.player.animation import Animation
from minidist.show.player.scene import Frame, Scene

QUEUE_BYTES = 8 << 10
FITS = (QUEUE_BYTES - HEADER_BYTES) // 8  # numbers: the longest message that a queue takes whole
MOST = 1_000_000  # numbers: 8 ranks have two arrays each
TOGETHER = "batch_isend_irecv([isend(x, right), irecv(y, left)])"
ODD = "even: send(x, right); recv(y, left)  odd: recv(y, left); send(x, right)"
SEND_FIRST = "send(x, right); recv(y, left)"


@dataclass(frozen=True)
class Moment:
    """What was so after an event: what each rank is in, who waits for whom, and who has finished."""

    calls: dict[int, str]
    waiting: dict[int, list[int]]
    finished: frozenset[int]


# ── the runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Run all programs with messages of ``size`` numbers, and the one that deadlocks with some that fit, too."""
    if not FITS < size <= MOST:
        raise ValueError(
            f"size, the float64 numbers in a message, must be from {FITS + 1:,} to {MOST:,}, but is {size:,}: up to "
            f"{FITS:,} fit a queue of {QUEUE_BYTES:,} bytes, where nobody has to wait"
        )
    with Cluster(ranks, queue_bytes=QUEUE_BYTES) as cluster:
        together, logs = _ends(cluster, posted_together, size, seed)
        others = _ends(cluster, odd_receive_first, size, seed)[0], _ends(cluster, send_first, FITS, seed)[0]
        stuck, error, seconds = _deadlocks(cluster, size, seed)
    right = "Every rank has the numbers of the rank before it, the same as in one process, bit for bit."
    luck = f"{right} But by luck: with one number more per message everybody would wait for ever."
    scenes = (
        _scene("posted together", "Send and receive posted together", TOGETHER, together, size, right),
        _scene("odd recv first", "Even ranks send first, odd ranks receive first", ODD, others[0], size, right),
        _scene("small messages", "Everybody sends first, what fits a queue", SEND_FIRST, others[1], FITS, luck),
    )
    circle, verdict = edges(error.waiting), _verdict(error, seconds)
    broken = _scene("broken", "Everybody sends first", SEND_FIRST, stuck, size, verdict, circle)
    bug = "every rank sends before it receives, and a message is larger than a queue"
    return Animation("deadlock", "Deadlock: who waits for whom", scenes, broken, bug, logs)


def _ends(cluster: Cluster, program: Callable, size: int, seed: int) -> tuple[list[Event], list[list]]:
    """The events of a program that ends well, and the ranks' logs.

    Raises:
        RuntimeError: if a rank does not have what it should.
    """
    events: list[Event] = []
    results = cluster.run(
        rank_of_a_ring, program, size, seed, timeout=60, on_report=lambda _, event: events.append(event)
    )
    for rank, (found, _) in enumerate(results):
        if found.tobytes() != numbers((rank - 1) % len(results), size, seed).tobytes():
            raise RuntimeError(f"{program.__name__}: rank {rank} has not what its neighbour sent: a fault of minidist")
    return events, [log for _, log in results]


def _deadlocks(cluster: Cluster, size: int, seed: int) -> tuple[list[Event], Deadlock, float]:
    """The events until the deadlock, the parent's error, and how many seconds after the last event it came.

    Raises:
        RuntimeError: if there was no deadlock.
    """
    events: list[Event] = []
    try:
        cluster.run(rank_of_a_ring, send_first, size, seed, timeout=60, on_report=lambda _, event: events.append(event))
    except Deadlock as error:
        return events, error, (time.perf_counter_ns() - max(event.time for event in events)) / 1e9
    raise RuntimeError("every rank sends first, messages do not fit the queues, and yet there was no deadlock")


def moments(events: Sequence[Event], fits: bool) -> list[Moment]:
    """What was so after each event.

    Args:
        events: in the order of their times.
        fits: whether a message fits the queue, so that no send waits.
    """
    found, calls, posted = [], {}, set()
    own: dict[int, Event] = {}
    for event in events:
        own[event.rank], calls[event.rank] = event, event.call
        posted |= {("send", *pair) for pair in event.sends} | {("recv", *pair) for pair in event.receives}
        waiting = {}
        for rank, last in own.items():
            awaited = [source for source, to in last.receives if ("send", source, to) not in posted]
            awaited += [to for source, to in last.sends if ("recv", source, to) not in posted and not fits]
            if awaited:
                waiting[rank] = list(dict.fromkeys(awaited))
        finished = frozenset(rank for rank, call in calls.items() if not call)
        found.append(Moment(dict(calls), waiting, finished))
    return found


# ── what is told of them ─────────────────────────────────────────────────────────────────────────────────────────────


def _scene(
    name: str, about: str, program: str, events: list[Event], size: int, verdict: str,
    circle: dict[int, int] | None = None,
) -> Scene:  # fmt: skip
    """Before, after each event, and of the broken run what the parent found."""
    events = sorted(events, key=lambda event: event.time)
    ranks = 1 + max(event.rank for event in events)
    states = [Moment({}, {}, frozenset()), *moments(events, size <= FITS)]
    notes = ["No rank has called anything yet: they come one after the other."]
    notes += [_note(*pair) for pair in zip(events, states[1:], strict=True)]
    if circle is not None:
        states.append(Moment(states[-1].calls, {rank: [awaited] for rank, awaited in circle.items()}, frozenset()))
        notes.append("The launcher has looked three times: nobody can ever move, so it ends the run with Deadlock.")
    frames = []
    for number, (state, note) in enumerate(zip(states, notes, strict=True)):
        facts = {
            "event": f"{number} of {len(states) - 1}",
            "waiting": f"{len(state.waiting)} of {ranks} ranks",
            "a message": f"{8 * size:,} bytes",
            "a queue holds": f"{8 * FITS:,} bytes",
        }
        ended = circle is not None and number == len(states) - 1
        shapes = deadlock_picture.draw(ranks, program, state.calls, state.waiting, state.finished, ended)
        frames.append(Frame(shapes, note, facts))
    first_wrong = None if circle is None else next(i for i, state in enumerate(states) if len(state.waiting) == ranks)
    title = f"{about} ({ranks} ranks, {size:,} float64 numbers)"
    stills = tuple(sorted({len(frames) // 3, 2 * len(frames) // 3, len(frames) - 1}))
    return Scene(
        name, title, tuple(frames), deadlock_picture.height(ranks), deadlock_picture.KEY, verdict, first_wrong, stills
    )


def _note(event: Event, state: Moment) -> str:
    if not event.call:
        return f"Rank {event.rank} has its neighbour's numbers, and ends."
    text = f"Rank {event.rank} calls {event.call}"
    if event.rank not in state.waiting:
        return text + "."
    awaited = state.waiting[event.rank]
    if state_of(event.rank, deadlock_picture.first_of(state.waiting), set(state.finished)) == STUCK:
        return text + ": the circle is closed, and each waits for the next."
    return text + f" and waits for rank {' and rank '.join(map(str, awaited))}."


def _verdict(error: Deadlock, seconds: float) -> str:
    """Which call, in which line, who for whom."""
    circle, order = edges(error.waiting), [0]
    while circle[order[-1]] != 0:
        order.append(circle[order[-1]])
    ring = " → ".join(map(str, [*order, 0]))
    return (
        f"Deadlock, found {seconds:.1f} s after the last call, without a timeout. Rank 0 is in {error.waiting[0]}; "
        f"and so on round the ring, {ring}."
    )
