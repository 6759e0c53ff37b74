"""Tokens that are not bytes, against Hugging Face's package itself. (Refusals that need no package: ../train/.)"""

import json
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from math import log
from pathlib import Path

import numpy as np
import pytest

from minidist.nn.data import default_text, generate, load_corpus
from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.tensor import no_grad
from minidist.nn.tokenizer import BYTES, FileTokenizer, open_tokenizer, train_tokenizer
from minidist.train.config import TrainConfig
from minidist.train.measuring.evaluate import validation_loss

tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers: pip install 'minidist[tokenizers]'")

TEXT = "Hé, all the ranks rank all the ranks: \U0001f642 " * 40
VOCAB = 271  # prime


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A text, and a tokenizer trained on it."""
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "text").write_text(TEXT, encoding="utf-8")
    (folder / "tokenizer.json").write_bytes(train_tokenizer(TEXT.encode(), VOCAB))
    return str(folder / "text"), str(folder / "tokenizer.json")


def changed(file: str, **changes) -> FileTokenizer:
    """The tokenizer with another value of some entries, or of its model's."""
    content = json.loads(Path(file).read_text(encoding="utf-8"))
    for name, value in changes.items():
        (content["model"] if name in content["model"] else content)[name] = value
    return FileTokenizer("changed", json.dumps(content).encode())


def test_the_parts_of_a_text_become_the_tokens_that_the_package_makes_of_them(files):
    """Cut in the same place as bytes are, unless that is within a character: then behind it."""
    text, file = files
    theirs, whole = tokenizers.Tokenizer.from_file(file), TEXT.encode()
    plain, corpus = load_corpus(text, 8), load_corpus(text, 8, file)
    parts = [theirs.decode(part.tolist()) for part in (corpus.training, corpus.validation)]
    assert "".join(parts) == TEXT and corpus.tokenizer.vocab == theirs.get_vocab_size() == VOCAB
    for part, tokens in zip(parts, (corpus.training, corpus.validation), strict=True):
        assert tokens.tolist() == theirs.encode(part).ids and tokens.max() > 255
    held_out = len(parts[1].encode())
    assert 0 <= len(plain.validation) - held_out < 4 and corpus.bytes_per_token == held_out / len(corpus.validation)
    assert (plain.tokenizer, plain.bytes_per_token) == (BYTES, 1.0) and bytes(plain.training) in whole
    within = {whole[-size] & 0xC0 for size in range(1, len(whole)) if size % 7 == 0}
    assert 0x80 in within
    for size in range(1, 60):  # wherever the cut falls
        place = corpus.tokenizer.place_to_cut(whole, len(whole) - size)
        assert whole[place:].decode() in TEXT and 0 <= place - len(whole) + size < 4


def test_a_short_text_holds_out_more_until_it_has_the_tokens_of_a_sample(files, tmp_path):
    text, file = files
    count = len(open_tokenizer(file).encode(TEXT.encode()))
    for context in (5, 40, count // 2 - 20):
        corpus = load_corpus(text, context, file)
        assert context < len(corpus.validation) < context + 50 and len(corpus.training) > context
    unknown = {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9}
    content = {"version": "1.0", "added_tokens": [], "model": unknown | {"vocab": {"a": 0}}}  # any text is one token
    (tmp_path / "one.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="has 2 tokens, too few for a context of 8: training and validation need 9"):
        load_corpus(text, 8, str(tmp_path / "one.json"))
    with pytest.raises(ValueError, match=rf"has \d+ tokens, too few for a context of {count}: .* at most \d+$"):
        load_corpus(text, count, file)
    (tmp_path / "latin-1").write_text("ranks, caf\xe9 " * 40, encoding="latin-1")
    with pytest.raises(ValueError, match="not UTF-8, which a tokenizer needs: 0xe9 at byte 10"):
        load_corpus(str(tmp_path / "latin-1"), 8, file)


def test_what_a_file_does_beside_splitting_is_left_out(files):
    """Ends of texts, cuts, padding; and merges that are dropped by chance, which would differ from rank to rank."""
    _, file = files
    right = open_tokenizer(file).encode(TEXT.encode()).tolist()
    first, all_of_it = {"SpecialToken": {"id": "a", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    ends = {"type": "TemplateProcessing", "single": [first, all_of_it, first], "pair": []}
    ends["special_tokens"] = {"a": {"id": "a", "ids": [5], "tokens": ["a"]}}
    cut = {"max_length": 3, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    pad = {"strategy": {"Fixed": 9999}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
    pad |= {"pad_type_id": 0, "pad_token": "a"}
    for settings in ({"truncation": cut}, {"padding": pad}, {"dropout": 0.5}, {"post_processor": ends}):
        found = changed(file, **settings)
        assert found.encode(TEXT.encode()).tolist() == right and found.sha256 != open_tokenizer(file).sha256
    added = {"id": VOCAB, "content": "<end>", "special": True}
    added |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    more = changed(file, added_tokens=[added])
    assert more.vocab == VOCAB + 1 and more.encode(b"a<end>").tolist()[1:] == [VOCAB]
    assert more.decode([VOCAB]) == b"<end>" and more.decode([VOCAB + 1]) == b""
    numbers = json.loads(Path(file).read_text(encoding="utf-8"))["model"]["vocab"]
    gap = changed(file, vocab={token: 400 if number == VOCAB - 1 else number for token, number in numbers.items()})
    assert gap.vocab == 401  # by the largest token


def test_training_takes_the_most_frequent_pairs_and_is_the_same_everywhere(tmp_path):
    """All bytes are tokens, so every text comes back."""
    content = train_tokenizer(TEXT.encode(), VOCAB)
    script = "import sys; from minidist.nn.tokenizer import *; "
    script += f"sys.stdout.buffer.write(train_tokenizer(sys.stdin.buffer.read(), {VOCAB}))"
    for parallel in ("true", "false"):
        done = subprocess.run(
            [sys.executable, "-c", script], input=TEXT.encode(), capture_output=True, check=True, timeout=300,
            env={"TOKENIZERS_PARALLELISM": parallel, "PYTHONPATH": ":".join(sys.path)},
        )  # fmt: skip
        assert done.stdout == content
    found = FileTokenizer("x", content)
    for text in (TEXT, "\x00\t\r\n\n  \x7f", "ज़रूरत 中文 \ufffd", ""):
        assert found.decode(found.encode(text.encode()).tolist()) == text.encode()
    assert sorted(found.encode(bytes(range(128))).tolist()) == sorted(set(found.encode(bytes(range(128))).tolist()))
    words = Counter(" " + word for word in TEXT.split())
    pairs = sum((Counter({pair: n}) for word, n in words.items() for pair in pairwise(word)), Counter())
    first = "".join(json.loads(content)["model"]["merges"][0]).replace("Ġ", " ")
    assert pairs[tuple(first)] == max(pairs.values())
    with pytest.raises(ValueError, match=r"pairs that occur twice for \d+ tokens, but not for 10,000,000,000,000$"):
        train_tokenizer(TEXT.encode(), 10**13)
    assert FileTokenizer("x", train_tokenizer(b"\n", 256)).vocab == 256


def test_bits_per_byte_do_not_depend_on_the_tokens(files):
    """A model that has learned nothing takes log2(V) bits for a token, by hand, however many bytes the token has."""
    for tokenizer, vocab in ((None, 256), (files[1], VOCAB)):
        config = TrainConfig(layers=1, heads=2, width=4, context=8, vocab=vocab)
        model, corpus = GPT(config.model), load_corpus(files[0], 8, tokenizer)
        model.embeddings.token.weight.data[:] = 0
        nats = validation_loss(model, corpus, config)
        assert nats == pytest.approx(log(vocab), rel=1e-6)  # float32
        held_out = len(corpus.tokenizer.decode(corpus.validation.tolist()))
        bits = np.log2(vocab) * len(corpus.validation) / held_out
        assert nats / log(2) / corpus.bytes_per_token == pytest.approx(bits, rel=1e-6)
    assert bits < 8


def test_generated_tokens_are_the_likeliest_and_become_text(files):
    model, tokenizer = GPT(GPTConfig(context=8, heads=2, width=8, vocab=VOCAB + 6)), open_tokenizer(files[1])
    for seed in range(3):
        for parameter in model.parameters():
            parameter.data = np.random.default_rng(seed).standard_normal(parameter.shape, np.float32)
        tokens = tokenizer.encode(b"all the").tolist()
        start = len(tokenizer.decode(tokens))
        for _ in range(5):
            with no_grad():
                logits = model.logits(np.array([tokens[-8:]])).data[0, -1]
            tokens.append(int(logits[:VOCAB].argmax()))  # the rest is no token of the file's
        found = generate(model, b"all the", 5, temperature=0, tokenizer=tokenizer)
        assert found == tokenizer.decode(tokens)[start:]
    plain = GPT(GPTConfig(context=8, heads=2, width=8, vocab=300))
    assert len(generate(plain, b"a", 50, tokenizer=BYTES)) == 50  # of the 300 tokens, bytes
    with pytest.raises(ValueError, match="at least one token"):
        generate(model, b"", 1, tokenizer=tokenizer)


def test_the_course_text_is_cut_where_bytes_are():
    found = FileTokenizer("x", train_tokenizer(default_text()[:20_000], 300))
    text = default_text()
    place = len(text) - len(text) // 20
    assert found.place_to_cut(text, place) == place
