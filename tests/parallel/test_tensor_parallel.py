"""Tensor and sequence parallelism: parts of models, what they hold, and models that are put together wrongly."""

from dataclasses import replace

import numpy as np
import pytest

from minidist.nn.gpt import GPT, GPTConfig
from minidist.parallel import tensor
from minidist.parallel.axis import parallelize_module
from minidist.parallel.tensor import TensorParallel
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.parallelize import ParallelModel, gpt_plan
from minidist.train.trainer import run

LIMIT = 60
EVEN = GPTConfig(layers=3, heads=4, width=16, context=8)
CONFIG = TrainConfig(layers=2, heads=6, width=24, context=12, steps=1, global_batch=2, micro_batch=2, dropout=0.2)


def test_tensor_parallel_ranks_are_neighbours(ranks):
    """Megatron-LM's order: tp changes fastest, so that its many messages stay on one machine."""
    result = run(ranks(4), replace(CONFIG, global_batch=14), Layout(dp=2, tp=2))
    sent = result.ranks[0].traffic.sent[:, 1]  # messages to each rank
    assert sent[1] > 50 > sent[2] > 0 == sent[3]


def test_what_the_norm_joins_is_exact(ranks):
    def main(world):
        axis = TensorParallel(world, tensor.tensor_plan())
        model = ParallelModel(GPT(EVEN), world, [axis], lambda count: ([0], 1), 1)
        return model.global_sum((1 << 60) + world.rank), model.global_max(float(world.rank))

    assert ranks(4).run(main, timeout=LIMIT) == [((1 << 62) + 6, 3.0)] * 4


def test_sequence_parallelism_saves_activations(ranks):
    """1/N of what is in blocks, and with sp 1/N of what LayerNorm and dropout keep, too."""
    size, tokens, norms = 3, 2 * CONFIG.context, 2 * CONFIG.layers + 1
    one, tp, sp = (
        run(ranks(layout.world_size), CONFIG, layout).ranks[0].memory["activations"]
        for layout in (Layout(), Layout(tp=size), Layout(tp=size, sp=1))
    )
    kept = norms * tokens * (CONFIG.width + 1) * 4  # by LayerNorm: a normalised copy, and a number for each token
    gains = norms * CONFIG.width * 4  # copies of the gains
    masks = norms * tokens * CONFIG.width  # a byte for each element: after the embeddings, and two a block
    assert one > tp and tp - sp == (kept + masks) - (kept + masks) // size - gains


def test_a_plan_that_names_nothing():
    for path in ("blocks.*.mixer", "decoder.*.mlp.fc", "blocks.*.mlp.up.fc", "embeddings.position"):
        with pytest.raises(ValueError) as caught:
            parallelize_module(GPT(EVEN), None, {path: lambda module, group: module})
        assert str(caught.value).startswith(f"the plan names '{path}'")


def parts_and_halves(world):
    """What goes wrong when a model is put together by hand."""
    tokens = np.arange(16).reshape(2, 8)

    def message(make) -> str:
        with pytest.raises(ValueError) as caught:
            make()
        return str(caught.value)

    def twice():
        for _ in range(2):
            TensorParallel(world, tensor.tensor_plan()).apply(model)

    def without(*names):
        plan = {name: style for name, style in tensor.tensor_plan().items() if name not in names}
        return parallelize_module(GPT(EVEN), world, plan)

    model, split = GPT(EVEN), GPT(EVEN)
    TensorParallel(world, gpt_plan(True, np.float64)).apply(split)
    return [
        message(twice), message(lambda: model.logits(tokens)), message(lambda: without("embeddings.token")),
        message(lambda: without("head")(tokens, tokens)), message(lambda: split(tokens[:, :7], tokens[:, :7])),
    ]  # fmt: skip


def test_models_put_together_wrongly(ranks):
    assert ranks(2).run(parts_and_halves, timeout=LIMIT) == 2 * [
        [
            "embeddings.token.weight is split already: parallelize_module takes full ones",
            "only 128 of the 256 tokens' logits are in this process",
            "the head's weight is the embedding's: a plan for the head needs one for the embedding first",
            "cross_entropy: only 128 of 256 tokens' logits are here",
            "7 tokens cannot be split over 2 sequence-parallel ranks: pass a multiple of 2",
        ]
    ]
