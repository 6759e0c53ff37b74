"""The reference that all layouts must match, one process, against PyTorch: what a run computes, in float64.

Whole runs are compared, by their losses, weights, moments and biases after several steps: so the loss, all gradients,
accumulation, clipping, the schedule, the optimizers, weight decay, experts with their losses, and evaluation. Their
settings are drawn so that every two values of two settings meet in one of the runs.
"""

import random
from dataclasses import replace
from functools import cache, partial
from math import inf
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from minidist.data.packing import PACKINGS, RANDOM
from minidist.nn.data import validation_batches
from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.optim.optimizers import SGD
from minidist.nn.precision import policy
from minidist.train import share
from minidist.train.config import LR_SCHEDULES, TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.share import batch_of, corpus_of
from minidist.train.trainer import run, train_rank
from minidist.verify.matrix import covering

DOCUMENTS = str(Path(__file__).parents[1] / "verify" / "documents.jsonl")
SHORT = 4  # runs; the first of a covering set have the most pairs
SETTINGS = {
    "layers": (1, 2, 3), "heads": (1, 2, 3), "width": (6, 12), "context": (4, 8), "sequence_chunks": (1, 2, 4),
    "attention": ("plain", "tiled"), "attention_tile": (3, 128), "global_batch": (4, 6), "micro_batch": (1, 2),
    "rampup_batch_size": ("", "2,2,8"), "optimizer": ("adamw", "lamb", "sgd"), "weight_decay": (0.0, 0.1),
    "clip": (inf, 0.3), "warmup": (0, 2), "loss_scale": (0.0, 1024.0), "recompute": ("none", "selective", "full"),
    "experts": (0, 4, 6), "lr_schedule": LR_SCHEDULES,
    "packing": (RANDOM, *PACKINGS), "document_mask": (0, 1), "restart_positions": (0, 1),
}  # fmt: skip
MIXTURES = {
    "top_k": (1, 2, 3), "gate": ("softmax", "sigmoid"), "capacity": (None, 1.0), "shared_expert": (0, 12),
    "moe_every": (1, 2), "aux_loss": (0.0, 0.5), "aux_scope": ("micro_batch", "global_batch"), "z_loss": (0.0, 0.1),
    "bias_rate": (0.0, 2.0**-4), "nodes": ((1, 0), (2, 1), (2, 2)),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def oracle():
    """PyTorch takes seconds to import: not in each process that collects the tests, and in no rank."""
    pytest.importorskip("torch")
    global torch, torch_gpt
    import torch
    import torch_gpt


def config_of(row: dict) -> tuple[TrainConfig, Layout]:
    """The run of these settings. Raises ValueError where they do not go together."""
    settings = {name: value for name, value in row.items() if value is not None}
    nodes, precision = settings.pop("nodes", (1, 0)), "fp16" if row["loss_scale"] else "fp32"
    layout = Layout(recompute=settings.pop("recompute"))
    if row["experts"]:
        settings |= {"expert_hidden": 12, "expert_nodes": nodes[0], "route_nodes": nodes[1]}
    text = None if settings["packing"] == RANDOM else DOCUMENTS
    settings["lr_decay_steps"] = int(row["lr_schedule"] == "wsd")
    return TrainConfig(steps=5, lr=0.03, precision=precision, text=text, **settings), layout


@cache
def cases() -> list[dict]:
    """Rows of settings in which every two values meet."""
    rng, rows = random.Random(0), []
    while len(rows) < 600:
        row = {name: rng.choice(values) for name, values in SETTINGS.items()}
        row |= {name: rng.choice(values) if row["experts"] else None for name, values in MIXTURES.items()}
        try:
            config_of(row)
        except ValueError:
            continue
        rows.append(row)
    return [rows[place] for place in covering(rows)]


def shaken(config: GPTConfig, seed: int = 0, dtype=np.float64) -> GPT:
    """A model far from its start: biases that are not 0, gains that are not 1, attention that is not flat."""
    model = GPT(config, seed, dtype)
    for index, parameter in enumerate(model.parameters()):
        noise = np.random.default_rng(index).standard_normal(parameter.shape)
        parameter.data = (parameter.data + 0.3 * noise).astype(dtype)
    return model


def train_shaken(world, config, layout, options):
    """Train such a model in float64, in which float16 means no more than a scaled loss."""
    wide = {"fp16": policy.Policy("fp16", scales_loss=True)}
    with mock.patch.object(share, "model_of", shaken), mock.patch.dict(policy.POLICIES, wide):
        return train_rank(world, config, layout, options)


def train_shaken_in_float32(*arguments):
    with mock.patch.object(share, "model_of", partial(shaken, dtype=np.float32)):
        return train_rank(*arguments)


def without_rng(tokens, targets, rng, documents) -> tuple:
    return tokens, targets, documents


def compare(ranks, row: dict, text: str) -> None:
    config, layout = config_of(row)
    config = replace(config, text=config.text or text)
    options = RunOptions(stop_after=config.steps - 1, validate=True)
    found = run(ranks(1), config, layout, options, rank_function=train_shaken).ranks[0]
    corpus, start = corpus_of(config), shaken(config.model)
    arrays = {name: parameter.data for name, parameter in start.named_parameters()}
    losses, expected, model = torch_gpt.train(config, arrays, lambda *at: without_rng(*batch_of(corpus, config, *at)))
    # float64 has 53 bits. Norms, for clipping and for LAMB, are exact to about 2^-40, and there are five steps.
    assert found.losses == pytest.approx(losses, rel=1e-9), row
    assert found.arrays.keys() == expected.keys(), row
    for name, array in expected.items():
        error, largest = np.abs(found.arrays[name] - array).max(), np.abs(array).max()
        assert error <= 1e-9 * max(largest, 1e-3), (name, row)
    if config.packing == RANDOM:
        held_out = list(validation_batches(corpus, 8, config.context))  # eight samples share the experts' capacity
    else:
        held_out = list(corpus.validation_batches(8))
    counts = [(batch[1] >= 0).sum() for batch in held_out]
    losses_of_batches = [model.loss(*batch)[0].item() for batch in held_out]
    assert sum(counts) > 9 * config.context
    assert found.validation_loss == pytest.approx(np.average(losses_of_batches, weights=counts), rel=1e-8), row
    if not config.experts and config.precision == "fp32":  # a last bit sends no token to another expert
        single = run(ranks(1), config, layout, rank_function=train_shaken_in_float32).losses
        assert single == pytest.approx(losses, rel=1e-4), row  # of 24 bits, less what five steps make of the last


@pytest.mark.parametrize(
    "some", [slice(SHORT), pytest.param(slice(SHORT, None), marks=pytest.mark.long)], ids=["some", "all others"]
)
def test_training_is_that_of_pytorch(ranks, tmp_path, some):
    text = tmp_path / "text"
    text.write_bytes(np.random.default_rng(0).integers(0, 256, 2000, np.uint8).tobytes())
    for row in cases()[some]:
        compare(ranks, row, str(text))


def test_gradients_at_odd_sizes():
    """A vocabulary that heads do not divide, a block of it that is all padding, one token, less than the context."""
    for config, length in (
        (GPTConfig(vocab=256, context=9, layers=1, heads=6, width=18), 5),
        (GPTConfig(vocab=5, context=1, layers=3, heads=1, width=1), 1),
        (GPTConfig(vocab=3, context=7, layers=1, heads=4, width=4), 7),
    ):
        model = shaken(config)
        theirs = torch_gpt.Model(config, {name: p.data for name, p in model.named_parameters()})
        ours = SGD(model.parameters(), lr=0.1, momentum=0.9)
        other = torch.optim.SGD(theirs.weights.values(), lr=0.1, momentum=0.9)
        for step in range(3):
            batch = np.random.default_rng(step).integers(0, config.vocab, (2, 3, length))
            losses = model(*batch), theirs.loss(*batch)[0]
            for each, loss in zip((model, other), losses, strict=True):
                each.zero_grad()
                loss.backward()
            assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-10)
            for name, parameter in model.named_parameters():
                right = theirs.weights[name].grad.numpy()  # sums of up to some hundred terms around 1, in float64
                np.testing.assert_allclose(parameter.grad, right, rtol=1e-9, atol=1e-12, err_msg=name)
            ours.step()
            other.step()
        assert model.logits(batch[0]).shape == (3, length, config.vocab)
