"""Text in, batches out; and the text that a model generates. A batch is a pure function of (seed, step).

The position of each sample in the text depends only on the seed, the step and the sample's number. So a batch may be
cut into micro-batches in any way, for any ranks: the samples stay the same.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from minidist.backend import from_host, to_host
from minidist.nn.documents import Documents
from minidist.nn.gpt import GPT
from minidist.nn.random import DropoutRNG, generator
from minidist.nn.tensor import no_grad
from minidist.nn.tokenizer import BYTES, ByteTokenizer, open_tokenizer, read_file

HELD_OUT = 0.05  # share of the text for validation


@dataclass(frozen=True)
class Corpus:
    """Tokens of a text in two parts, unsigned integers in host memory.

    Attributes:
        bytes_per_token: mean number of bytes per token of the validation text.
        tokenizer: the tokenizer that split the text.
    """

    training: np.ndarray
    validation: np.ndarray
    bytes_per_token: float = 1.0
    tokenizer: ByteTokenizer = BYTES
    note = ""  # printed for the user

    @property
    def sha256(self) -> str:
        """SHA-256 of all tokens; it identifies the text."""
        sha = hashlib.sha256(self.training.data)
        sha.update(self.validation.data)
        return sha.hexdigest()


def load_corpus(path: str | None, context: int, tokenizer: str | None = None) -> Corpus:
    """Load the text of a file, or the default text if ``path`` is None, and hold out its end for validation.

    The text is cut before it is tokenized, so that all tokenizers hold out the same text.

    Args:
        path: any file; with a tokenizer it must be UTF-8.
        context: tokens in a sample. Each part of the text has at least one sample and its targets.
        tokenizer: the tokenizer's file; None for bytes.

    Raises:
        ValueError: if a file cannot be read, is empty, or is too short for the context.
    """
    text = default_text() if path is None else read_file(path, "text")
    by = open_tokenizer(tokenizer)
    shortest = context + 1  # a sample and one more token, the last target
    held_out = max(shortest, int(len(text) * HELD_OUT))
    if len(text) < shortest + held_out:
        raise _too_short(path, f"{len(text)} bytes", context, len(text) // 2 - 1)
    validation = np.empty(0)
    while len(validation) < shortest and held_out <= len(text):
        cut = by.place_to_cut(text, len(text) - held_out)
        validation = by.encode(memoryview(text)[cut:])
        # tokens have several bytes, so the part may be too short: hold out more in proportion
        held_out = -(-held_out * shortest // max(1, len(validation)))
    training = by.encode(memoryview(text)[:cut])
    if min(len(training), len(validation)) < shortest:
        count = len(training) + len(validation)
        raise _too_short(path, f"{count} tokens", context, min(count // 2, context) - 1)
    return Corpus(training, validation, (len(text) - cut) / len(validation), by)


def _too_short(path: str | None, length: str, context: int, longest: int) -> ValueError:
    shorter = f" or a context of at most {longest}" if longest > 0 else ""
    return ValueError(
        f"{path or 'the default text'} has {length}, too few for a context of {context}: training and validation need "
        f"{context + 1} each. Use a longer text{shorter}"
    )


def default_text() -> bytes:
    """Return the course's own prose as of November 2026, 400,843 bytes: chapters 0 to 15, then the held-out part.

    It is never updated: all fingerprints depend on it. The held-out 5 % are the two appendices and a page of
    documentation, and have no 64 bytes in common with the rest.
    """
    return Path(__file__).with_name("course.txt").read_bytes()


class MicroBatch(NamedTuple):
    """Input of one forward pass.

    Attributes:
        tokens, targets: integers (B, T); B = 0 for a micro-batch without samples. A target that does not count is
            ``IGNORED`` (nn/loss.py).
        dropout_rng: names the dropout of this micro-batch; None for no dropout.
        documents: where the samples' documents are; None if each sample is one.
    """

    tokens: np.ndarray
    targets: np.ndarray
    dropout_rng: DropoutRNG | None = None
    documents: Documents | None = None

    @property
    def number(self) -> int | None:
        """Number of the micro-batch within its step; None without dropout."""
        return None if self.dropout_rng is None else self.dropout_rng.micro_batch


def micro_batch(corpus: Corpus, seed: int, step: int, first_sample: int, count: int, context: int):
    """Return some of a step's samples, from random positions in the training text.

    Args:
        first_sample, count: the samples to take, numbered from 0 over the whole step.
        context: tokens in a sample.

    Returns:
        tokens and targets, unsigned integers (count, context); the target of a token is the next one.
    """
    places = len(corpus.training) - context  # a sample may start anywhere except in the last `context` tokens
    samples = range(first_sample, first_sample + count)
    starts = [generator("data", seed, step, sample).integers(places) for sample in samples]
    return _samples(corpus.training, np.array(starts, np.int64), context)


def validation_batches(corpus: Corpus, count: int, context: int) -> Iterator[tuple]:
    """Yield the held-out text in samples that do not overlap, ``count`` at a time, in order.

    Yields:
        tokens and targets, unsigned integers (count, context); fewer samples in the last batch. A remainder shorter
        than a sample is dropped.
    """
    starts = np.arange(0, len(corpus.validation) - context, context)
    for first in range(0, len(starts), count):
        yield _samples(corpus.validation, starts[first : first + count], context)


def _samples(text: np.ndarray, starts: np.ndarray, context: int):
    windows = text[starts[:, None] + np.arange(context + 1)]  # (count, context + 1)
    return windows[:, :-1], windows[:, 1:]


@no_grad()
def generate(
    model: GPT, prompt: bytes, count: int, seed: int = 0, temperature: float = 1.0,
    tokenizer: ByteTokenizer | None = None,
) -> bytes:  # fmt: skip
    """Continue a text token by token, each sampled from the model's distribution given the preceding tokens.

    Args:
        prompt: one token or more. If it is longer than the context, the model sees its end.
        count: how many tokens to add.
        seed: random seed of the samples.
        temperature: divides the logits; 0 always takes the most likely token.
        tokenizer: the model's tokenizer; None for bytes, in a vocabulary of at most 256.

    Returns:
        The text of the ``count`` new tokens.

    Raises:
        ValueError: for an empty prompt, a temperature below 0 or NaN, or a vocabulary beyond bytes without a tokenizer.
    """
    if not temperature >= 0:
        raise ValueError(f"temperature must be at least 0, got {temperature}")
    if tokenizer is None and model.config.vocab > BYTES.vocab:
        raise ValueError(f"generate() writes bytes, and this model has a vocabulary of {model.config.vocab}")
    by = tokenizer or BYTES
    first = by.encode(prompt)
    if not len(first):
        raise ValueError(f"generate() needs a prompt of at least one {'byte' if by is BYTES else 'token'}")
    rng, tokens = generator("generate", seed), first.tolist()
    for _ in range(count):
        seen = from_host(np.array([tokens[-model.config.context :]], first.dtype))  # (1, T)
        logits = to_host(model.logits(seen).data)[0, -1, : by.vocab].astype(np.float64)  # (vocab,)
        if temperature == 0:
            tokens.append(int(logits.argmax()))
        else:
            logits /= temperature
            weights = np.exp(logits - logits.max())
            tokens.append(int(rng.choice(len(weights), p=weights / weights.sum())))
    before, text = by.decode(tokens[: len(first)]), by.decode(tokens)
    return text[len(before) :] if text.startswith(before) else by.decode(tokens[len(first) :])
