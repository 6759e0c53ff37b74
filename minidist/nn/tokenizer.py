"""What a token is: a byte, or what a tokenizer.json of Hugging Face's says.

Their package ``tokenizers`` reads such a file, and is imported where one is named: bytes need nothing. A trained
tokenizer is a byte-level BPE, as GPT-2's (Radford et al., 2019): its first 256 tokens are the bytes, so it has no
unknown ones, and every merge joins the pair of tokens that is most frequent in the text.
"""

import hashlib
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

TOKENIZER = "tokenizer.json"  # what Hugging Face and checkpoints call the file


class ByteTokenizer:
    """Each byte is a token.

    Attributes:
        name: for people.
        vocab: the number of tokens, and one more than the largest.
        content: of the file that says so; empty, because there is none.
    """

    name, vocab, content = "the byte tokenizer", 256, b""

    @property
    def sha256(self) -> str:
        """What tells two tokenizers apart: the SHA-256 of the file; "" without one."""
        return hashlib.sha256(self.content).hexdigest() if self.content else ""

    def place_to_cut(self, text: bytes, place: int) -> int:
        """The first place from ``place`` on where a text may be cut in two.

        Raises:
            ValueError: for a text that it can never split.
        """
        return place

    def encode(self, text: bytes | memoryview) -> np.ndarray:
        """The tokens of a text: unsigned integers (count,).

        Raises:
            ValueError: for a text that it cannot split.
        """
        return np.frombuffer(text, np.uint8)

    def decode(self, tokens: Sequence[int]) -> bytes:
        """The text of tokens."""
        return bytes(tokens)


BYTES = ByteTokenizer()


class FileTokenizer(ByteTokenizer):
    """The tokens of a file, in UTF-8 text. What it adds to the ends of a text, cuts off or pads is left out."""

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
        except Exception as error:  # the package has no kinds of them
            raise ValueError(f"the tokenizer {self.name} cannot split the text: {error}") from None
        return np.array(found.ids, np.uint32)

    def decode(self, tokens: Sequence[int]) -> bytes:
        return self.inner.decode(list(tokens), skip_special_tokens=False).encode()


def open_tokenizer(path: str | None) -> ByteTokenizer:
    """The tokenizer of a file, or bytes if ``path`` is None.

    Raises:
        ValueError: if the file cannot be read, or is none, or the package that reads it is missing.
    """
    return BYTES if path is None else FileTokenizer(path, read_file(path, "tokenizer"))


def read_file(path: str, what: str) -> bytes:
    """The bytes of a file.

    Raises:
        ValueError: if it cannot be read or is empty, naming ``what`` it is.
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
    """The characters of a text.

    Raises:
        ValueError: if it is not UTF-8.
    """
    try:
        return str(text, "utf-8")
    except UnicodeDecodeError as error:
        found = f"0x{text[error.start]:02x} at byte {error.start:,}"
        raise ValueError(f"the text is not UTF-8, of which a tokenizer makes tokens: {found}") from None


def package():
    """Hugging Face's package.

    Raises:
        ValueError: if it is not installed, saying how to.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a rank has one core; and its threads outlive no fork
    try:
        import tokenizers
    except ImportError:
        raise ValueError("it takes the package tokenizers: pip install 'minidist[tokenizers]'") from None
    return tokenizers


@lru_cache(maxsize=1)
def _parsed(content: bytes):
    try:
        found = package().Tokenizer.from_str(content.decode())
    except UnicodeDecodeError:
        raise ValueError("it is not JSON") from None
    except ValueError:
        raise
    except Exception as error:  # the package has no kinds of them
        raise ValueError(str(error)) from None
    if getattr(found.model, "dropout", None):  # of merges, by chance: ranks would read other tokens
        found.model.dropout = None
    found.no_truncation()
    found.no_padding()
    if not found.get_vocab_size():
        raise ValueError("it has no tokens")
    return found


def train_tokenizer(text: bytes, vocab: int) -> bytes:
    """The tokenizer.json of a byte-level BPE with ``vocab`` tokens, trained on a text. The same for the same text.

    Raises:
        ValueError: for a text that is not UTF-8, and for a number of tokens below 256 or beyond what the text has.
    """
    if vocab < BYTES.vocab:
        raise ValueError(f"a vocabulary begins with the {BYTES.vocab} bytes, so it has that many tokens or more")
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
            f"the text has pairs that occur twice for {found.get_vocab_size():,} tokens, and not for {vocab:,}"
        )
    return found.to_str(pretty=True).encode()
