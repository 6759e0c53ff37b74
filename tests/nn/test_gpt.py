"""The model as a whole: names, shapes, training, sampling, and what it says when misused."""

import numpy as np
import pytest

from minidist.nn.data import load_corpus, micro_batch
from minidist.nn.gpt import GPT, GPTConfig, generate
from minidist.nn.layers import Dropout, Module, Parameter
from minidist.nn.optim.clip import clip_grad_norm
from minidist.nn.optim.optimizers import AdamW, average_gradients
from minidist.nn.random import DropoutRNG
from minidist.nn.tensor import Tensor, no_grad

TINY = GPTConfig(context=8, layers=2, heads=2, width=8)


def test_parameters_are_named_in_order_and_the_tied_one_once():
    model = GPT(TINY)
    names = [name for name, _ in model.named_parameters()]
    block = [
        "norm1.gain",
        "norm1.bias",
        "attention.qkv.weight",
        "attention.qkv.bias",
        "attention.out.weight",
        "attention.out.bias",
        "norm2.gain",
        "norm2.bias",
        "mlp.fc.weight",
        "mlp.fc.bias",
        "mlp.proj.weight",
        "mlp.proj.bias",
    ]
    assert names == [
        "embeddings.token.weight",
        "embeddings.position",
        *(f"blocks.{layer}.{name}" for layer in range(2) for name in block),
        "head.norm.gain",
        "head.norm.bias",
    ]
    assert all(parameter.name == name for name, parameter in model.named_parameters())


def test_weights_that_can_be_split_have_the_heads_first():
    shapes = {name: parameter.shape for name, parameter in GPT(GPTConfig(heads=6, width=24)).named_parameters()}
    assert shapes["embeddings.token.weight"] == (6, 43, 24)
    assert shapes["blocks.0.attention.qkv.weight"] == (6, 24, 12)
    assert shapes["blocks.0.attention.qkv.bias"] == (6, 12)
    assert shapes["blocks.0.attention.out.weight"] == (6, 4, 24)
    assert shapes["blocks.0.mlp.fc.weight"] == (6, 24, 16)
    assert shapes["blocks.0.mlp.proj.weight"] == (6, 16, 24)
    assert shapes["blocks.0.mlp.proj.bias"] == (24,)


def test_starting_weights_are_those_of_gpt2():
    model = GPT(GPTConfig(layers=8, width=64))
    for name, parameter in model.named_parameters():
        std = {"gain": 0, "bias": 0}.get(name.split(".")[-1], 0.02)
        if name.endswith(("out.weight", "proj.weight")):
            std /= 4  # sqrt(2 * 8)
        assert parameter.data.std() == pytest.approx(std, rel=0.05)
        assert parameter.data.mean() == pytest.approx(1.0 if name.endswith("gain") else 0.0, abs=0.002)


def test_float32_stays_float32():
    model = GPT(GPTConfig(context=8, layers=1, heads=2, width=8, dropout=0.1))
    tokens = np.zeros((1, 8), np.uint8)
    loss = model(tokens, tokens, DropoutRNG(0, 0, 0))
    assert loss.dtype == np.float32 and loss.shape == ()
    unvisited = [loss.grad_fn]
    while unvisited:
        node = unvisited.pop()
        assert node.dtype == np.float32, node.name
        unvisited += [source for source in node.sources if source is not None and not isinstance(source, Tensor)]
    loss.backward()
    assert all(parameter.grad.dtype == np.float64 for parameter in model.parameters())
    average_gradients(model.parameters(), 1)
    clip_grad_norm(model.parameters(), 1e-3)
    AdamW(model.parameters(), lr=0.1).step()
    assert all(parameter.data.dtype == parameter.grad.dtype == np.float32 for parameter in model.parameters())


def test_a_token_does_not_see_those_after_it():
    model = GPT(TINY)
    tokens = np.arange(16).reshape(2, 8)
    before = model.logits(tokens).data
    tokens[:, 5] = 77
    after = model.logits(tokens).data
    np.testing.assert_array_equal(before[:, :5], after[:, :5])
    assert (before[:, 5:] != after[:, 5:]).any(axis=-1).all()


@pytest.mark.long
def test_training_lowers_the_loss_below_that_of_single_bytes():
    config = GPTConfig(context=32, layers=1, heads=2, width=32, dropout=0.05)
    corpus = load_corpus(None, config.context)
    counts = np.bincount(corpus.training, minlength=256)
    shares = counts[counts > 0] / counts.sum()
    entropy = -(shares * np.log(shares)).sum()
    model = GPT(config)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(400):
        model.zero_grad()
        loss = model(*micro_batch(corpus, 0, step, 0, 8, config.context), DropoutRNG(0, step, 0))
        loss.backward()
        average_gradients(model.parameters(), 1)
        clip_grad_norm(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-10:]) < 0.9 * entropy < losses[0]


def test_dropout_keeps_the_mean_and_is_off_without_noise():
    layer = Dropout(0.25, 0, "here")
    x = Tensor(np.ones((100, 100), np.float32))
    assert layer(x, None) is x and Dropout(0.0, 0, "here")(x, DropoutRNG(0, 0, 0)) is x
    y = layer(x, DropoutRNG(0, 0, 0)).data
    assert set(np.unique(y).tolist()) == {0.0, np.float32(4 / 3)} and y.mean() == pytest.approx(1, abs=0.03)


class TestGenerate:
    def test_repeats_by_seed(self):
        model = GPT(TINY)
        first = generate(model, b"Hello", 12, seed=1)
        assert len(first) == 12 and first == generate(model, b"Hello", 12, seed=1) != generate(
            model, b"Hello", 12, seed=2
        )

    def test_at_temperature_0_it_takes_the_likeliest(self):
        model = GPT(TINY)
        with no_grad():
            best = int(model.logits(np.frombuffer(b"abc", np.uint8)[None]).data[0, -1].argmax())
        assert generate(model, b"abc", 1, temperature=0) == bytes([best])
        assert generate(model, b"abc", 1, temperature=1e-6) == bytes([best])

    def test_sees_the_end_of_a_text_longer_than_the_context(self):
        model = GPT(TINY)
        assert generate(model, b"0123456789abcdef", 5) == generate(model, b"89abcdef", 5)

    def test_a_vocabulary_smaller_than_a_byte(self):
        assert max(generate(GPT(GPTConfig(vocab=3, context=4, heads=2, width=4)), b"\0", 50)) == 2

    def test_errors(self):
        model = GPT(TINY)
        with pytest.raises(ValueError, match="at least one byte"):
            generate(model, b"", 3)
        with pytest.raises(ValueError, match="negative"):
            generate(model, b"a", 3, temperature=-1)
        with pytest.raises(ValueError, match="vocabulary of 257"):
            generate(GPT(GPTConfig(vocab=257, context=4, heads=2, width=4)), b"a", 1)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"width": 66}, "width 66 is not divisible by 4 heads.*64 or 68"),
        ({"width": 2}, "width 2 is not divisible by 4 heads.*fit: 4$"),
        ({"layers": 0}, "layers must be a whole number of at least 1, not 0"),
        ({"heads": 2.0}, "heads must be a whole number of at least 1, not 2.0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, not 1.0"),
    ],
)
def test_sizes_that_do_not_fit(sizes, message):
    with pytest.raises(ValueError, match=message):
        GPTConfig(**sizes)


class TestErrors:
    model = GPT(TINY)
    good = np.zeros((2, 8), np.int64)

    def test_too_many_tokens(self):
        long = np.zeros((2, 9), np.int64)
        with pytest.raises(ValueError, match="9 tokens do not fit a context of 8"):
            self.model(long, long)

    def test_tokens_out_of_range(self):
        for bad in (-1, 256):
            with pytest.raises(ValueError, match="from 0 to 255"):
                self.model(np.full((2, 8), bad), self.good)
            with pytest.raises(ValueError, match="from 0 to 255"):
                self.model(self.good, np.full((2, 8), bad))

    def test_tokens_of_another_shape(self):
        for bad in (self.good[0], self.good[:, :0], self.good[None]):
            with pytest.raises(ValueError, match="tokens must have shape"):
                self.model(bad, bad)
        with pytest.raises(ValueError, match=r"targets of shape \(2, 7\)"):
            self.model(self.good, self.good[:, :7])

    def test_linear_of_another_shape(self):
        with pytest.raises(ValueError, match="needs 2 heads along its first axis and 8 values along its last"):
            self.model.blocks[0].attention.qkv(Tensor(np.zeros((1, 8, 9), np.float32)))


def test_shared_parameters_and_lists_in_a_module():
    class Pair(Module):
        def __init__(self):
            self.parts = [Parameter((1,)), Parameter((2,))]
            self.again = self.parts[0]
            self.other = [1, "not a part"]

    pair = Pair()
    assert [name for name, _ in pair.named_parameters()] == ["parts.0", "parts.1"]
    for parameter in pair.parameters():
        parameter.grad = np.zeros(parameter.shape)
    pair.zero_grad()
    assert [parameter.grad for parameter in pair.parameters()] == [None, None]
