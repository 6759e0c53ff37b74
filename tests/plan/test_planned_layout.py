"""Planned layouts: what is written, what is illegal, and the nearest legal one that the error names."""

import pytest

from minidist.plan.layout import PlannedLayout, divisors, stages_of
from minidist.plan.models.library import model_of

MODEL = model_of("layers=12,width=960,heads=12,vocab=1000,context=240")


def test_a_layout_is_read_and_written():
    text = "dp=8,tp=8,sp=1,pp=16,schedule=interleaved,virtual=6,zero=1,recompute=selective,micro_batch=2"
    layout = PlannedLayout.parse(text, 1024)
    assert str(layout) == text and layout == PlannedLayout.parse(str(layout), 1024)
    assert (layout.world_size, layout.replicas, layout.shards, layout.stage_count) == (1024, 8, 8, 96)


def test_without_dp_a_layout_fills_the_cluster():
    assert PlannedLayout.parse("tp=8,pp=16", 16_384).dp == 128
    assert PlannedLayout.parse("cp=4", 12).dp == 3


@pytest.mark.parametrize(
    ("text", "world", "message"),
    [
        ("tb=8", 8, "'tb=8' is not key=value with a key of dp, tp, .*; did you mean 'tp'?"),
        ("tp=8,tp=4", 8, "tp is given twice"),
        ("dp=3,tp=2", 8, "dp x cp x tp x pp = 3 x 1 x 2 x 1 = 6 ranks, and the cluster has 8 GPUs: choose dp=4"),
        ("dp=2,tp=3", 8, "6 ranks, and the cluster has 8 GPUs: choose pp=1,dp=.* or tp=2,dp=4|choose"),
        ("dp=0", 8, "dp=0: must be at least 1"),
        ("dp=8,zero=4", 8, "zero=4: choose from 0, 1, 2, 3"),
        ("dp=8,recompute=some", 8, "recompute=some: the nearest is"),
        ("dp=8,attention=fast", 8, "attention=fast: the nearest is 'flash'"),
        ("dp=8,sp=1", 8, "sp=1 splits the sequence over tensor-parallel ranks, and tp=1 has none"),
        ("tp=8,zero=1", 8, "zero=1 shards over data-parallel and context-parallel ranks, and there are none"),
        ("dp=8,shard=3,zero=1", 8, "shard=3 needs ZeRO and must divide dp x cp = 8"),
        ("dp=8,ep=3", 8, "ep=3 does not divide dp=8: the nearest legal are 2 and 4"),
        ("dp=8,virtual=2", 8, "is for a pipeline, and pp=1 is none"),
        ("dp=2,pp=4,virtual=2,schedule=gpipe", 8, "virtual=2 needs schedule=interleaved"),
    ],
)
def test_layouts_that_cannot_be(text, world, message):
    with pytest.raises(ValueError, match=message):
        PlannedLayout.parse(text, world)


@pytest.mark.parametrize(
    ("text", "batch", "message"),
    [
        ("tp=5", 8, "tp=5 does not divide the 12 heads: the nearest legal are 4 and 6"),
        ("tp=12,cp=40,sp=1,cp_kind=ring", 8, "sp=1 with tp=12 does not divide 6 tokens"),
        ("cp=7", 8, "cp=7 by zigzag cuts 240 tokens into 14 parts: the nearest legal are 6 and 8"),
        ("tp=4,cp=5,cp_kind=ulysses", 8, "cp=5 by ulysses does not divide the 3 heads of a rank"),
        ("dp=2,ep=2", 8, "ep=2 shares experts, and .* has none: set ep=1"),
        ("pp=15", 8, "15 stages, and 12 layers with embedding and head make 14 at most: choose pp up to 14"),
        ("dp=3", 8, "dp=3 x micro_batch=1 does not divide the batch of 8 sequences: the nearest legal are 2 and 4"),
        ("dp=2,micro_batch=3", 8, "does not divide the batch of 8 sequences: choose a smaller micro_batch"),
        ("pp=3,virtual=2", 8, "takes micro-batches in rounds of pp=3, and a rank has 8"),
    ],
)
def test_layouts_that_do_not_fit_the_model_or_the_batch(text, batch, message):
    layout = PlannedLayout.parse(text, 0 + PlannedLayout(**_settings(text)).world_size)
    with pytest.raises(ValueError, match=message):
        layout.check(MODEL, batch)


def _settings(text: str) -> dict:
    pairs = (part.split("=") for part in text.split(","))
    return {key: int(value) if value.isdigit() else value for key, value in pairs}


def test_experts_are_shared_by_divisors():
    with pytest.raises(ValueError, match="ep=3 does not divide the 8 experts: the nearest legal are 2 and 4"):
        PlannedLayout(dp=6, ep=3).check(model_of("mixtral-8x7b"), 6)


def test_stages_have_fewer_layers_where_the_embedding_and_the_head_are():
    assert stages_of(126, 16) == [7, *[8] * 14, 7]  # Llama 3 takes one layer away from both ends
    assert stages_of(126, 128) == [0, *[1] * 126, 0]
    assert stages_of(10, 4) == [2, 3, 3, 2] and stages_of(5, 1) == [5] and stages_of(7, 2) == [4, 3]


@pytest.mark.parametrize("number", [1, 2, 36, 97, 16_384])
def test_divisors(number):
    assert divisors(number) == [n for n in range(1, number + 1) if number % n == 0]
