"""The collectives that tensor parallelism calls, and what a rank computes between them.

A block has two halves, attention and MLP. f is at the entrance of a half and g at its exit. With tp alone, each is one
all-reduce, g in forward and f in backward. With sp, the entrance is an all-gather and the exit a reduce-scatter;
backward has the reverse.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from minidist.analysis.steps import kind_of as phase_of
from minidist.show.demos.shared.on_gpus import DROPPED, communications
from minidist.trace import Event
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout

PHASES = ("forward", "backward")
NORM = "norm"  # what sp computes on each rank's own tokens: LayerNorm, dropout and residual
DROPPED_G, DROPPED_GAIN = f"{DROPPED} g", f"{DROPPED} sum of a gain's gradient"


def places(phase: str, layers: int, sequence: bool) -> list[str]:
    """Return what a rank computes in a phase, "forward" or "backward", between collectives on activations.

    The phase begins and ends with compute, so there is one collective fewer than there are places.
    """
    halves = [f"{half} {layer}" for layer in range(layers) for half in ("attention", "MLP")]
    if phase == "backward":
        halves.reverse()
    if sequence:
        halves = [place for half in halves for place in (NORM, half)] + [NORM]
    return [*halves, "head"] if phase == "forward" else ["head", *halves, "embeddings"]


def kind_of(event: Event, config: TrainConfig) -> str:
    """Return "all-reduce", "all-gather" or "reduce-scatter" for a collective of f or g; "" for smaller ones."""
    if event.name.startswith("all_gather_into_tensor"):
        return "all-gather"
    if event.name.startswith("reduce_scatter_tensor"):
        return "reduce-scatter"
    summed = f"all_reduce(SUM, float64 {(config.micro_batch, config.context, config.width)}"
    return "all-reduce" if event.name.startswith((summed, DROPPED_G)) else ""


class Part(NamedTuple):
    """A part of forward or backward in which a rank computes, or in which it communicates."""

    event: Event
    phase: str  # "forward" or "backward"
    kind: str  # "compute", or that of a collective (``kind_of``)
    place: str  # what is computed; for a collective, what was computed before it


def parts(log: Sequence[Event], config: TrainConfig, layout: Layout) -> list[Part]:
    """Return the parts of one rank's forward and backward, in order. Everything that is not a collective is compute."""
    found = []
    for phase in PHASES:
        around = next(event for event in log if phase_of(event) == phase)
        inside = [event for event in communications(log) if around.start <= event.start < around.end]
        kinds = [kind_of(event, config) for event in inside]
        names = places(phase, config.layers, bool(layout.sp))
        now = [names[number] for number in accumulate(map(bool, kinds), initial=0)]
        edges = zip([around.start, *(e.end for e in inside)], [*(e.start for e in inside), around.end], strict=True)
        found += [
            Part(Event("", "compute", *edge), phase, "compute", place) for edge, place in zip(edges, now, strict=True)
        ]
        found += [Part(event, phase, kind, place) for event, kind, place in zip(inside, kinds, now[:-1], strict=True)]
    return sorted(found, key=lambda part: part.event.start)


def calls(layers: int, sequence: bool) -> dict[str, int]:
    """Collective calls of a micro-batch, by kind: twice per block in forward, twice in backward, and for the head."""
    if sequence:
        return {"all-gather": 4 * layers + 2, "reduce-scatter": 4 * layers + 1}
    return {"all-reduce": 4 * layers + 1}
