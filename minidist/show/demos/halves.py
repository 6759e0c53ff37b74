"""Which collectives tensor parallelism calls, and what a rank computes between them.

A block has two halves, attention and MLP. f leads into a half and g out of it. With tp alone each is an all-reduce, g
in forward and f in backward; with sp an all-gather leads in and a reduce-scatter out, and backward goes the other way.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from minidist.analysis.steps import kind_of as phase_of
from minidist.show.demos import lanes
from minidist.trace import Event
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout

PHASES = ("forward", "backward")
NORM = "norm"  # what sp leaves to each rank's own tokens: LayerNorm, dropout and residual
DROPPED_G, DROPPED_GAIN = f"{lanes.DROPPED} g", f"{lanes.DROPPED} sum of a gain's gradient"


def places(phase: str, layers: int, sequence: bool) -> list[str]:
    """What a rank computes in a phase, "forward" or "backward", from one collective on activations to the next.

    The first begins the phase and the last ends it, so that there is one collective less.
    """
    halves = [f"{half} {layer}" for layer in range(layers) for half in ("attention", "MLP")]
    if phase == "backward":
        halves.reverse()
    if sequence:
        halves = [place for half in halves for place in (NORM, half)] + [NORM]
    return [*halves, "head"] if phase == "forward" else ["head", *halves, "embeddings"]


def kind_of(event: Event, config: TrainConfig) -> str:
    """Of f's and g's collectives, "all-reduce", "all-gather" or "reduce-scatter"; "" for smaller ones."""
    if event.name.startswith("all_gather_into_tensor"):
        return "all-gather"
    if event.name.startswith("reduce_scatter_tensor"):
        return "reduce-scatter"
    summed = f"all_reduce(SUM, float64 {(config.micro_batch, config.context, config.width)}"
    return "all-reduce" if event.name.startswith((summed, DROPPED_G)) else ""


class Part(NamedTuple):
    """A stretch of forward or backward in which a rank computes, or in which it communicates."""

    event: Event
    phase: str  # "forward" or "backward"
    kind: str  # "compute", or that of a collective, as of ``kind_of``
    place: str  # what is computed; of a collective, before it


def parts(log: Sequence[Event], config: TrainConfig, layout: Layout) -> list[Part]:
    """All of one rank's forward and backward, in order. What is no collective is compute."""
    found = []
    for phase in PHASES:
        around = next(event for event in log if phase_of(event) == phase)
        inside = [event for event in lanes.communications(log) if around.start <= event.start < around.end]
        kinds = [kind_of(event, config) for event in inside]
        names = places(phase, config.layers, bool(layout.sp))
        now = [names[number] for number in accumulate(map(bool, kinds), initial=0)]
        edges = zip([around.start, *(e.end for e in inside)], [*(e.start for e in inside), around.end], strict=True)
        found += [Part(Event("", "compute", *edge), phase, "compute", place)
                  for edge, place in zip(edges, now, strict=True)]  # fmt: skip
        found += [Part(event, phase, kind, place) for event, kind, place in zip(inside, kinds, now[:-1], strict=True)]
    return sorted(found, key=lambda part: part.event.start)


def calls(layers: int, sequence: bool) -> dict[str, int]:
    """How often a micro-batch calls each of them: twice a block in forward, twice in backward, and for the head."""
    if sequence:
        return {"all-gather": 4 * layers + 2, "reduce-scatter": 4 * layers + 1}
    return {"all-reduce": 4 * layers + 1}


def nbytes(config: TrainConfig, ranks: int, sequence: bool) -> int:
    """What all ranks together send for them: sums go as float64, and what is gathered as float32.

    Of an array of M bytes an all-reduce sends 2 (N-1) M, and its halves, reduce-scatter and all-gather, (N-1) M each.
    """
    elements = config.micro_batch * config.context * config.width
    each = {"all-reduce": 2 * 8, "all-gather": 4, "reduce-scatter": 8}
    return sum(count * each[kind] for kind, count in calls(config.layers, sequence).items()) * (ranks - 1) * elements


def sentence(part: Part, ranks: int) -> str:
    """What a collective does, and to what."""
    event, phase, kind, place = part
    where = f"{phase.capitalize()}, {place}"
    if lanes.is_dropped(event):
        if kind:
            return f"{where}: g is left out, and every rank goes on with its own part of the sum."
        return "Backward: the gradient of a LayerNorm's gain is not summed, and stays that of a rank's own tokens."
    if kind == "all-reduce":
        if phase == "forward":
            own = "heads" if place.startswith("attention") else "hidden units"
            return f"{where}: every rank has computed with its own {own}. g adds the parts up, and compute waits."
        return f"{where}: f adds up the ranks' gradients of what came in, and compute waits."
    if kind == "all-gather":
        what = "tokens, to compute with its own heads" if phase == "forward" else "tokens' gradients"
        return f"{phase.capitalize()}: every rank gathers all {what}."
    what = "parts" if phase == "forward" else "gradients of what came in"
    return f"{where}: the ranks' {what} are added up, and each keeps 1/{ranks} of the tokens."
