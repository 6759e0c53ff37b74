"""Forward as GPUs would run it: a longer sequence on the cluster's clock, where a message may hide under a tile.

The run is recorded as the others are, and replayed for every position of the dials.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from minidist.analysis.replay import Replayed
from minidist.show.demos.context_parallel import lecture
from minidist.show.demos.context_parallel.forward import DEALT
from minidist.show.demos.context_parallel.run import CHUNKS, FORWARD, Pass, config_of, passes_of
from minidist.show.demos.shared.gpus import DIALS, OnDemand, at_start, on_gpus
from minidist.show.demos.shared.lanes import COLOURS, HAIRLINE
from minidist.show.demos.shared.runs import WarmRanks
from minidist.show.palette import of_rank
from minidist.show.player.scene import Box, Curve, Frame, Label, Scene, Shape
from minidist.trace import Event
from minidist.train.layout import Layout
from minidist.train.result import Run

NAME = "as GPUs would"
TOKENS, WIDTH = 1024, 64  # about this number of tokens, so that somewhere on the dials tiles take as long as messages
HEIGHT, LEFT, RIGHT = 13.0, 3.0, 71.0
BAND = 6.0  # lines: a heading and the ranks of one run
MOMENTS = 0.0, 0.6, 1.0  # of the longest run; the first wrong one of a broken run is the second
US = 1e6  # in a second


def train(warm: WarmRanks, ranks: int, seed: int, function: Callable) -> dict[str, Run]:
    """A traced run of each kind, with more and wider tokens than those of the other scenes."""
    found = {}
    for kind in CHUNKS:
        config = replace(config_of(kind, ranks, TOKENS // (2 * ranks), seed), width=WIDTH)
        found[kind] = warm.train(config, Layout(cp=ranks, cp_kind=kind), function, trace=True, digests=False)
    return found


@dataclass(frozen=True)
class Timeline:
    """Forward of one run on the cluster's clock, in µs from its beginning.

    Args:
        visits: times at which a visit begins and ends, by hop and rank.
        run: what happens in them.
        messages: (receiver, posted, arrived).
    """

    visits: Sequence[Sequence[tuple[float, float]]]
    run: Pass
    messages: Sequence[tuple[int, float, float]]

    @property
    def end(self) -> float:
        return max(end for _, _, _, end in self.worked())

    def worked(self) -> list[tuple[int, int, float, float]]:
        """(hop, rank, start, end) of the visits that have work."""
        return [
            (hop, rank, *times)
            for hop, (visits, all_times) in enumerate(zip(self.run.visits, self.visits, strict=True))
            for rank, (visit, times) in enumerate(zip(visits, all_times, strict=True))
            if visit.pairs
        ]

    @property
    def busy(self) -> float:
        """The share of all ranks' time that is work."""
        return sum(end - start for *_, start, end in self.worked()) / (self.end * self.run.ranks)

    @property
    def message(self) -> float:
        """How long the longest message takes."""
        return max(arrived - posted for _, posted, arrived in self.messages)

    @property
    def work(self) -> float:
        """The longest work in the second hop, under which the next message may hide."""
        return max(end - start for hop, _, start, end in self.worked() if hop == 1)


def timeline(replayed: Replayed, run: Pass) -> Timeline:
    by_rank = [
        [(event.start / 1e3, event.end / 1e3) for event in log if _is_visit(event)][: run.ranks]
        for log in replayed.logs
    ]
    zero = min(visits[0][0] for visits in by_rank)
    end = max(visits[-1][1] for visits in by_rank)
    messages = [(flow.destination, US * flow.posted - zero, US * flow.arrived - zero) for flow in replayed.flows]
    visits = [[(start - zero, stop - zero) for start, stop in hop] for hop in zip(*by_rank, strict=True)]
    inside = [one for one in messages if one[1] >= -1e-3 and one[2] <= end - zero]  # logs are in whole ns
    return Timeline(visits, run, inside)


def _is_visit(event) -> bool:
    return isinstance(event, Event) and event.name.startswith("attend to keys of rank") and "backward" not in event.name


def scene_of(name: str, runs: Mapping[str, Run], clock: float, **more) -> Scene:
    """The scene, with dials.

    Args:
        runs: kind -> a traced run.
        clock: the moment of the last frame on the scenes' clock.
        more: further fields of the Scene.
    """
    passes = {kind: passes_of(run)[FORWARD] for kind, run in runs.items()}
    logs = {kind: [rank.log for rank in run.ranks] for kind, run in runs.items()}

    def variant(*words: str) -> Scene:
        times = {kind: timeline(on_gpus(logs[kind], *words), passes[kind]) for kind in runs}
        return _variant(name, times, words, clock, more)

    return at_start(OnDemand(DIALS, variant))


def _variant(name: str, times: Mapping[str, Timeline], words: Sequence[str], clock: float, more: Mapping) -> Scene:
    longest = max(one.end for one in times.values())
    frames = []
    for moment in MOMENTS:
        over = moment == MOMENTS[-1]
        facts = {DEALT[kind]: f"{one.end:,.0f} µs, {one.busy:.0%} busy" if over else "?" for kind, one in times.items()}
        facts |= {
            "a message": f"{times['zigzag'].message:,.0f} µs",
            "zigzag's tiles of a hop": f"{times['zigzag'].work:,.0f} µs",
        }
        note = f"After {longest * moment:,.0f} µs. Orange: keys and values on their way to this rank."
        if not moment:
            note = "The same ranks on a cluster's clock. Below a rank's work: the message with its next keys."
        shapes = (*_bands(times, longest, longest * moment), *_axis(longest))
        frames.append(Frame(shapes, note, facts, clock * moment))
    wrong = any(one.run.stale() for one in times.values())
    key = {"message": COLOURS["communication"]} | ({"wrong keys": "wrong"} if wrong else {})
    first, second = sorted(times, key=lambda kind: times[kind].end)
    verdict = (
        f"{DEALT[first].capitalize()} is done after {times[first].end:,.0f} µs, {DEALT[second]} after "
        f"{times[second].end:,.0f}."
    )
    if wrong:
        verdict = "Wrong keys, and the same time to the microsecond: no profile shows it."
    title = f"As GPUs would: links of {words[0]} and {words[1]}, chips of {words[2]}"
    details = (
        f"A replay of what ranks recorded with about {TOKENS} tokens; links and chips are scaled down like the model."
    )
    hidden = times["zigzag"].message <= times["zigzag"].work
    asked = lecture.questions_of_gpus(words[0], hidden, times["zigzag"].message, times["zigzag"].work, wrong)
    return Scene(
        name, title, tuple(frames), HEIGHT, key, verdict, 1 if wrong else None, (1, 2), details=details,
        questions=asked, cues=lecture.cues_of_gpus(wrong), **more,
    )  # fmt: skip


def _bands(times: Mapping[str, Timeline], longest: float, now: float) -> list[Shape]:
    """Both runs, one below the other, up to a moment."""
    shapes: list[Shape] = []
    scale = (RIGHT - LEFT) / longest
    for band, (kind, one) in enumerate(times.items()):
        top, pitch = band * BAND, (BAND - 1) / one.run.ranks
        shapes.append(Label(LEFT, top + 0.45, DEALT[kind]))
        for rank in range(one.run.ranks):
            y = top + 1 + rank * pitch
            shapes.append(Label(LEFT - 0.8, y + 0.35 * pitch, str(rank), of_rank(rank), "end"))
            if now:
                shapes.append(Box(LEFT, y, scale * min(now, one.end), 0.65 * pitch, "faint", mark="."))
        stale = one.run.stale()
        for hop, rank, start, end in one.worked():
            if start < now:
                wide = max(HAIRLINE, scale * (min(now, end) - start))
                fill, mark = ("wrong", "!") if (hop, rank) in stale else (of_rank(rank), "=")
                text = str(hop) if wide >= 1 and 0.65 * pitch >= 0.75 else ""
                y = top + 1 + rank * pitch
                shapes.append(Box(LEFT + scale * start, y, wide, 0.65 * pitch, fill, text, mark, "paper"))
        for rank, posted, arrived in one.messages:
            if posted < now:
                wide = max(HAIRLINE, scale * (min(now, arrived) - posted))
                y = top + 1 + (rank + 0.65) * pitch
                shapes.append(Box(LEFT + scale * posted, y, wide, 0.2 * pitch, COLOURS["communication"], mark="c"))
    return shapes


def _axis(longest: float) -> list[Shape]:
    y = 2 * BAND
    return [
        Curve(((LEFT, y), (RIGHT, y)), "ink", 2),
        Label(LEFT, y + 0.6, "0"),
        Label(RIGHT, y + 0.6, f"{longest:,.0f} µs", "ink", "end"),
    ]
