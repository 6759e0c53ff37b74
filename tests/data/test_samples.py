"""Samples beside brute force: tokens, targets, masks and positions of each place; what is held out."""

import json
import random

import numpy as np
import pytest

from minidist.data.documents import Documents, Manifest
from minidist.data.packing import PACKINGS, PADDED, Packing
from minidist.data.samples import HELD_OUT, MOST_HELD_OUT, Samples, open_corpus, parted, targets_in
from minidist.nn.attention.tiled import TileMask, tiles
from minidist.nn.documents import any_key_seen, hidden_keys
from minidist.nn.loss import IGNORED

T = 12


def drawn(seed: int) -> Documents:
    """Documents, some with prompts: no tokens of them, some, or all."""
    rng = random.Random(seed)
    lengths = [rng.choice((1, 2, rng.randint(1, 9), rng.randint(1, 40))) for _ in range(rng.randint(1, 30))] + [2]
    prompts = [rng.choice((0, 0, rng.randint(0, length), length)) for length in lengths]
    ends = np.cumsum(lengths)
    manifest = Manifest(1, "|u1", int(ends[-1]), len(lengths), int(ends[-1]), "", (), 0)
    tokens = np.array([rng.randrange(256) for _ in range(ends[-1])], np.uint8)
    return Documents(tokens, np.stack([ends, prompts], 1), manifest)


def expected_row(samples: Samples, number: int | None) -> tuple:
    """Tokens, targets, positions and the (T, T) mask of one sample, or of none, place by place."""
    documents, places = samples.packing.documents, []
    for index, piece in enumerate([] if number is None else samples.packing.sample(number)):
        begin, _ = documents.span(piece.document)
        for position in range(piece.places):
            here = piece.first + position  # in the document
            counts = here + 1 >= documents.bounds[piece.document, 1]
            target = int(documents.tokens[begin + here + 1]) if counts else IGNORED
            places.append((index, int(documents.tokens[begin + here]), target, position))
    used = len(places)
    places += [(-1 - place, 0, IGNORED, place) for place in range(used, T)]  # padding: each sees itself alone
    piece_of = [piece for piece, *_ in places]
    sees = [
        [
            key <= query and (piece_of[key] == piece_of[query] or (not samples.alone and query < used))
            for query in range(T)
        ]
        for key in range(T)
    ]
    positions = [position if samples.restart else place for place, (*_, position) in enumerate(places)]
    return [token for _, token, *_ in places], [target for *_, target, _ in places], positions, sees


@pytest.mark.parametrize("alone, restart", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("kind", PACKINGS)
def test_every_place_has_its_token_target_position_and_mask(kind, alone, restart):
    """Up to the longest sample where others are padded to it, rounded up."""
    for seed in range(20):
        samples = Samples(Packing(drawn(seed), T, kind), alone, restart, 1 + seed % 3)
        for numbers, empty in (([*range(len(samples)), 0], 0), ([0], 0), ([0], 2)):
            count = len(numbers) + empty
            tokens, targets, documents = samples.batch(numbers, count if empty else 0)
            longest = max(sum(piece.places for piece in samples.packing.sample(number)) for number in numbers)
            end = min(T, -(-longest // (1 + seed % 3)) * (1 + seed % 3)) if kind in PADDED else T
            assert tokens.shape == targets.shape == documents.first.shape == (count, end)
            assert documents.places == T * count and (documents.positions is None) == (not restart)
            hidden = hidden_keys(documents.first, slice(0, end), slice(0, end))
            positions = documents.positions if restart else np.tile(np.arange(end), (count, 1))
            rows = [expected_row(samples, number) for number in [*numbers, *[None] * empty]]
            for found, expected in zip((tokens, targets, positions, ~hidden), zip(*rows, strict=True), strict=True):
                assert (found == np.array(expected)[(slice(None), *[slice(end)] * (found.ndim - 1))]).all()
        assert tokens.dtype == np.uint8 and targets.dtype == np.int32


def test_tiles_are_skipped_where_no_sample_of_the_micro_batch_has_a_pair():
    skipped = 0
    for seed in range(20):
        samples = Samples(Packing(drawn(seed), T, "first-fit"))
        for numbers in ([first, (first + 1) % len(samples)] for first in range(len(samples))):
            *_, documents = samples.batch(numbers)
            sees = np.array([expected_row(samples, number)[-1] for number in numbers])  # (B, keys, queries)
            for size, chunks in ((3, 2), (4, 1), (5, 1)):
                mask = TileMask(tiles(T, size, chunks), documents)
                for i, queries in enumerate(mask.parts):
                    for j, keys in enumerate(mask.parts):
                        assert mask.seen(i, j) == any_key_seen(documents.first, queries, keys)
                        assert mask.seen(i, j) == sees[:, keys, queries].any(), (seed, queries, keys)
                        assert (hidden_keys(documents.first, queries, keys) == ~sees[:, keys, queries]).all()
                        skipped += j <= i and not mask.seen(i, j)
    assert skipped > 100


@pytest.mark.parametrize("kind", PACKINGS)
def test_an_epoch_counts_every_target_that_is_in_no_prompt(kind):
    for seed in range(60):
        documents = drawn(seed)
        samples = Samples(Packing(documents, T, kind))
        _, targets, _ = samples.batch(range(len(samples)))
        expected = []
        for number in range(len(documents)):
            begin, end = documents.span(number)
            expected += documents.tokens[begin + max(1, int(documents.bounds[number, 1])) : end].tolist()
        assert sorted(targets[targets != IGNORED].tolist()) == sorted(expected)
        assert targets_in(documents) == len(expected)


def test_the_last_documents_are_held_out():
    """The fewest that have a share of the tokens are held out; all others are trained on."""
    for seed in range(200):
        documents = drawn(seed)
        training, held_out = parted(documents)
        count, total = len(training), len(documents.tokens)
        assert count >= 1 and len(held_out) >= 1 and count + len(held_out) == len(documents)
        assert (np.concatenate([training.tokens, held_out.tokens]) == documents.tokens).all()
        assert (np.concatenate([training.lengths, held_out.lengths]) == documents.lengths).all()
        assert (np.concatenate([training.bounds[:, 1], held_out.bounds[:, 1]]) == documents.bounds[:, 1]).all()
        assert len(held_out.tokens) >= total * HELD_OUT * (1 - 1e-12)
        if len(held_out) > 1 and count > 1:
            assert len(held_out.tokens) - held_out.lengths[0] <= total * HELD_OUT


def test_of_many_tokens_a_million_is_held_out():
    """Whose loss takes seconds to compute; 5 % of a large text would take longer than the training."""
    ends = np.arange(1, 41) * 1_000_000 + np.arange(40) % 3
    for bounds in (np.stack([ends, 0 * ends], 1), np.array([[ends[-1], 0]])):
        documents = Documents(np.zeros(ends[-1], np.uint8), bounds, Manifest(1, "|u1", 1, 1, 1, "", (), 0))
        training, held_out = parted(documents)
        assert MOST_HELD_OUT <= len(held_out.tokens) < 2 * MOST_HELD_OUT + 3
        assert len(training.tokens) + len(held_out.tokens) == ends[-1]


@pytest.mark.parametrize("prompt", [0, 10, 97, 100])
def test_of_one_document_its_end_is_held_out(prompt):
    tokens = np.arange(100, dtype=np.uint8)
    documents = Documents(tokens, np.array([[100, prompt]]), Manifest(1, "|u1", 100, 1, 100, "", (), 0))
    training, held_out = parted(documents)
    assert training.tokens.tolist() == list(range(95)) and held_out.tokens.tolist() == list(range(95, 100))
    assert training.bounds.tolist() == [[95, min(prompt, 95)]] and held_out.bounds.tolist() == [
        [5, max(0, prompt - 95)]
    ]


def test_of_a_short_document_as_little_is_held_out_as_has_a_target():
    documents = Documents(np.arange(30), np.array([[30, 0]]), Manifest(1, "|u1", 30, 1, 30, "", (), 0))
    assert [part.tokens.tolist() for part in parted(documents)] == [list(range(28)), [28, 29]]


def test_a_note_says_what_is_held_out_left_out_and_cut(tmp_path):
    path = tmp_path / "text"
    path.write_text("some words " * 9)
    assert open_corpus(str(path), 8, "cut").note.startswith("documents: 1, its end held out")
    lines = path.with_suffix(".jsonl")
    lines.write_text("\n".join(json.dumps({"text": "x" * length}) for length in (9, 10, 0, 10, 20)))
    told = "documents: 4, 1 of them held out, 1 empty ones left out, 3 longer than the context cut"
    assert open_corpus(str(lines), 8, "padding").note == told + "; samples in an epoch: 5"


@pytest.mark.parametrize("kind", PACKINGS)
def test_an_epoch_of_a_run_has_each_sample_once(kind, tmp_path):
    """Sorted samples come in groups, each once; the last group may not be full."""
    path = tmp_path / "text.jsonl"
    path.write_text("\n".join(json.dumps({"text": "x" * length}) for length in range(2, 49)))
    corpus = open_corpus(str(path), 8, kind)
    count, places = (4, -(-len(corpus.training) // 4) * 4) if kind == "sorted" else (1, len(corpus.training))
    for epoch in range(2):
        firsts = range(epoch * places, (epoch + 1) * places, count)
        groups = [corpus.numbers(5, first, count) for first in firsts]
        assert sorted(number for group in groups for number in group) == [*range(len(corpus.training))]
        assert kind != "sorted" or all(group == [*range(group[0], group[0] + len(group))] for group in groups)
        assert {len(corpus.micro_batch(5, first, count)[0]) for first in firsts} == {count}
    if kind == "sorted":
        assert len(corpus.training) % count  # so that there is one


def test_validation_has_all_that_is_held_out_once_and_in_order(tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text("\n".join(f'{{"text": "document {n}, of some words"}}' for n in range(100)))
    corpus = open_corpus(str(path), 16, "first-fit")
    _, held_out = parted(corpus.documents)
    expected = [held_out.tokens[slice(*held_out.span(number))].tolist() for number in range(len(held_out))]
    for count in (1, 3, 100):
        batches = list(corpus.validation_batches(count))
        assert [len(tokens) for tokens, *_ in batches[:-1]] == [count] * (len(batches) - 1)
        tokens, targets = (np.concatenate([batch[which] for batch in batches]) for which in (0, 1))
        used = targets != IGNORED
        assert tokens[used].tolist() == [token for document in expected for token in document[:-1]]
        assert targets[used].tolist() == [token for document in expected for token in document[1:]]
