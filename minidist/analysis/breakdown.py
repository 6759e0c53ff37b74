"""The time of a step by kind: computing, communicating, or waiting.

Every moment of a rank's main thread has one kind, that of the innermost span it is in:

    products        operations that have matrix products (softmax, too, where it is part of such an operation)
    elementwise     all other operations
    optimizer       scaling, clipping and updating
    communication   in a collective that all of its ranks have called, or while a message arrives
    waiting         in a collective that another rank has not called yet, or for a message that has not been sent yet
    data            reading samples, or waiting for a loader that does
    rest            Python, and what autograd does between operations, such as adding gradients; buckets

An asynchronous collective takes none of the rank's time here while the rank computes. Only the time in which the rank
has to wait for one counts: its exposed communication.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from minidist.analysis.report import clipped, length
from minidist.trace import Event, Kernel, Message

COMPUTE = ("products", "elementwise", "optimizer", "rest")
NO_CORE = "waiting for a core"  # not in the logs; ``shares`` takes it from COMPUTE
KINDS = ("products", "elementwise", "optimizer", "data", "communication", "waiting", NO_CORE, "rest")
# Spans that hold others, by their first word; any other span of the track "compute" is an operation.
STRUCTURE: dict[str, str] = dict.fromkeys(("forward", "backward", "recompute"), "rest")
STRUCTURE |= {"optimizer": "optimizer", "attend": "products", "data": "data"}
BACKGROUND = "wait for the background"


def seconds_by_kind(logs: Sequence[list]) -> list[list[dict[str, float]]]:
    """Return by rank and step the seconds of each of KINDS, which add up to the step.

    Args:
        logs: each rank's log, as ``trace.stop()`` returned it. Ranks may do different things, in different groups.

    Raises:
        ValueError: if a log holds no step.
    """
    entered = last_to_enter(logs)
    products = {entry.name for log in logs for entry in log if isinstance(entry, Kernel) and entry.flops}
    sent = {
        (m.source, m.destination, m.number): m.time
        for log in logs
        for m in log
        if isinstance(m, Message) and m.kind == "send"
    }
    return [
        [{kind: ns / 1e9 for kind, ns in step.items()} for step in Lane(log, entered, sent, products).steps()]
        for log in logs
    ]


def last_to_enter(logs: Sequence[list]) -> dict[str, int]:
    """Return when the last rank began each call of a collective, in ns."""
    entered: dict[str, int] = {}
    for log in logs:
        for event in log:
            if isinstance(event, Event) and "call" in event.details:
                call = event.details["call"]
                entered[call] = max(event.start, entered.get(call, event.start))
    return entered


@dataclass(frozen=True)
class Owner:
    """The kind of the time while a span is the innermost one."""

    end: int
    kind: str  # one of KINDS; "communication" for all that blocks
    late: Sequence[tuple[int, int]] = ()  # (start, end), ns: then the rank waits instead


class Lane:
    """The main thread of one rank."""

    def __init__(self, log: list, entered: dict[str, int], sent: dict[tuple, int], products: set[str]) -> None:
        events = [entry for entry in log if isinstance(entry, Event)]
        # Spans are in the log in the order in which they ended: of two with the same times the later holds the earlier.
        self.events = sorted((e for e in events[::-1] if e.stream == 0), key=lambda e: (e.start, -e.end))
        self.entered, self.products = entered, products
        self.arrivals = [  # when each message was sent, and when it was here
            (sent[m.source, m.destination, m.number], m.time)
            for m in log
            if isinstance(m, Message) and m.kind == "receive" and (m.source, m.destination, m.number) in sent
        ]
        background = [e for e in events if e.stream != 0 and "call" in e.details]
        self.late = [(e.start, entered[e.details["call"]]) for e in background]  # waiting there for other ranks
        self.waits_for_ranks = bool(background)

    def steps(self) -> list[dict[str, float]]:
        """Return by step the ns of each of KINDS.

        Raises:
            ValueError: if there is no step.
        """
        found: list[dict[str, float]] = []
        open_spans: list[Owner] = []
        now = 0
        for event in [*self.events, None]:
            until = event.start if event else inf
            while open_spans:  # the time since the event before belongs to the innermost span at each moment
                owner = open_spans[-1]
                end = min(until, owner.end)
                waited = length(clipped(owner.late, now, end))
                found[-1]["waiting"] += waited
                found[-1][owner.kind] += end - now - waited
                now = end
                if owner.end > until:
                    break
                open_spans.pop()
            if event is None:
                break
            if event.track == "step":
                found.append(dict.fromkeys(KINDS, 0))
            if event.track == "step" or open_spans:  # what is between steps is no part of them
                now = event.start
                open_spans.append(self.owner(event, open_spans[-1] if open_spans else None))
        if not found:
            raise ValueError("a log holds no event on the track 'step': run with RunOptions(trace=True)")
        return found

    def owner(self, event: Event, outer: Owner | None) -> Owner:
        """Return the owner of the time that is in a span but in no other span inside it."""
        if outer is not None and outer.kind == "communication":  # whatever a blocked rank does meanwhile
            return Owner(event.end, outer.kind, outer.late)
        if event.track == "communication":
            entered = self.entered.get(event.details.get("call", ""), event.start)
            return Owner(event.end, "communication", [(event.start, entered)])
        if event.name == BACKGROUND:  # with no other rank, the thread has nothing to do
            return Owner(event.end, "communication" if self.waits_for_ranks else "rest", self.late)
        if event.track == "wait" and not event.name.startswith("sync"):
            left = [sent for sent, received in self.arrivals if event.start <= received <= event.end]
            return Owner(event.end, "communication", [(event.start, max(left, default=event.end))])
        if event.track != "compute":
            return Owner(event.end, "rest")
        operation = "products" if event.name in self.products else "elementwise"
        return Owner(event.end, STRUCTURE.get(event.name.split()[0], operation))


def shares_of_time(logs: Sequence[list], seconds_without_core: Sequence[Sequence[float]]) -> list[dict[str, float]]:
    """Return by rank the share of each of KINDS in the time of the traced steps. They add up to 1.

    While a rank computes it may have to wait for a core of the machine. The logs do not say in which operation it
    waited, so that time is taken from all kinds of computing in proportion.

    Args:
        logs: each rank's log, as for ``seconds_by_kind``.
        seconds_without_core: each rank's time without a core, by step; the last steps are those in the logs.
    """
    return [
        shares(steps, sum(without_core[len(without_core) - len(steps) :]))
        for steps, without_core in zip(seconds_by_kind(logs), seconds_without_core, strict=True)
    ]


def shares(steps: Sequence[dict[str, float]], without_core: float) -> dict[str, float]:
    """Return the share of each of KINDS in one rank's steps, in which it had no core for ``without_core`` seconds."""
    seconds = {kind: sum(step[kind] for step in steps) for kind in KINDS}
    computing = sum(seconds[kind] for kind in COMPUTE)
    # Below 0 if the time without a core in waits for others was estimated a little too long (count_wait).
    seconds[NO_CORE] = min(max(without_core, 0.0), computing)
    for kind in COMPUTE:
        seconds[kind] *= 1 - seconds[NO_CORE] / computing if computing else 1
    whole = sum(seconds.values())
    return {kind: seconds[kind] / whole if whole else 0.0 for kind in KINDS}
