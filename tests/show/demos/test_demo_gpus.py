"""A recorded step on the clock of the dials: what each of them changes."""

import pytest

from minidist.analysis.clock.report import report
from minidist.show.demos.shared.gpus import CHIPS, DIALS, LATENCIES, LINKS, at_start, on_gpus, variants_of
from minidist.show.player.scene import Frame, Scene
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

CONFIG = TrainConfig(layers=1, heads=2, width=16, context=8, global_batch=2, micro_batch=1, steps=1)


@pytest.fixture(scope="module")
def logs(ranks):
    return [rank.log for rank in run(ranks(2), CONFIG, Layout(dp=2), RunOptions(trace=True)).ranks]


def test_a_faster_link_chip_or_less_latency_shortens_the_step(logs):
    def seconds(link="0.1 GB/s", latency="100 µs", chip="0.1 TFLOP/s") -> float:
        return report(on_gpus(logs, link, latency, chip)).seconds

    assert all(
        a > b for a, b in zip([seconds(link=x) for x in LINKS], [seconds(link=x) for x in LINKS][1:], strict=False)
    )
    for name, values in (("latency", list(LATENCIES)[::-1]), ("chip", CHIPS)):
        slow, *_, fast = (seconds(**{name: value}) for value in values)
        assert slow > fast


def test_every_position_has_its_variant(logs):
    seen = []

    def scene_of(replayed) -> Scene:
        seen.append(replayed.topology.links["gpu0", "switch"])
        return Scene(str(len(seen)), "", (Frame((), ""),), 1)

    variants = variants_of(logs, scene_of)
    assert len(variants) == len(LINKS) * len(LATENCIES) * len(CHIPS) == len({one.name for one in variants})
    assert [link.bandwidth for link in seen[:: len(variants) // len(LINKS)]] == list(LINKS.values())
    start = at_start(variants)
    assert start.dials == DIALS and len(start.variants) == len(variants)
    assert seen[int(start.name) - 1].bandwidth == LINKS[DIALS[0].values[DIALS[0].start]]
