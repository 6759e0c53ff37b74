"""Documents in a sample do not see each other: the probe of a leak, and what a document alone has, to the bit."""

from itertools import pairwise, product

import numpy as np
import pytest

from minidist import flops
from minidist.nn.config import GPTConfig
from minidist.nn.documents import Documents
from minidist.nn.models import model_of
from minidist.nn.precision.policy import autocast, policy_of
from minidist.nn.tensor import no_grad

SIZES = {"layers": 2, "heads": 2, "width": 12, "context": 24, "vocab": 256}
MODELS = {
    f"{arch}, {how}": GPTConfig(**SIZES, arch=arch, **settings)
    for arch, (how, settings) in product(
        ("gpt2", "llama"),
        {
            "plain": {},
            "tiles": {"attention": "tiled", "attention_tile": 5},
            "chunks": {"sequence_chunks": 4},
            "online32": {"attention": "tiled", "attention_tile": 4, "softmax": "online32"},
        }.items(),
    )
}
LENGTHS = (7, 9, 5)  # and three places of padding


def documents_of(lengths, places: int = SIZES["context"], samples: int = 1) -> Documents:
    first, positions = np.arange(places), np.arange(places)
    begin = 0
    for length in lengths:
        first[begin : begin + length], positions[begin : begin + length] = begin, np.arange(length)
        begin += length
    return Documents(np.tile(first, (samples, 1)), np.tile(positions, (samples, 1)))


def logits_of(config: GPTConfig, tokens, documents: Documents, products: str = "fast") -> np.ndarray:
    with autocast(policy_of("fp32", products)), no_grad():
        model = model_of(config)
        for number, parameter in enumerate(model.parameters()):  # far from its start: attention is not flat
            noise = np.random.default_rng(number).standard_normal(parameter.shape)
            parameter.data = (parameter.data + 0.3 * noise).astype(np.float32)
        heads = model(np.asarray(tokens)[None], documents=documents).data  # (H, 1, T, V/H)
    return np.moveaxis(heads[:, 0], 0, 1)  # (T, H, V/H)


def drawn(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, length)


@pytest.mark.parametrize("name", MODELS)
def test_a_token_of_one_document_moves_nothing_of_another(name):
    """TRL #6843's probe: two equal documents, one token of the first is changed."""
    config, document = MODELS[name], drawn(11)
    tokens = np.concatenate([document, document, np.zeros(2, int)])
    changed = tokens.copy()
    changed[4] += 1
    packed, one = documents_of((11, 11)), documents_of((22,))
    before, after = (logits_of(config, each, packed) for each in (tokens, changed))
    assert np.array_equal(before[11:], after[11:]) and np.array_equal(before[:4], after[:4])
    assert (before[4:11] != after[4:11]).any(axis=(1, 2)).all()
    before, after = (logits_of(config, each, one) for each in (tokens, changed))  # without a mask
    assert (before[11:22] != after[11:22]).any(axis=(1, 2)).all()


@pytest.mark.parametrize("name", MODELS)
def test_a_document_alone_has_the_logits_that_it_has_in_a_pack(name):
    """Fast products need its place, since a row's bits depend on it; exact ones any place that cuts it alike."""
    config, tokens, begin = MODELS[name], np.concatenate([*map(drawn, LENGTHS, range(3)), np.zeros(3, int)]), 0
    packed, exact = (logits_of(config, tokens, documents_of(LENGTHS), products) for products in ("fast", "exact"))
    for length in LENGTHS:
        own = slice(begin, begin + length)
        alone, moved, place = np.zeros(24, int), np.zeros(24, int), slice(0, length)
        alone[own] = tokens[own]
        assert np.array_equal(logits_of(config, alone, documents_of(LENGTHS))[own], packed[own])
        if size := size_of_tiles(config):  # a tile rounds its sums, so its borders must fall between the same tokens
            place = slice(begin % size, begin % size + length)
        moved[place] = tokens[own]
        padded = documents_of([1] * place.start + [length])
        if config.softmax == "exact":
            assert np.array_equal(logits_of(config, moved, padded, "exact")[place], exact[own])
        begin += length


def size_of_tiles(config: GPTConfig) -> int:
    """Tokens in a tile; 0 for plain attention."""
    if config.attention == "tiled":
        return config.attention_tile
    return config.context // config.sequence_chunks if config.sequence_chunks > 1 else 0


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("name", ["gpt2, tiles", "llama, chunks"])
def test_tiles_in_which_no_token_sees_another_are_skipped_and_not_counted(name, samples):
    config = MODELS[name]
    found = {}
    for lengths in (LENGTHS, (24,)):
        before = flops.snapshot()
        model_of(config)(np.zeros((samples, 24), int), documents=documents_of(lengths, samples=samples))
        found[lengths] = (flops.snapshot() - before)["forward"]
    visible = np.tril(np.ones((24, 24), bool)) & (documents_of(LENGTHS).first[0][:, None] <= np.arange(24))
    bounds = [*range(0, 24, size_of_tiles(config)), 24]
    tiles = [slice(*pair) for pair in pairwise(bounds)]
    causal = np.tril(np.ones((24, 24), bool))
    all_pairs, pairs = (
        sum(mask[tile].size for tile in product(tiles, tiles) if mask[tile].any()) for mask in (causal, visible)
    )
    saved = 4 * samples * config.width * config.layers * (all_pairs - pairs)
    assert found[24,] - found[LENGTHS] == saved > 0
