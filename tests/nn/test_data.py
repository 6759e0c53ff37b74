"""Text and batches."""

import sys

import numpy as np
import pytest

from minidist.nn.data import default_text, load_corpus, load_text, micro_batch, validation_batches


@pytest.fixture(scope="module")
def corpus():
    return load_corpus(None, 64)


def test_default_text_is_a_few_hundred_kilobytes_of_english():
    text = default_text()
    assert 300_000 < len(text) < 1_000_000
    assert text.count(b" the ") > 3000


def test_the_end_is_held_out(corpus):
    text = default_text()
    assert bytes(corpus.training) + bytes(corpus.validation) == text
    assert 0.04 < len(corpus.validation) / len(text) < 0.06


def test_any_cut_of_a_batch_sees_the_same_samples(corpus):
    whole = micro_batch(corpus, 0, 3, 0, 12, 64)
    for sizes in ([4, 4, 4], [1, 5, 6], [1] * 12):
        starts = np.cumsum([0, *sizes[:-1]])
        parts = [micro_batch(corpus, 0, 3, int(start), size, 64) for start, size in zip(starts, sizes, strict=True)]
        for expected, *found in zip(whole, *parts, strict=True):
            np.testing.assert_array_equal(np.concatenate(found), expected)


def test_batches_differ_by_step_and_seed(corpus):
    first, _ = micro_batch(corpus, 0, 0, 0, 4, 64)
    for seed, step in ((0, 1), (1, 0)):
        other, _ = micro_batch(corpus, seed, step, 0, 4, 64)
        assert not np.array_equal(first, other)


def test_targets_are_the_tokens_after(corpus):
    tokens, targets = micro_batch(corpus, 0, 0, 0, 3, 16)
    assert tokens.shape == targets.shape == (3, 16) and tokens.dtype == targets.dtype == np.uint8
    np.testing.assert_array_equal(tokens[:, 1:], targets[:, :-1])


def test_every_place_of_the_training_text_can_be_drawn(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(bytes(range(14)))
    tiny = load_corpus(str(path), 3)
    assert bytes(tiny.training) == bytes(range(10)) and bytes(tiny.validation) == bytes(range(10, 14))
    tokens, targets = micro_batch(tiny, 0, 0, 0, 200, 3)
    assert set(tokens[:, 0].tolist()) == set(range(7)) and targets.max() == 9


def test_validation_goes_through_the_held_out_text_once(corpus):
    batches = list(validation_batches(corpus, 5, 64))
    tokens = np.concatenate([tokens for tokens, _ in batches])
    targets = np.concatenate([targets for _, targets in batches])
    count = (len(corpus.validation) - 1) // 64
    assert tokens.shape == (count, 64)
    assert bytes(tokens) == bytes(corpus.validation[: count * 64])
    assert bytes(targets) == bytes(corpus.validation[1 : count * 64 + 1])
    assert all(len(tokens) == 5 for tokens, _ in batches[:-1])


def test_the_shortest_text_that_fits(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"0123456789")
    shortest = load_corpus(str(path), 4)
    assert len(shortest.training) == len(shortest.validation) == 5
    assert len(list(validation_batches(shortest, 8, 4))) == 1
    assert bytes(micro_batch(shortest, 0, 0, 0, 1, 4)[0][0]) == b"0123"
    with pytest.raises(ValueError, match=r"10 bytes, too few for a context of 5.*6 each.*at most 4"):
        load_corpus(str(path), 5)
    path.write_bytes(b"xyz")  # too short for any context
    with pytest.raises(ValueError, match=r"2 each\. Use a longer text$"):
        load_corpus(str(path), 1)


def test_errors(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"nowhere\.txt: No such file"):
        load_text(str(tmp_path / "nowhere.txt"))
    with pytest.raises(ValueError, match=r"the text .* is not a file"):
        load_text(str(tmp_path))
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="empty is empty"):
        load_corpus(str(tmp_path / "empty"), 4)
    with pytest.raises(ValueError, match=r"the default text has .* too few"):
        load_corpus(None, 10**6)
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(RuntimeError, match="--text FILE"):
        default_text()
