"""Tensor and sequence parallelism: models that are put together wrongly."""

import numpy as np
import pytest

from minidist.nn.gpt import GPT, GPTConfig
from minidist.parallel import tensor
from minidist.parallel.axis import parallelize_module
from minidist.parallel.tensor import TensorParallel
from minidist.train.parallelize import gpt_plan

LIMIT = 60
EVEN = GPTConfig(layers=3, heads=4, width=16, context=8)


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
