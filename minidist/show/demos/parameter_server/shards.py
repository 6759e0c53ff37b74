"""Two servers: which of them holds which parameters, dealt one by one, and what a worker then sends to each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minidist.nn.gpt import GPT
from minidist.parallel.loosened.server import names_of_servers
from minidist.show.palette import MEANINGS, of_rank
from minidist.show.player.scene import Arrow, Box, Frame, Label, Scene, Shape
from minidist.train.result import Run

NAME = "two servers"
SERVERS = 2
LEFT, WIDE, APART = 10, 30, 1.5  # of the servers' places: where they begin, their width, and between them
ROW, HELD, PUSH, HIGH = 1, 5, 9, 1.5  # lines: of what is not dealt yet, of the servers, of a worker's push
HEIGHT = 11.0
SMALL = 256  # elements: smaller parameters are dealt together


@dataclass(frozen=True)
class Shards:
    """The parameters of a model, and who holds them.

    Attributes:
        sizes: elements of each parameter by name.
        servers: the names that each server holds.
        first: the rank of the first server.
        nbytes: bytes of one worker's push, to each server.
    """

    sizes: Mapping[str, int]
    servers: Sequence[Sequence[str]]
    first: int
    nbytes: Sequence[int]

    @classmethod
    def of(cls, run: Run) -> "Shards":
        """Those of a run with servers; the bytes are those that its first worker sent."""
        parameters = GPT(run.config.model).parameters()
        servers = names_of_servers(parameters, run.layout.servers)
        sent = run.ranks[0].traffic.sent[run.layout.dp :, 0]
        nbytes = [int(count) // run.config.steps for count in sent]
        return cls({one.name: one.size for one in parameters}, servers, run.layout.dp, nbytes)

    @property
    def order(self) -> list[str]:
        """The names in the order in which they are dealt: the largest first."""
        return sorted(self.sizes, key=lambda name: -self.sizes[name])

    @property
    def moments(self) -> list[int]:
        """How many have been dealt in each frame: the large ones one by one, the small ones at once."""
        large = sum(size >= SMALL for size in self.sizes.values())
        return [*range(large + 1), len(self.sizes)]

    @property
    def unit(self) -> float:
        """The width of an element: the fuller server fills its place."""
        return WIDE / max(self.held(len(self.sizes)))

    def left(self, server: int) -> float:
        """Where a server's place begins."""
        return LEFT + server * (WIDE + APART)

    def server_of(self, name: str) -> int:
        return next(server for server, names in enumerate(self.servers) if name in names)

    def held(self, dealt: int) -> list[int]:
        """Elements on each server when ``dealt`` parameters have been dealt."""
        seen = self.order[:dealt]
        return [sum(self.sizes[name] for name in names if name in seen) for names in self.servers]


def scene_of(shards: Shards, verdict: str) -> Scene:
    frames = [
        Frame(tuple(_dealt(shards, dealt)), _note(shards, dealt), _facts(shards, dealt)) for dealt in shards.moments
    ]
    everything = len(shards.sizes)
    note = "A worker's gradients travel as one message to each server, and its new weights come back from both."
    frames.append(Frame((*_dealt(shards, everything), *_push(shards)), note, _facts(shards, everything)))
    key = {"not dealt yet": MEANINGS["idle"]}
    key |= {f"server {server}": of_rank(shards.first + server) for server in range(SERVERS)}
    title = "Two servers share the parameters: the largest first, to whoever has least"
    return Scene(NAME, title, tuple(frames), HEIGHT, key, verdict, None, (2, len(frames) - 1))


def _dealt(shards: Shards, dealt: int) -> list[Shape]:
    """What is not dealt yet, and below it what each server holds."""
    unit = shards.unit
    ends = [shards.left(server) for server in range(SERVERS)]
    shapes: list[Shape] = []
    if dealt < len(shards.sizes):
        shapes.append(Label(0, ROW + HIGH / 2, "to deal"))
    for server, held in enumerate(shards.held(dealt)):
        text = f"server {server}: {held:,} elements"
        shapes.append(Label(shards.left(server), HELD - 0.5, text, of_rank(shards.first + server)))
    x = float(LEFT)
    for place, name in enumerate(shards.order):
        width = shards.sizes[name] * unit
        if place >= dealt:
            shapes.append(_box(name, x, ROW, width, MEANINGS["idle"], "."))
        else:
            server = shards.server_of(name)
            shapes.append(_box(name, ends[server], HELD, width, of_rank(shards.first + server), str(server)))
            ends[server] += width
        x += width
    return shapes


def _box(name: str, x: float, y: float, width: float, fill: str, mark: str) -> Box:
    text = short(name)
    return Box(
        x, y, max(0.1, width - min(0.2, width / 4)), HIGH, fill, text if len(text) <= width else "", mark, id=name
    )


def short(name: str) -> str:
    """The layer's name without its blocks: "fc" for "blocks.0.mlp.fc.weight"."""
    return name.split(".")[-2]


def _push(shards: Shards) -> list[Shape]:
    """A worker's message to each server."""
    shapes: list[Shape] = [Label(0, PUSH + HIGH / 2, "a push")]
    for server, (nbytes, held) in enumerate(zip(shards.nbytes, shards.held(len(shards.sizes)), strict=True)):
        x, width, colour = shards.left(server), held * shards.unit, of_rank(shards.first + server)
        text = f"{nbytes:,} B"
        shapes.append(Box(x, PUSH, width, HIGH, colour, text, str(server), id=f"push to server {server}"))
        to_server = f"{text} to server {server}"
        shapes.append(Arrow(x + width / 2, PUSH, x + width / 2, HELD + HIGH + 0.1, "ink", to_server))
    return shapes


def _note(shards: Shards, dealt: int) -> str:
    if not dealt:
        return f"{len(shards.sizes)} parameters, {sum(shards.sizes.values()):,} elements. The largest is dealt first."
    if dealt == len(shards.sizes):
        held = " and ".join(f"{one:,}" for one in shards.held(dealt))
        return f"The {dealt - shards.moments[-2]} small ones go to whoever has less: {held} elements."
    name = shards.order[dealt - 1]
    why = "both have as much" if len({*shards.held(dealt - 1)}) == 1 else "it has less"
    return f"{name}, {shards.sizes[name]:,} elements, goes to server {shards.server_of(name)}: {why}."


def _facts(shards: Shards, dealt: int) -> dict[str, str]:
    held = shards.held(dealt)
    return {f"server {server}": f"{one:,} elements" for server, one in enumerate(held)} | {
        "fuller than half, by": f"{max(held) / (sum(shards.sizes.values()) / SERVERS) - 1:.1%}" if dealt else "-"
    }
