"""A transformer block from a real run: its operations in order, and the collectives in their places."""

import pytest
from figures.ch06.block import COMMUNICATION, Call, block, draw, operations

from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

ATTENTION = ["LayerNorm", "CopyToHeads", "Linear", "CausalAttention", "ReduceFromHeads", "Residual"]
MLP = ["LayerNorm", "CopyToHeads", "Linear", "Gelu", "ReduceFromHeads", "Residual"]
ELEMENTS = 16 * 24  # of a micro-batch of one sample


@pytest.mark.parametrize(
    ("layout", "forward", "backward"),
    [
        ("tp=2", {5: "all_reduce", 11: "all_reduce"}, {1: "all_reduce", 7: "all_reduce"}),
        (
            "tp=2,sp=1",
            dict.fromkeys((1, 7), "all_gather_into_tensor") | dict.fromkeys((5, 11), "reduce_scatter_tensor"),
            dict.fromkeys((1, 7), "reduce_scatter_tensor") | dict.fromkeys((5, 11), "all_gather_into_tensor"),
        ),
    ],
)
@pytest.mark.parametrize("layers", [1, 2])
def test_a_real_run(ranks, layers, layout, forward, backward):
    config = TrainConfig(layers=layers, heads=4, width=24, context=16, global_batch=1, micro_batch=1, steps=1)
    for rank in run(ranks(2), config, Layout.parse(layout), RunOptions(trace=True)).ranks:
        names, there, back = block(rank.log, smallest=4 * ELEMENTS)
        assert names == ATTENTION + MLP
        assert {call.place: call.name for call in there} == forward
        assert {call.place: call.name for call in back} == backward
        assert {call.elements for call in there + back} == {ELEMENTS}
        assert operations(rank.log).count("CausalAttention") == layers


def test_boxes():
    calls = [Call("all_reduce", 5, ELEMENTS)]
    shares = [(1, 1), (1, 1), (1, 0.5), (1, 0.5), (1, 1), (0.5, 1)]
    (axes,) = draw(ATTENTION, shares, {"forward": calls}, 2).axes
    from matplotlib.colors import to_hex
    from matplotlib.patches import Rectangle

    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    colours = [to_hex(box.get_facecolor()).upper() for box in boxes]
    bars = [box for box, colour in zip(boxes, colours, strict=True) if colour == COMMUNICATION]
    assert [round(bar.get_x() + bar.get_width() / 2, 9) for bar in bars] == [5]
    held = [box for box, colour in zip(boxes, colours, strict=True) if colour not in (COMMUNICATION, "#F0F0F0")]
    areas = [box.get_width() * box.get_height() / (0.66 * 0.8) for box in held]
    assert [round(area, 9) for area in areas] == [share for pair in shares for share in (pair[0] * pair[1],) * 2]
    cut = [held[4], held[5]]  # the two ranks' halves of the third operation are side by side
    assert round(cut[1].get_x() - cut[0].get_x(), 9) == round(cut[0].get_width(), 9)
