"""State of a run in progress, from the reports of its ranks; a terminal and a page show it."""

import threading
from collections import defaultdict
from dataclasses import dataclass, field, replace

from minidist.analysis.steps import kind_of
from minidist.trace import Event
from minidist.train.checkpoint.commit import step_of
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.measuring.instruments import Moment
from minidist.train.resilience.elastic import Interruption

MOST_NEWS = 8  # lines


@dataclass
class Live:
    """State of a run so far. One thread changes it; others may read it.

    Attributes:
        first: step that the run began with.
        losses: loss of each step since then.
        moments: rank -> Moment of the newest step that every rank has reported; until then, the first one reported. If
            ranks may be steps apart, the newest Moment of each rank, with times from its start.
        news: messages about what happened, the newest last.
        lost: (first step, losses) of each part that the run repeated after a failure.
        saved: steps of the checkpoints from which the run can resume.
        dead: (rank, layout, step) of each rank that died and was not restarted.
        ended: why the run is over; "" while it goes on. failed: whether it stopped before its end.
    """

    config: TrainConfig
    layout: Layout
    first: int = 0
    losses: list[float] = field(default_factory=list)
    moments: dict[int, Moment] = field(default_factory=dict)
    news: list[str] = field(default_factory=list)
    lost: list[tuple[int, list[float]]] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    dead: list[tuple[int, str, int]] = field(default_factory=list)
    ended: str = ""
    failed: bool = False

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.reported: dict[int, dict[int, Moment]] = defaultdict(dict)  # step -> rank -> moment

    def on_step(self, step: int, loss: float) -> None:
        with self.lock:
            self.losses.append(loss)

    def on_event(self, rank: int, event: tuple) -> None:
        with self.lock:
            if event[0] == "moment":
                self._add(rank, event[1])
            elif event[0] == "fault":
                self._tell(f"step {event[1].step}, rank {rank}: {event[1].kind}, as ordered")
            elif event[0] == "saved":
                self.saved += [] if event[2] else [step_of(event[1])]
                failed = f" could not be saved: {event[2]}" if event[2] else ""
                self._tell(f"checkpoint {event[1]}{failed}")
            elif event[0] == "corrupted":
                self._tell(str(event[1]))

    def on_interruption(self, interruption: Interruption) -> None:
        with self.lock:
            self._tell(f"step {interruption.step}: {interruption.why}")
            where = f"{interruption.after} from step {interruption.resumed}, {interruption.source}"
            self._tell(f"the run goes on as {where}")
            kept = max(0, interruption.resumed - self.first)
            self.lost.append((self.first + kept, self.losses[kept:]))
            del self.losses[kept:]
            self.first = min(self.first, interruption.resumed)
            self.saved = [step for step in self.saved if step <= interruption.resumed]  # newer ones are discarded
            if interruption.after.world_size < interruption.before.world_size:
                self.dead += [(rank, str(interruption.before), interruption.step) for rank in interruption.ranks]
            self.layout = interruption.after
            self.reported.clear()
            self.moments = {}

    def tell(self, news: str) -> None:
        with self.lock:
            self._tell(news)

    def end(self, why: str, failed: bool = True) -> None:
        with self.lock:
            self.ended, self.failed = why, failed

    def _tell(self, news: str) -> None:
        self.news = [*self.news, news][-MOST_NEWS:]

    def _add(self, rank: int, moment: Moment) -> None:
        if self.layout.slack or self.layout.sync == "local":  # ranks may be steps apart
            self.moments[rank] = from_its_start(moment)
            return
        self.reported[moment.step][rank] = moment
        if len(self.reported[moment.step]) == self.layout.world_size or not self.moments:
            self.moments = dict(self.reported[moment.step])
            for step in [step for step in self.reported if step < moment.step]:
                del self.reported[step]

    def as_dict(self) -> dict:
        """Return the state for the page's JSON. Times of lanes are shares of the step, which lasts from 0 to 1."""
        with self.lock:
            start, end = self.span()
            return {
                "layout": str(self.layout),
                "steps": self.config.steps,
                "first": self.first,
                "losses": [round(loss, 5) for loss in self.losses],
                "lost": [(first, [round(loss, 5) for loss in losses]) for first, losses in self.lost],
                "saved": self.saved,
                "dead": self.dead,
                "seconds": (end - start) / 1e9,
                "step": max((moment.step for moment in self.moments.values()), default=None),
                "ranks": [
                    moment
                    and {"lanes": shares(lanes_of(moment), start, end), "memory": moment.memory, "sent": moment.sent}
                    for moment in map(self.moments.get, range(self.layout.world_size))
                ],
                "news": self.news,
                "ended": self.ended,
                "failed": self.failed,
            }

    def span(self) -> tuple[int, int]:
        """Return when the first rank began the step that is shown, and when the last one ended it, in ns."""
        starts = [moment.start for moment in self.moments.values()]
        return min(starts, default=0), max((moment.end for moment in self.moments.values()), default=1)


def from_its_start(moment: Moment) -> Moment:
    """Return the moment with times counted from where it starts."""
    zero = moment.start
    events = tuple((name, track, start - zero, end - zero) for name, track, start, end in moment.events)
    return replace(moment, start=0, end=moment.end - zero, events=events)


def lanes_of(moment: Moment) -> list[tuple[str, int, int]]:
    """Return (kind, start, end) of what the rank did, those to draw on top last; kinds: see ``analysis.steps``."""
    events = [Event(*event) for event in moment.events]
    found = [(kind, event.start, event.end) for event in events if (kind := kind_of(event)) is not None]
    return sorted(found, key=lambda lane: (lane[0] in ("communication", "wait"), lane[1]))


def shares(lanes: list[tuple[str, int, int]], start: int, end: int) -> list[tuple[str, float, float]]:
    """Return lanes with times as shares of a step."""
    return [(kind, (begin - start) / (end - start), (until - start) / (end - start)) for kind, begin, until in lanes]
