"""Tokenizers: a token is a byte, or defined by a tokenizer.json in Hugging Face's format.

Their package ``tokenizers`` reads such a file. It is imported only when a file is named: bytes need no package. A
trained tokenizer is a byte-level BPE, like GPT-2's (Radford et al., 2019): its first 256 tokens are the bytes, so it
has no unknown tokens, and every merge joins the pair of tokens that is most frequent in the text.
"""

import hashlib
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

TOKENIZER = "tokenizer.json"  # name of the file at Hugging Face and in checkpoints


class ByteTokenizer:
    """Tokenizer whose tokens are the bytes.

    Attributes:
        name: its name in messages.
        vocab: the number of tokens, one more than the largest.
        content: bytes of the tokenizer's file; empty, because there is none.
    """

    name, vocab, content = "the byte tokenizer", 256, b""

    @property
    def sha256(self) -> str:
        """SHA-256 of the file; it identifies the tokenizer. "" without a file."""
        return hashlib.sha256(self.content).hexdigest() if self.content else ""

    def place_to_cut(self, text: bytes, place: int) -> int:
        """Return the first place from ``place`` on where a text may be cut in two.

        Raises:
            ValueError: for a text that the tokenizer cannot split anywhere.
        """
        return place

    def encode(self, text: bytes | memoryview) -> np.ndarray:
        """Return the tokens of a text: unsigned integers (count,).

        Raises:
            ValueError: for a text that the tokenizer cannot split.
        """
        return np.frombuffer(text, np.uint8)

    def decode(self, tokens: Sequence[int]) -> bytes:
        """Return the text of some tokens."""
        return bytes(tokens)


BYTES = ByteTokenizer()


class FileTokenizer(ByteTokenizer):
    """Tokenizer of a file, for UTF-8 text. It adds no special tokens, and neither truncates nor pads."""

    def __init__(self, path: str, content: bytes) -> None:
        try:
            self.inner = _parsed(content)
        except ValueError as error:
            raise ValueError(f"the tokenizer {path} cannot be used: {error}") from None
        self.name, self.content = path, content
        self.vocab = 1 + max(self.inner.get_vocab(with_added_tokens=True).values())

    def place_to_cut(self, text: bytes, place: int) -> int:
        as_utf8(text)
        while place < len(text) and text[place] & 0b1100_0000 == 0b1000_0000:  # within a character
            place += 1
        return place

    def encode(self, text: bytes | memoryview) -> np.ndarray:
        written = as_utf8(text)
        try:
            (found,) = self.inner.encode_batch_fast([written], add_special_tokens=False)
        except Exception as error:  # the package raises nothing more specific
            raise ValueError(f"the tokenizer {self.name} cannot split the text: {error}") from None
        return np.array(found.ids, np.uint32)

    def decode(self, tokens: Sequence[int]) -> bytes:
        return self.inner.decode(list(tokens), skip_special_tokens=False).encode()


def open_tokenizer(path: str | None) -> ByteTokenizer:
    """Open the tokenizer of a file; ``path`` None is the byte tokenizer.

    Raises:
        ValueError: if the file cannot be read or is not a tokenizer, or the package that reads it is missing.
    """
    return BYTES if path is None else FileTokenizer(path, read_file(path, "tokenizer"))


def read_file(path: str, what: str) -> bytes:
    """Return the bytes of a file.

    Raises:
        ValueError: if it cannot be read or is empty; the message says ``what`` it is.
    """
    if Path(path).exists() and not Path(path).is_file():
        raise ValueError(f"the {what} {path} is not a file")  # a folder, or a device that never ends
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read the {what} {path}: {error.strerror}") from None
    if not content:
        raise ValueError(f"the {what} {path} is empty")
    return content


def as_utf8(text: bytes | memoryview) -> str:
    """Decode a text from UTF-8.

    Raises:
        ValueError: if it is not UTF-8.
    """
    try:
        return str(text, "utf-8")
    except UnicodeDecodeError as error:
        found = f"0x{text[error.start]:02x} at byte {error.start:,}"
        raise ValueError(f"the text is not UTF-8, which a tokenizer needs: {found}") from None


def package():
    """Import Hugging Face's package ``tokenizers``.

    Raises:
        ValueError: if it is not installed; the message says how to install it.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a rank has one core, and threads do not survive a fork
    try:
        import tokenizers
    except ImportError:
        raise ValueError("it needs the package tokenizers: pip install 'minidist[tokenizers]'") from None
    return tokenizers


@lru_cache(maxsize=1)
def _parsed(content: bytes):
    try:
        found = package().Tokenizer.from_str(content.decode())
    except UnicodeDecodeError:
        raise ValueError("it is not JSON") from None
    except ValueError:
        raise
    except Exception as error:  # the package raises nothing more specific
        raise ValueError(str(error)) from None
    if getattr(found.model, "dropout", None):  # it skips merges at random: ranks would get different tokens
        found.model.dropout = None
    found.no_truncation()
    found.no_padding()
    if not found.get_vocab_size():
        raise ValueError("it has no tokens")
    return found


def train_tokenizer(text: bytes, vocab: int) -> bytes:
    """Train a byte-level BPE with ``vocab`` tokens on a text, and return its tokenizer.json: one result for one text.

    Raises:
        ValueError: for a text that is not UTF-8, and for a number of tokens below 256 or more than the text yields.
    """
    if vocab < BYTES.vocab:
        raise ValueError(f"vocab must be at least {BYTES.vocab}, got {vocab}: a vocabulary begins with the bytes")
    written = as_utf8(text)
    most = min(vocab, BYTES.vocab + len(text) // 2)  # each merge shortens the text by two tokens or more
    levels = package().pre_tokenizers.ByteLevel
    found = package().Tokenizer(package().models.BPE())
    found.pre_tokenizer = levels(add_prefix_space=False)
    found.decoder = package().decoders.ByteLevel()
    trainer = package().trainers.BpeTrainer(
        vocab_size=most, min_frequency=2, show_progress=False, initial_alphabet=sorted(levels.alphabet())
    )
    found.train_from_iterator([written], trainer)
    if found.get_vocab_size() < vocab:
        raise ValueError(
            f"the text has pairs that occur twice for {found.get_vocab_size():,} tokens, but not for {vocab:,}"
        )
    return found.to_str(pretty=True).encode()
