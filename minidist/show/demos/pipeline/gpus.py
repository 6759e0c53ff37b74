"""The recorded runs as GPUs would: on the cluster's clock, where messages take time and need no core.

Idle time has two reasons then, and two colours: there is nothing to do yet, or it is on its way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from minidist.analysis.replay import Replayed
from minidist.analysis.steps import last_step, slots_of
from minidist.parallel.tools.schedule_check import Slot, bubble
from minidist.show.demos.pipeline.compared import KEY, MS
from minidist.show.demos.pipeline.kinds import SWAPPABLE, end_of
from minidist.show.demos.pipeline.mini import MESSAGE, Band, Chart
from minidist.show.demos.shared.gpus import DIALS, OnDemand, at_start, last_step_of, on_gpus
from minidist.show.player.scene import Cue, Frame, Question, Scene
from minidist.train.result import Run

MOMENTS = 0.25, 0.5, 1  # of the longest; the last one answers the question
LAST = len(MOMENTS) - 1
CHIP = "1 TFLOP/s"  # one chip: its speed and the link's have the same effect, the other way round
LINK, LATENCY, _ = DIALS
OWN_DIALS = replace(LINK, start=len(LINK.values) - 1), LATENCY  # begins with a link that is hardly felt


def as_gpus_would(runs: Mapping[str, Run], clock: float) -> Scene:
    """A scene with dials: all schedules but the naive one, which would make the others too small to see.

    Args:
        clock: the moment of the last frame on the scenes' clock.
    """
    logs = {kind.name: [last_step_of(rank.log) for rank in runs[kind.name].ranks] for kind in SWAPPABLE}
    return at_start(OnDemand(OWN_DIALS, lambda *words: _scene(logs, *words, clock)), OWN_DIALS)


def _scene(logs: Mapping[str, Sequence[list]], link: str, latency: str, clock: float) -> Scene:
    bands = []
    for name, recorded in logs.items():
        replayed = on_gpus(recorded, link, latency, CHIP)
        rows = slots_of(replayed.logs)
        bands.append(Band(name, rows, f"{MS * end_of(rows):.3g} ms", delays_of(replayed, rows)))
    chart, first = Chart(bands, "ms", MS), min(bands, key=lambda band: band.end)
    facts = {band.name: f"{bubble(band.rows):.0%} idle, {_share(band):.0%} for messages in flight" for band in bands}
    frames = []
    for moment in MOMENTS:
        now = chart.longest * moment
        over = moment == MOMENTS[-1]
        note = (
            f"{link}, {latency}: {first.name} is done first." if over else f"After {MS * now:.3g} ms on this cluster."
        )
        told = facts if over else dict.fromkeys(facts, "?")
        frames.append(Frame(chart.shapes(now), note, told, clock * moment))
    question = Question(
        LAST, f"Links of {link}, {latency}: which schedule is done first?", tuple(logs), list(logs).index(first.name),
        _reason(bands, first),
    )  # fmt: skip
    cues = (
        Cue(0, 2, "The same recorded ranks on another clock. Ask for each position of the dials before you turn them."),
        Cue(
            LAST,
            4,
            "Slow the link: interleaved sends a message for each of its stages, and pays for each. Raise "
            "the latency: 1F1B waits for a way there and back with every micro-batch, and GPipe does not. ZB-H1 idles "
            "least, but two halves of a backward take longer than one.",
        ),
    )
    return Scene(
        "GPUs", f"As GPUs would: the recorded runs, links of {link} and {latency}", tuple(frames),
        chart.height, KEY | {"idle: a message is in flight": MESSAGE}, f"{first.name} is done first.",
        stills=(LAST,), questions=(question,), cues=cues,
        details=f"A replay of what the ranks recorded; chips ({CHIP}) and links are scaled down like the model.",
    )  # fmt: skip


def _reason(bands: Sequence[Band], first: Band) -> str:
    most, least = (choice(bands, key=_share) for choice in (max, min))
    return (
        f"It is idle for {bubble(first.rows):.0%}. Messages in flight hold {most.name} up most "
        f"({_share(most):.0%} of its ranks' time), and {least.name} least ({_share(least):.0%})."
    )


def _share(band: Band) -> float:
    """Share of all ranks' time in which they wait for a message in flight."""
    return sum(end - begin for row in band.delays for begin, end in row) / (band.end * len(band.rows))


def delays_of(replayed: Replayed, rows: Sequence[Sequence[Slot]]) -> list[list[tuple[float, float]]]:
    """Return when each rank was idle although the message that it needed next was in flight, in the time of rows."""
    zero = _zero(replayed)
    found: list[list[tuple[float, float]]] = [[] for _ in rows]
    for rank, row in enumerate(rows):
        flights = [(flow.posted - zero, flow.arrived - zero) for flow in replayed.flows if flow.destination == rank]
        ended = 0.0
        for slot in row:
            awaited = [flight for flight in flights if ended < flight[1] <= slot.start + 1e-9]  # logs are in whole ns
            if awaited and awaited[-1][1] > slot.start - 2e-9:
                found[rank].append((max(ended, awaited[-1][0]), slot.start))
            ended = slot.end
    return found


def _zero(replayed: Replayed) -> float:
    """When the first action of the last step begins, on the clock of the replay."""
    *_, (step, _) = replayed.steps.values()
    return (
        step + min(event.start for log in last_step(replayed.logs) for event in log if "action" in event.details) / 1e9
    )
