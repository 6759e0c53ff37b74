"""The model as a whole: its start, sampling, and its text. (What it says when misused: ../train/refusals.txt.)"""

import hashlib

import numpy as np
import pytest

from minidist.nn.data import default_text, generate, load_corpus, micro_batch, validation_batches
from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.tensor import no_grad

TINY = GPTConfig(context=8, layers=2, heads=2, width=8)


def test_starting_weights_are_those_of_gpt2():
    model = GPT(GPTConfig(layers=8, width=64))
    for name, parameter in model.named_parameters():
        std = {"gain": 0, "bias": 0}.get(name.split(".")[-1], 0.02)
        if name.endswith(("out.weight", "proj.weight")):
            std /= 4  # sqrt(2 * 8)
        assert parameter.data.std() == pytest.approx(std, rel=0.05)
        assert parameter.data.mean() == pytest.approx(1.0 if name.endswith("gain") else 0.0, abs=0.002)
        assert parameter.name == name


def test_generated_text_repeats_by_seed_and_follows_the_distribution():
    """Temperature 0 gives the likeliest byte; of a text longer than the context the model sees the end."""
    model = GPT(TINY)
    first = generate(model, b"Hello", 12, seed=1)
    assert len(first) == 12 and first == generate(model, b"Hello", 12, seed=1) != generate(model, b"Hello", 12, seed=2)
    with no_grad():
        best = int(model.logits(np.frombuffer(b"abc", np.uint8)[None]).data[0, -1].argmax())
    assert generate(model, b"abc", 1, temperature=0) == generate(model, b"abc", 1, temperature=1e-6) == bytes([best])
    assert generate(model, b"0123456789abcdef", 5) == generate(model, b"89abcdef", 5)
    small = GPT(GPTConfig(vocab=3, context=1, heads=2, width=4))
    for parameter in small.parameters():
        parameter.data = parameter.data * 30
    logits = small.logits(np.zeros((1, 1), int)).data[0, 0].astype(float)
    expected = np.exp(logits) / np.exp(logits).sum()
    found = np.bincount([generate(small, b"\0", 1, seed)[0] for seed in range(200)], minlength=3) / 200
    # the share of 200 seeds, which are always the same, has a standard deviation of at most 0.035
    assert len(found) == 3 and np.abs(found - expected).max() < 0.1 and np.ptp(expected) > 0.2


def test_the_default_text_is_frozen_english_and_its_end_is_held_out():
    """Documents of their own, without 64 bytes that training has too. Validation goes through it once."""
    text, corpus = default_text(), load_corpus(None, 64)
    assert hashlib.sha256(text).hexdigest() == "43acdabd03f339cda8abbfa81c09a1d189a6c8e18a79fe1a73803c45e62b27ea"
    assert text.count(b" the ") > 3000 and bytes(corpus.validation).startswith(b"A1. Leaving the laptop")
    seen, held_out = (
        {bytes(part[place : place + 64]) for place in range(len(part) - 63)}
        for part in (bytes(corpus.training), bytes(corpus.validation))
    )
    assert not seen & held_out
    assert bytes(corpus.training) + bytes(corpus.validation) == text
    assert len(corpus.validation) == len(text) // 20
    batches = list(validation_batches(corpus, 5, 64))
    tokens, targets = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    count = (len(corpus.validation) - 1) // 64
    assert tokens.shape == (count, 64) and all(len(tokens) == 5 for tokens, _ in batches[:-1])
    assert bytes(tokens) == bytes(corpus.validation[: count * 64])
    assert bytes(targets) == bytes(corpus.validation[1 : count * 64 + 1])


def test_samples_are_of_consecutive_tokens_and_others_in_another_step_or_for_another_seed():
    corpus = load_corpus(None, 64)
    tokens, targets = micro_batch(corpus, 0, 3, 0, 12, 64)
    assert tokens.shape == targets.shape == (12, 64) and tokens.dtype == targets.dtype == np.uint8
    np.testing.assert_array_equal(tokens[:, 1:], targets[:, :-1])
    np.testing.assert_array_equal(micro_batch(corpus, 0, 3, 5, 7, 64)[0], tokens[5:])
    assert micro_batch(corpus, 0, 3, 5, 0, 64)[1].shape == (0, 64)
    for seed, step in ((0, 2), (1, 3)):
        assert not np.array_equal(micro_batch(corpus, seed, step, 0, 12, 64)[0], tokens)


def test_short_texts(tmp_path):
    """Every place of the training text can be drawn."""
    path = tmp_path / "text"
    path.write_bytes(bytes(range(14)))
    tiny = load_corpus(str(path), 3)
    assert bytes(tiny.training) == bytes(range(10)) and bytes(tiny.validation) == bytes(range(10, 14))
    tokens, targets = micro_batch(tiny, 0, 0, 0, 200, 3)
    assert set(tokens[:, 0].tolist()) == set(range(7)) and targets.max() == 9
    path.write_bytes(b"0123456789")
    shortest = load_corpus(str(path), 4)
    assert len(shortest.training) == len(shortest.validation) == 5
    assert len(list(validation_batches(shortest, 8, 4))) == 1
    with pytest.raises(ValueError, match=r"10 bytes, too few for a context of 5.*6 each.*at most 4"):
        load_corpus(str(path), 5)
