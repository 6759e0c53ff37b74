"""Text in, batches out; and what a model writes. A token is a byte, and a batch is a pure function of (seed, step).

The position of each sample in the text depends only on the seed, the step and the sample's number. So a batch may be
cut into micro-batches in any way, for any ranks: the samples stay the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from minidist.backend import from_host, to_host
from minidist.nn.gpt import GPT
from minidist.nn.random import DropoutRNG, generator
from minidist.nn.tensor import no_grad

HELD_OUT = 0.05  # share of the text for validation


@dataclass(frozen=True)
class Corpus:
    """A text in two parts: uint8 arrays in host memory."""

    training: np.ndarray
    validation: np.ndarray


def load_corpus(path: str | None, context: int) -> Corpus:
    """The text of a file, or the default text if ``path`` is None, with its end held out for validation.

    Args:
        path: any file; its bytes are the tokens.
        context: tokens in a sample. Each part of the text has at least one sample and its targets.

    Raises:
        ValueError: if the file cannot be read, is empty, or is too short for the context.
    """
    text = default_text() if path is None else load_text(path)
    shortest = context + 1  # a sample and one more token, the last target
    held_out = max(shortest, int(len(text) * HELD_OUT))
    if len(text) < shortest + held_out:
        longest = len(text) // 2 - 1
        shorter = f" or a context of at most {longest}" if longest > 0 else ""
        raise ValueError(
            f"{path or 'the default text'} has {len(text)} bytes, too few for a context of {context}: training and "
            f"validation need {shortest} each. Use a longer text{shorter}"
        )
    tokens = np.frombuffer(text, np.uint8)
    return Corpus(tokens[:-held_out], tokens[-held_out:])


def default_text() -> bytes:
    """The course's own prose as it was in November 2026, 400,843 bytes: chapters 0 to 15, then what is held out.

    It is never brought up to date: all fingerprints depend on it. The held-out 5 % are the two appendices and a page of
    documentation, and have no 64 bytes in common with the rest.
    """
    return Path(__file__).with_name("course.txt").read_bytes()


def load_text(path: str) -> bytes:
    """The bytes of a file.

    Raises:
        ValueError: if it cannot be read or is empty.
    """
    if Path(path).exists() and not Path(path).is_file():
        raise ValueError(f"the text {path} is not a file")  # a folder, or a device that never ends
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read the text {path}: {error.strerror}") from None
    if not text:
        raise ValueError(f"the text {path} is empty")
    return text


class MicroBatch(NamedTuple):
    """What a model takes at once.

    Attributes:
        tokens, targets: uint8 (B, T); B = 0 for one without samples.
        dropout_rng: the name of its dropout; None where there is nothing to drop.
    """

    tokens: np.ndarray
    targets: np.ndarray
    dropout_rng: DropoutRNG | None = None

    @property
    def number(self) -> int | None:
        """Which one of the step it is."""
        return None if self.dropout_rng is None else self.dropout_rng.micro_batch


def micro_batch(corpus: Corpus, seed: int, step: int, first_sample: int, count: int, context: int):
    """Some of a step's samples, from random positions in the training text.

    Args:
        first_sample, count: the samples to take, numbered from 0 over the whole step.
        context: tokens in a sample.

    Returns:
        tokens and targets, uint8 (count, context); the target of a token is the next one.
    """
    places = len(corpus.training) - context  # a sample may start anywhere except in the last `context` tokens
    samples = range(first_sample, first_sample + count)
    starts = [generator("data", seed, step, sample).integers(places) for sample in samples]
    return _samples(corpus.training, np.array(starts), context)


def validation_batches(corpus: Corpus, count: int, context: int) -> Iterator[tuple]:
    """The held-out text in samples that do not overlap, ``count`` at a time, in order.

    Yields:
        tokens and targets, uint8 (count, context); fewer samples in the last batch. A rest shorter than a sample is
        dropped.
    """
    starts = np.arange(0, len(corpus.validation) - context, context)
    for first in range(0, len(starts), count):
        yield _samples(corpus.validation, starts[first : first + count], context)


def _samples(text: np.ndarray, starts: np.ndarray, context: int):
    """Tokens and targets of the samples with these starts, on the device of ``xp``."""
    windows = text[starts[:, None] + np.arange(context + 1)]  # (count, context + 1)
    return from_host(windows[:, :-1]), from_host(windows[:, 1:])


@no_grad()
def generate(model: GPT, prompt: bytes, count: int, seed: int = 0, temperature: float = 1.0) -> bytes:
    """Continue a text byte by byte, each byte sampled from the model's distribution given the bytes before it.

    Args:
        model: a model with a vocabulary of at most 256 tokens, which are bytes.
        prompt: one byte or more. If it is longer than the context, the model sees its end.
        count: how many bytes to add.
        seed: random seed of the samples.
        temperature: divides the logits; 0 always takes the most likely byte.

    Returns:
        The ``count`` new bytes.

    Raises:
        ValueError: for an empty prompt, a negative temperature, or a vocabulary that is not bytes.
    """
    if not prompt:
        raise ValueError("generate() needs a prompt of at least one byte")
    if temperature < 0:
        raise ValueError(f"temperature must not be negative, but is {temperature}")
    if model.config.vocab > 256:
        raise ValueError(f"generate() writes bytes, and this model has a vocabulary of {model.config.vocab}")
    rng = generator("generate", seed)
    text = bytearray(prompt)
    for _ in range(count):
        tokens = from_host(np.frombuffer(bytes(text[-model.config.context :]), np.uint8)[None])  # (1, T)
        logits = to_host(model.logits(tokens).data)[0, -1].astype(np.float64)  # (vocab,)
        if temperature == 0:
            text.append(int(logits.argmax()))
        else:
            logits /= temperature
            weights = np.exp(logits - logits.max())
            text.append(int(rng.choice(len(weights), p=weights / weights.sum())))
    return bytes(text[len(prompt) :])
