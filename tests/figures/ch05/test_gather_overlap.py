"""Operations and collectives of a step: what a span counts as, and how much of the one overlaps the other."""

from figures.ch05.gather_overlap import COLOURS, draw, kind_of, overlapped

from minidist.trace import Event
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run


def event(name, start, end, track="compute"):
    return Event(name, track, start, end)


def test_what_a_span_counts_as():
    kinds = {
        "forward 0": None, "backward 0": None, "BeforeBackward": None, "BeforeBackward.backward": None,
        "Linear": "forward", "Linear.backward": "backward", "optimizer": "optimizer",
    }  # fmt: skip
    assert {name: kind_of(event(name, 0, 1)) for name in kinds} == kinds
    assert kind_of(event("all_gather_into_tensor(float32, ring)", 0, 1, "communication")) == "all-gather"
    assert kind_of(event("reduce_scatter_tensor(SUM)", 0, 1, "communication")) == "reduce-scatter"
    assert kind_of(event("all_reduce(SUM)", 0, 1, "communication")) is None
    assert kind_of(event("sync gradients", 0, 1, "wait")) is None


def test_overlapped():
    log = [event("Linear", 0, 10), event("Gelu.backward", 20, 30), event("all_gather x", 5, 25, "communication")]
    assert overlapped(log, "all-gather") == 0.5
    assert overlapped(log, "reduce-scatter") == 0


def test_a_real_run(ranks):
    config = TrainConfig(layers=2, width=16, context=16, global_batch=2, micro_batch=1, steps=1)
    result = run(ranks(2), config, Layout(2, zero=3), RunOptions(trace=True))
    kinds = {kind_of(entry) for entry in result.ranks[0].log if isinstance(entry, Event)}
    assert kinds - {None} == set(COLOURS)
    (axes,) = draw({"a run": [rank.log for rank in result.ranks]}, rank=1).axes
    assert axes.get_xlim()[0] == 0 and axes.get_xlim()[1] > 0
