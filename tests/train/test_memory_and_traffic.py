"""What precision and recomputation save, in bytes of a real run: the four buckets, and what is sent."""

from dataclasses import replace

import pytest

from minidist.nn.gpt import GPT
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run

CONFIG = TrainConfig(
    layers=4, heads=2, width=32, context=16, global_batch=4, micro_batch=1, steps=2, dropout=0.1
)  # fmt: skip
PARAMETERS = sum(parameter.size for parameter in GPT(CONFIG.model).parameters())


def memory(ranks, text: str, precision: str) -> dict[str, float]:
    """Bytes a parameter of rank 0, by kind; of activations all bytes."""
    layout = Layout.parse(text)
    found = run(ranks(layout.world_size), replace(CONFIG, precision=precision), layout).ranks[0].memory
    return {kind: count / (1 if kind == "activations" else PARAMETERS) for kind, count in found.items()}


@pytest.mark.parametrize(
    ("text", "precision", "parameters", "gradients", "optimizer"),
    [
        # gradients: a float64 sum of 8 bytes; for a moment its float32 average beside it, 4
        ("dp=1", "fp32", 4, 12, 8),  # the moments
        ("dp=1", "bf16", 2, 12, 12),  # the moments and the master weights
        ("dp=1", "fp16", 2, 12, 12),
        ("dp=4", "bf16", 2, 12, 12),
        # of a shard, a fourth: the moments and the masters with stage 1; and its sum, beside what is summed
        ("dp=4,zero=1", "fp32", 4, 8 + 8 / 4, 8 / 4),
        ("dp=4,zero=1", "bf16", 2, 8 + 8 / 4, 12 / 4),
    ],
)
def test_bytes_a_parameter(ranks, text, precision, parameters, gradients, optimizer):
    found = memory(ranks, text, precision)
    assert (found["parameters"], found["gradients"], found["optimizer"]) == (parameters, gradients, optimizer)


def test_zero_3_keeps_masters_alone(ranks):
    """In 16 bits the shard is float32 and the optimizer's; the parameters are there only while a unit runs."""
    wide, small = (memory(ranks, "dp=4,zero=3", precision) for precision in ("fp32", "bf16"))
    assert small["optimizer"] == pytest.approx(12 / 4, abs=0.01) and wide["optimizer"] == pytest.approx(2, abs=0.01)
    assert small["parameters"] == pytest.approx((wide["parameters"] - 4 / 4) / 2, abs=0.01)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp8"])
def test_activations_are_halved(ranks, precision):
    wide, small = (memory(ranks, "dp=1", name)["activations"] for name in ("fp32", precision))
    # less than half of what is not a mask, and more: masks and tokens stay as they are, queries are kept once
    assert 0.4 * wide < small < 0.55 * wide


def test_recomputation_falls_as_predicted(ranks):
    for precision in ("fp32", "bf16"):
        none, selective, full = (
            memory(ranks, f"recompute={mode}", precision)["activations"] for mode in ("none", "selective", "full")
        )
        assert full < selective < none
        assert full < none / 2  # one block of four at a time, and what the head keeps


def sent(ranks, text: str, precision: str, name: str, axis: str) -> tuple[int, set[str]]:
    """Bytes that rank 0 sends in a step for one kind of call, and their dtypes; single numbers apart."""
    layout = Layout.parse(text)
    result = run(ranks(layout.world_size), replace(CONFIG, precision=precision), layout)
    rows = [row for row in result.ranks[0].collectives if (row["name"], row["axis"]) == (name, axis)]
    rows = [row for row in rows if row["elements"] > 1]
    return sum(row["bytes_sent"] for row in rows), {row["dtype"] for row in rows}


@pytest.mark.long
@pytest.mark.parametrize(
    "precision", ["bf16", *(pytest.param(name, marks=pytest.mark.long) for name in ("fp16", "fp8"))]
)
@pytest.mark.parametrize(
    ("text", "name", "axis"),
    [
        ("pp=2", "send", "pp"),
        ("dp=2,zero=1", "all_gather_into_tensor", "shard"),
        ("dp=2,zero=3", "all_gather_into_tensor", "shard"),
        ("tp=2,sp=1", "all_gather_into_tensor", "tp"),
    ],
)
def test_messages_are_halved(ranks, precision, text, name, axis):
    wide, small = (sent(ranks, text, p, name, axis) for p in ("fp32", precision))
    assert wide[0] > 0 and small[0] * 2 == wide[0]
    assert (wide[1], small[1]) == ({"float32"}, {"uint16"})


def test_sums_are_not(ranks):
    """They are taken in reduce_dtype, whatever the precision."""
    for text, name, axis in (("dp=2", "all_reduce", "dp"), ("dp=2,zero=1", "reduce_scatter_tensor", "shard")):
        found = [sent(ranks, text, precision, name, axis) for precision in ("fp32", "bf16")]
        assert found[0] == found[1] and found[0][1] == {"float64"}


def test_recomputation_sends_forward_again(ranks):
    """Of tp's two all-reduces a block in forward, and two in backward, full recomputation repeats those in forward."""
    found = {}
    for mode in ("none", "full"):
        result = run(ranks(2), CONFIG, Layout(tp=2, recompute=mode))
        rows = result.ranks[0].collectives
        found[mode] = sum(row["calls"] for row in rows if row["elements"] == 16 * 32 and row["dtype"] == "float64")
    blocks, micro_batches = CONFIG.layers, CONFIG.global_batch
    assert found["full"] - found["none"] == 2 * blocks * micro_batches
