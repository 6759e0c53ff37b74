"""Collectives, step by step: what each rank's array held after each message of a real run.

A rank runs the algorithm twice: on marks, which say whose contributions a chunk holds (show/contributions.py), and on
random numbers. It looks at its array whenever a message has arrived. In which step that was, the replay of all ranks'
calls says (show/replay.py): there every message takes one step, and the clock of this machine does not matter.

The numbers are float64 with float32 values, so that sums are exact and one process has the same bits, in any order.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from minidist import sockets, trace
from minidist.comm import algorithms
from minidist.comm.algorithms import chunks_of
from minidist.comm.group import ProcessGroup
from minidist.layout import Layout
from minidist.show.contributions import marked
from minidist.show.demos import board, broken_collectives
from minidist.show.demos.runs import WarmRanks, told, warm_ranks
from minidist.show.player.scene import Film, Frame, Scene
from minidist.show.replay import replay
from minidist.trace import PointToPoint
from minidist.train import TrainConfig, train_rank
from minidist.verify import ulps_between

MODEL = TrainConfig(layers=2, heads=4, width=32, context=16, global_batch=16, micro_batch=1, steps=2)


@dataclass(frozen=True)
class Kind:
    """What is particular about one collective.

    Args:
        name: as the command line has it.
        title: what it does, in a line.
        programs: by the scene's name, the algorithm: ``program(array, world)`` works on a rank's flat array.
        broken: the same with a bug.
        bug: what that is.
        begins: (rank, values of all ranks (N, M)) -> the array that the rank begins with.
        ends: (values of all ranks (N, M)) -> (N, M), NaN where it does not matter: what one process would compute.
        formula: by the scene's name, what the busiest rank sends, in words, and as a function of N and the bytes M.
        says: by the scene's name, (step, N) -> what happens in that step.
        trains_on: a layout that uses this collective, by N, and the socket that the bug is plugged into.
    """

    name: str
    title: str
    programs: dict[str, Callable]
    broken: Callable
    bug: str
    begins: Callable
    ends: Callable
    formula: dict[str, tuple[str, Callable]]
    says: dict[str, Callable[[int, int], str]]
    trains_on: tuple[Callable, str] | None = None


@dataclass(frozen=True)
class Step:
    """The arrays of all ranks after a step, and the messages of it."""

    values: np.ndarray  # (ranks, chunks) marks
    numbers: np.ndarray  # (ranks, M) float64
    messages: list[board.Sent]
    nbytes: list[int]  # that each rank has sent so far


def film(kind: Kind, ranks: int, size: int, seed: int) -> Film:
    """Run the collective as it should be and broken, on so many ranks with ``size`` numbers in each chunk."""
    size *= ranks  # from here on: numbers in each array
    with warm_ranks() as warm:
        runs = {name: _watched(kind, program, warm, ranks, size, seed) for name, program in _shown(kind, ranks).items()}
        first = next(iter(kind.programs))
        bad, _ = _watched(kind, kind.broken, warm, ranks, size, seed)
        right = _one_process(kind, ranks, size, seed)
        for name, (steps, _) in runs.items():
            if not _same(steps[-1].numbers, right).all():
                raise RuntimeError(f"{kind.name}, {name}, differs from one process: this is a fault of minidist")
        consequence = _consequence(kind, warm, ranks, seed)
    scenes = tuple(_scene(kind, name, steps, name, steps) for name, (steps, _) in runs.items())
    verdict = " ".join(filter(None, (_verdict(bad, runs[first][0], right), consequence)))
    broken = _scene(kind, "broken", bad, first, runs[first][0], verdict)
    return Film(kind.name, kind.title, scenes, broken, kind.bug, runs[first][1])


def _shown(kind: Kind, ranks: int) -> dict[str, Callable]:
    """The programs that make a picture: halving-doubling works on equal chunks with a power of two of ranks only."""
    return {
        name: program for name, program in kind.programs.items() if name != "halving-doubling" or ranks.bit_count() == 1
    }


# ── the runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _numbers(rank: int, size: int, seed: int) -> np.ndarray:
    return np.random.default_rng((seed, rank)).standard_normal(size, np.float32).astype(np.float64)


def _marks(rank: int, ranks: int, size: int) -> np.ndarray:
    """(size,): in each chunk its mark."""
    return np.repeat(marked(rank, ranks), [len(chunk) for chunk in chunks_of(np.empty(size), ranks)])


def _watched(kind: Kind, program: Callable, warm: WarmRanks, ranks: int, size: int, seed: int):
    """The steps of a run, and the ranks' logs."""
    with warm(ranks) as cluster:
        results = cluster.run(_watched_rank, kind.begins, program, size, seed, timeout=60)
    logs = [log for log, *_ in results]
    return _steps(kind, logs, [marks for _, marks, _ in results], [numbers for *_, numbers in results]), logs


def _watched_rank(world: ProcessGroup, begins: Callable, program: Callable, size: int, seed: int):
    """One rank's log, and the array of marks and that of numbers at first and after each message that it received."""
    photos = []
    for draw in (lambda rank: _marks(rank, world.size, size), lambda rank: _numbers(rank, size, seed)):
        flat = begins(world.rank, np.stack([draw(rank) for rank in range(world.size)]))
        album = [flat.copy()]
        photos.append(album)

        def look(entry, album=album, flat=flat) -> None:
            if isinstance(entry, PointToPoint) and (entry.call, entry.kind) == ("wait", "receive"):
                album.append(flat.copy())

        trace.start(look)
        try:
            program(flat, world)
        finally:
            log = trace.stop()
    return log, *photos


def _steps(kind: Kind, logs: list[list], marks: list[list], numbers: list[list]) -> list[Step]:
    ranks = len(logs)
    cells = [[_cells(photo, ranks) for photo in album] for album in marks]
    flights, nth = replay(logs), Counter()
    numbered = {}  # (source, destination, how many before it between the two) -> its flight
    for flight in sorted(flights, key=lambda flight: flight.start):
        numbered[flight.source, flight.destination, nth[flight.source, flight.destination]] = flight
        nth[flight.source, flight.destination] += 1
    received = []  # for each rank the flights that came in, in the order of its photos
    for log in logs:
        waits = [e for e in log if isinstance(e, PointToPoint) and (e.call, e.kind) == ("wait", "receive")]
        seen: Counter = Counter()
        arrivals = []
        for entry in waits:
            arrivals.append(numbered[entry.source, entry.destination, seen[entry.source]])
            seen[entry.source] += 1
        received.append(arrivals)
    found = [Step(np.stack([c[0] for c in cells]), np.stack([n[0] for n in numbers]), [], [0] * ranks)]
    for step in range(1, int(max((flight.end for flight in flights), default=0)) + 1):
        at = [sum(flight.end <= step for flight in arrivals) for arrivals in received]
        messages = []
        for rank, arrivals in enumerate(received):
            for place, flight in enumerate(arrivals, 1):
                if flight.end == step:
                    changed = tuple(np.flatnonzero(cells[rank][place] != cells[rank][place - 1]).tolist())
                    came_from = (rank,) if kind.name == "all-to-all" else changed
                    messages.append(board.Sent(flight.source, rank, flight.nbytes, came_from, changed))
        sent = [sum(f.nbytes for f in flights if f.source == rank and f.end <= step) for rank in range(ranks)]
        found.append(
            Step(
                np.stack([c[place] for c, place in zip(cells, at, strict=True)]),
                np.stack([n[place] for n, place in zip(numbers, at, strict=True)]),
                sorted(messages, key=lambda message: message.source),
                sent,
            )
        )
    return found


def _cells(photo: np.ndarray, ranks: int) -> np.ndarray:
    """(chunks,): what each chunk holds in its last element, the last one to arrive."""
    return np.array([chunk[-1] for chunk in chunks_of(photo, ranks)])


def _one_process(kind: Kind, ranks: int, size: int, seed: int) -> np.ndarray:
    return kind.ends(np.stack([_numbers(rank, size, seed) for rank in range(ranks)]))


def _same(found: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Bit for bit, but anything where the right answer is NaN."""
    return np.isnan(right) | (found.view(np.uint64) == right.view(np.uint64))


# ── what is told of them ─────────────────────────────────────────────────────────────────────────────────────────────


def _scene(kind: Kind, name: str, steps: list[Step], algorithm: str, right: list[Step], verdict: str = "") -> Scene:
    words, count = kind.formula[algorithm]
    ranks, size = steps[0].numbers.shape
    limit = count(ranks, 8 * size)
    frames, parts_at = [], None
    for number, step in enumerate(steps):
        as_it_should_be = right[min(number, len(right) - 1)].values
        wrong = step.values != as_it_should_be
        if wrong.any() and parts_at is None:
            parts_at = number
        before = steps[max(0, number - 1)].values
        facts = {
            "step": f"{number} of {len(steps) - 1}",
            "busiest rank so far": f"{max(step.nbytes):,} B",
            words: f"{limit:,.0f} B",
        }
        shapes = board.draw(step.values, before, step.messages, step.nbytes, wrong)
        frames.append(Frame(shapes, _note(number, kind.says[algorithm](number, ranks), wrong), facts))
    if not verdict:
        verdict = "At the end every number has the bits that one process computes."
    title = f"{kind.title} · {algorithm}, {ranks} ranks, {size:,} float64 each"
    last = len(steps) - 1
    stills = tuple(sorted({0, 1, 2, last // 2, last // 2 + 1, last} & set(range(last + 1))))
    key = {"just changed": "ink", "not as it should be": "wrong"} if parts_at is not None else {"just changed": "ink"}
    return Scene(name, title, tuple(frames), board.height(ranks), key, verdict, parts_at, stills)


def _note(number: int, says: str, wrong: np.ndarray) -> str:
    if not number:
        return "Before: a letter is a chunk, a digit and a colour the rank that it comes from."
    text = f"Step {number}: {says}."
    if wrong.any():
        rank, chunk = (int(i) for i in np.argwhere(wrong)[0])
        text += f" Rank {rank}'s chunk {'abcdefgh'[chunk]} is not what it should be."
    return text


def _verdict(bad: list[Step], good: list[Step], right: np.ndarray) -> str:
    """Where the broken collective parts: step, rank, and of its result the first wrong number."""
    step = next(i for i, (one, other) in enumerate(zip(bad, good, strict=True)) if (one.values != other.values).any())
    rank, chunk = (int(i) for i in np.argwhere(bad[step].values != good[step].values)[0])
    text = f"Parts in step {step}, on rank {rank}, in chunk {'abcdefgh'[chunk]}."
    place = np.argwhere(~_same(bad[-1].numbers, right))[0]
    found, expected = bad[-1].numbers[tuple(place)], right[tuple(place)]
    return text + (
        f" At the end element {place[1]} of rank {place[0]} is {found:.6g}, in one process {expected:.6g}: "
        f"{ulps_between(found, expected):,} ulps away."
    )


def _consequence(kind: Kind, warm: WarmRanks, ranks: int, seed: int) -> str:
    """What the bug does to a training run, where one uses this collective."""
    if kind.trains_on is None:
        return ""
    layout_of, socket = kind.trains_on
    config = TrainConfig(**(vars(MODEL) | {"seed": seed}))

    def plugged(world, config, layout, wishes):
        sockets.plug({socket: getattr(broken_collectives, socket)})
        try:
            return train_rank(world, config, layout, wishes)
        finally:
            sockets.plug({})

    layout = layout_of(ranks)
    return told(warm.parting(config, warm.train(config, layout, plugged), plugged))


# ── the kinds ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _everything(rank: int, values: np.ndarray) -> np.ndarray:
    return values[rank].copy()


def _only_root(rank: int, values: np.ndarray) -> np.ndarray:
    return values[rank].copy() if rank == 0 else np.zeros_like(values[rank])


def _own_chunk(rank: int, values: np.ndarray) -> np.ndarray:
    flat = np.zeros_like(values[rank])
    chunks_of(flat, len(values))[rank][:] = chunks_of(values[rank], len(values))[rank]
    return flat


def _total(values: np.ndarray) -> np.ndarray:
    return np.stack([values.sum(axis=0)] * len(values))


def _own_total(values: np.ndarray) -> np.ndarray:
    found = np.full_like(values, np.nan)  # what stays half-way does not matter
    for rank, flat in enumerate(found):
        chunks_of(flat, len(values))[rank][:] = chunks_of(values.sum(axis=0), len(values))[rank]
    return found


def _gathered(values: np.ndarray) -> np.ndarray:
    whole = np.concatenate([chunks_of(flat, len(values))[rank] for rank, flat in enumerate(values)])
    return np.stack([whole] * len(values))


def _transposed(values: np.ndarray) -> np.ndarray:
    return np.stack(
        [np.concatenate([chunks_of(flat, len(values))[rank] for flat in values]) for rank in range(len(values))]
    )


def _reduce_scatter(flat: np.ndarray, world: ProcessGroup, algorithm=algorithms.reduce_scatter_ring) -> None:
    algorithm(chunks_of(flat, world.size), np.add, world)


def _all_gather(flat: np.ndarray, world: ProcessGroup, algorithm=algorithms.all_gather_ring) -> None:
    algorithm(chunks_of(flat, world.size), world)


def _all_to_all(flat: np.ndarray, world: ProcessGroup, algorithm=algorithms.all_to_all_pairwise) -> None:
    outgoing = [chunk.copy() for chunk in chunks_of(flat, world.size)]
    algorithm(outgoing, chunks_of(flat, world.size), world)


ADDS = "reduce-scatter, each rank adds the chunk that its left neighbour sends"
PASSES = "all-gather, each rank keeps the chunk that its left neighbour passes on"

BROADCAST = Kind(
    "broadcast",
    "Broadcast: rank 0's array on every rank",
    {
        "tree": lambda flat, world: algorithms.broadcast_tree(flat, 0, world),
        "naive": lambda flat, world: algorithms.broadcast_naive(flat, 0, world),
        "ring": lambda flat, world: algorithms.broadcast_ring(flat, 0, world),
    },
    lambda flat, world: broken_collectives.broadcast_tree(flat, 0, world),
    "one rank sends too early, before its array is filled",
    _only_root,
    lambda values: np.stack([values[0]] * len(values)),
    {
        "tree": ("formula ⌈log2 N⌉ M", lambda n, m: (n - 1).bit_length() * m),
        "naive": ("formula (N−1) M", lambda n, m: (n - 1) * m),
        "ring": ("formula M", lambda n, m: m),
    },
    {
        "tree": lambda step, n: "whoever has the array passes it on",
        "naive": lambda step, n: "rank 0 sends to the next rank",
        "ring": lambda step, n: "the array goes one rank further",
    },
)
RING = Kind(
    "ring",
    "All-reduce: the sum of all arrays on every rank",
    {
        "ring": lambda flat, world: algorithms.all_reduce_ring(flat, np.add, world),
        "naive": lambda flat, world: algorithms.all_reduce_naive(flat, np.add, world),
        "halving-doubling": lambda flat, world: algorithms.all_reduce_halving_doubling(flat, np.add, world),
    },
    lambda flat, world: broken_collectives.all_reduce_ring(flat, np.add, world),
    "rank 1 sends two chunks in the wrong order",
    _everything,
    _total,
    {
        "ring": ("formula 2 (N−1)/N M", lambda n, m: 2 * (n - 1) / n * m),
        "naive": ("formula (N−1) M", lambda n, m: (n - 1) * m),
        "halving-doubling": ("formula 2 (N−1)/N M", lambda n, m: 2 * (n - 1) / n * m),
    },
    {
        "ring": lambda step, n: ADDS if step < n else PASSES,
        "naive": lambda step, n: "rank 0 adds the next rank's array" if step < n else "rank 0 sends the sum to a rank",
        "halving-doubling": lambda step, n: "partners swap halves of what they work on, or give them back",
    },
    (lambda ranks: Layout(dp=ranks, algorithm="ring"), "all_reduce_ring"),
)
REDUCE_SCATTER = Kind(
    "reduce-scatter",
    "Reduce-scatter: of the sum of all arrays one chunk on each rank",
    {"ring": _reduce_scatter},
    lambda flat, world: _reduce_scatter(flat, world, broken_collectives.reduce_scatter_ring),
    "rank 1 stores what arrives in the last step instead of adding it",
    _everything,
    _own_total,
    {"ring": ("formula (N−1)/N M", lambda n, m: (n - 1) / n * m)},
    {"ring": lambda step, n: ADDS},
    (lambda ranks: Layout(dp=ranks, zero=1, algorithm="ring"), "reduce_scatter_ring"),
)
ALL_GATHER = Kind(
    "all-gather",
    "All-gather: every rank's chunk on every rank",
    {"ring": _all_gather},
    lambda flat, world: _all_gather(flat, world, broken_collectives.all_gather_ring),
    "in its last step rank 1 sends the wrong chunk",
    _own_chunk,
    _gathered,
    {"ring": ("formula (N−1)/N M", lambda n, m: (n - 1) / n * m)},
    {"ring": lambda step, n: PASSES},
    (lambda ranks: Layout(dp=ranks, zero=1, algorithm="ring"), "all_gather_ring"),
)
ALL_TO_ALL = Kind(
    "all-to-all",
    "All-to-all: chunk r of every rank on rank r, a transpose",
    {"pairwise": _all_to_all},
    lambda flat, world: _all_to_all(flat, world, broken_collectives.all_to_all_pairwise),
    "rank 0 swaps two of its chunks",
    _everything,
    _transposed,
    {"pairwise": ("formula (N−1)/N M", lambda n, m: (n - 1) / n * m)},
    {"pairwise": lambda step, n: f"each rank sends to the one {step} to its right"},
)
