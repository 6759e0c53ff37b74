"""One moment of a run with a parameter server: its versions in colours, and below them what each worker does.

The server's lane changes its colour with every update. A worker's bar has the colour of the version that it pulled. At
its end it shows the colour of the version that its gradient met: two colours that are far apart are a stale gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from minidist.show.demos.parameter_server.recorded import Landing, Recorded
from minidist.show.demos.shared.lanes import tick, ticks
from minidist.show.palette import MEANINGS, of_rank, of_version
from minidist.show.player.scene import Arrow, Box, Label, Shape

LEFT, RIGHT = 10, 70  # start and end of time
SERVER, FIRST, PITCH, HIGH = 1, 4, 3, 1.5  # lines: of the server's lane, of the first worker's, from one to the next
MET = 1.6  # characters: the width of the colour that a gradient met


@dataclass(frozen=True)
class Lanes:
    """The picture of a run.

    Attributes:
        run: what is shown.
        end: end of its time, in simulated seconds.
        bound: largest number of steps that a worker may be ahead; None for no bound.
    """

    run: Recorded
    end: float
    bound: int | None = None

    @property
    def height(self) -> float:
        return FIRST + PITCH * self.run.workers + 1.5

    @property
    def landings(self) -> list[Landing]:
        return self.run.by(self.end)

    @property
    def last(self) -> int:
        """The newest version."""
        return sum(time <= self.end for time in self.run.made) - 1

    @property
    def key(self) -> dict[str, str]:
        return {
            "oldest weights": of_version(0, 1), "newest weights": of_version(1, 1), "waits": MEANINGS["idle"]
        }  # fmt: skip

    def idle(self, now: float) -> float:
        """The share of the workers' time that they have waited."""
        worked = sum(min(now, one.end) - one.begin for one in self.run.landings if one.begin < now and not one.again)
        return 1 - worked / (now * self.run.workers) if now else 0.0

    def x(self, seconds: float) -> float:
        return LEFT + (RIGHT - LEFT) * seconds / self.end

    def y(self, worker: int) -> float:
        return FIRST + PITCH * worker

    def next_of(self, landing: Landing) -> Landing | None:
        """That of the same worker's next step; None if there is none."""
        step = landing.worker, landing.step + 1
        return next((one for one in self.run.landings if (one.worker, one.step) == step), None)

    def copied(self, landing: Landing) -> bool:
        """Whether a gradient comes once more."""
        key = landing.worker, landing.step
        return not landing.again and any(one.again and (one.worker, one.step) == key for one in self.run.landings)

    def breaks_the_bound(self, landing: Landing) -> bool:
        return self.bound is not None and landing.ahead > self.bound

    def shapes(self, now: float, count: int) -> tuple[Shape, ...]:
        """The moment ``now``, when the first ``count`` gradients have landed; the last of them is on its way."""
        landed = self.landings[:count]
        version = self.version(now, landed)
        shapes = [*self._names(), *self._axis(now), *self._server(now, version, landed)]
        for one in self.run.landings:
            if one.begin <= now and one.read <= version and not one.again:
                shapes += self._bar(one, now, one in landed)
        shapes += self._idle(now, version, landed)
        if landed and landed[-1].end == now:
            shapes += self._arrival(landed[-1], version)
        return tuple(shapes)

    def version(self, now: float, landed: Sequence[Landing]) -> int:
        """The server's version when these gradients have landed."""
        if not landed:
            return 0
        newest = landed[-1].found
        return newest + (self.run.made[newest + 1] <= now)

    def _names(self) -> list[Shape]:
        shapes: list[Shape] = [Label(0, SERVER + HIGH / 2, "server")]
        for worker in range(self.run.workers):
            shapes.append(Label(0, self.y(worker) + HIGH / 2, f"worker {worker}", of_rank(worker)))
            shapes.append(Label(0, self.y(worker) + HIGH + 0.5, "staleness", "faint"))
        return shapes

    def _axis(self, now: float) -> list[Shape]:
        y = self.height - 0.5
        shapes: list[Shape] = [Label(0, y, "seconds", "faint")]
        for time in ticks(self.end):
            shapes += [tick(self.x(time), y - 0.5), Label(self.x(time), y, f"{time:g}", "faint", "middle")]
        return [*shapes, Box(self.x(now), SERVER - 0.2, 0.2, y - 0.8 - SERVER, "ink", "", "|")]

    def _server(self, now: float, version: int, landed: Sequence[Landing]) -> list[Shape]:
        """A box for each version, from its update to the next."""
        shapes: list[Shape] = []
        for number in range(version + 1):
            start = self.x(self.run.made[number])
            end = self.x(now if number == version else self.run.made[number + 1])
            width = max(end - start, 0.8 if number == version else 0.2)
            shapes.append(self._colour(start, SERVER, width, number))
        copies = (self.x(one.end) for one in landed if one.again)
        return shapes + [Box(x - 1, SERVER, 2, HIGH, "wrong", "×2", "!") for x in copies]

    def _colour(self, x: float, y: float, width: float, version: int, outline: str | None = None) -> Box:
        text = str(version) if len(str(version)) <= width else ""
        return Box(x, y, width, HIGH, of_version(version, self.last), text, str(version)[-1], outline)

    def _bar(self, one: Landing, now: float, landed: bool) -> list[Shape]:
        """A worker's step: the version that it computes with, and the one that its gradient met."""
        y, start, end = self.y(one.worker), self.x(one.begin), self.x(min(now, one.end))
        outline = "wrong" if self.breaks_the_bound(one) else None
        if not landed:
            return [self._colour(start, y, max(0.8, end - start), one.read, outline)]
        shapes: list[Shape] = [self._colour(start, y, max(0.4, end - start - MET), one.read, outline)]
        shapes.append(self._colour(end - MET, y, MET - 0.15, one.found))
        shapes.append(Label(end - 0.15, y + HIGH + 0.5, str(one.staleness), "ink", "end"))
        return shapes

    def _idle(self, now: float, version: int, landed: Sequence[Landing]) -> list[Shape]:
        """Where workers wait for their answer."""
        shapes: list[Shape] = []
        for one in landed:
            following = self.next_of(one)
            goes_on = following is not None and following.read <= version
            start, end = self.x(one.end), self.x(min(now, following.begin) if goes_on else now)
            if end - start > 0.2 and not one.again:
                text = next((text for text in ("waits", "") if len(text) <= end - start), "")
                shapes.append(Box(start, self.y(one.worker), end - start, HIGH, MEANINGS["idle"], text, "."))
        return shapes

    def _arrival(self, one: Landing, version: int) -> list[Shape]:
        """The gradient that lands now, and how many versions were made since its own: counted one by one."""
        x, y = self.x(one.end), self.y(one.worker)
        shapes: list[Shape] = []
        free = RIGHT + 2.0  # from here on to the right are counts
        for count in range(one.staleness, 0, -1):
            made = self.run.made[one.read + count], self.run.made[one.read + count + 1]
            middle, room = sum(map(self.x, made)) / 2, len(str(count)) / 2 + 0.2
            if middle + room < free:
                shapes.append(Label(middle, SERVER - 0.5, str(count), "ink", "middle"))
                free = middle - room
        shapes.append(Arrow(x - MET / 2, y, x - MET / 2, SERVER + HIGH + 0.1, "ink", f"worker {one.worker} → server"))
        if self.run.made[version] == one.end:
            going = [other for other in self.run.landings if other.read == version and not other.again]
            for place, other in enumerate(sorted(going, key=lambda other: other.worker)):
                at, label = x + 0.5 + 0.9 * place, f"version {version} → worker {other.worker}"
                shapes.append(Arrow(at, SERVER + HIGH, at, self.y(other.worker), "ink", label))
        return shapes
