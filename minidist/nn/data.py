"""Text in, batches out. A token is a byte, and a batch is a pure function of (seed, step).

Each sample's place in the text is drawn by the sample's own number in the step. So a batch may be cut into
micro-batches in any way, and those dealt to any ranks: the same samples come out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minidist.backend import from_host
from minidist.nn.random import generator

HELD_OUT = 0.05  # of the text, for validation


@dataclass(frozen=True)
class Corpus:
    """A text, cut in two: uint8 arrays on the host."""

    training: np.ndarray
    validation: np.ndarray


def load_corpus(path: str | None, context: int) -> Corpus:
    """The text in the file, or the default text if ``path`` is None, with its end held out for validation.

    Args:
        path: a file of any kind; its bytes are the tokens.
        context: the number of tokens in a sample. Both parts of the text hold at least one sample and its targets.

    Raises:
        ValueError: if there is no such file to read, or it is empty or too short for the context.
        RuntimeError: if there is no default text.
    """
    text = default_text() if path is None else load_text(path)
    shortest = context + 1  # a sample, and the token after its last
    held_out = max(shortest, int(len(text) * HELD_OUT))
    if len(text) < shortest + held_out:
        raise ValueError(
            f"{path or 'the default text'} has {len(text)} bytes, too few for a context of {context}: training and "
            f"validation need {shortest} each. Use a longer text or a context of at most {max(len(text) // 2 - 1, 0)}"
        )
    tokens = np.frombuffer(text, np.uint8)
    return Corpus(tokens[:-held_out], tokens[-held_out:])


def default_text() -> bytes:
    """About 450 KB of English that comes with CPython: the topics of its ``help()``.

    Raises:
        RuntimeError: if this Python was packaged without them.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise RuntimeError(
            "this Python comes without pydoc_data.topics, the default text: pass a text of your own with --text FILE"
        ) from None
    return "\n".join(topics[name] for name in sorted(topics)).encode()


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


def micro_batch(corpus: Corpus, seed: int, step: int, first_sample: int, count: int, context: int):
    """Some of a step's samples, taken from random places of the training text.

    Args:
        first_sample, count: which of the step's samples, numbered from 0 over the whole step.
        context: tokens in a sample.

    Returns:
        tokens and targets, uint8 (count, context); a target is the token after.
    """
    places = len(corpus.training) - context  # a sample may start anywhere but in the last `context` tokens
    starts = [
        generator("data", seed, step, sample).integers(places) for sample in range(first_sample, first_sample + count)
    ]
    return _samples(corpus.training, np.array(starts), context)


def validation_batches(corpus: Corpus, count: int, context: int) -> Iterator[tuple]:
    """The held-out text from beginning to end in samples that do not overlap, ``count`` at a time, the last fewer.

    Yields:
        tokens and targets, uint8 (count, context). What is left over at the end, less than one sample, is not used.
    """
    starts = np.arange(0, len(corpus.validation) - context, context)
    for first in range(0, len(starts), count):
        yield _samples(corpus.validation, starts[first : first + count], context)


def _samples(text: np.ndarray, starts: np.ndarray, context: int):
    """Tokens and targets of the samples that start there, where ``xp`` computes."""
    windows = text[starts[:, None] + np.arange(context + 1)]  # (count, context + 1)
    return from_host(windows[:, :-1]), from_host(windows[:, 1:])
