"""Samples of T places from packed documents, and a run's corpus of them.

    tokens      the token at each place
    targets     the next token of its document; IGNORED if that belongs to a prompt or does not exist
    first       the place of the first token that it sees: the start of its piece
    positions   its position in its piece, or in the sample

Places after the last piece are padding: token 0, which has no target and sees itself alone.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from minidist.data.documents import JSON_LINES, Documents, read_documents
from minidist.data.order import sample_at
from minidist.data.packing import PACKINGS, PADDED, Packing, Piece
from minidist.nn import documents as masks
from minidist.nn.loss import IGNORED
from minidist.nn.tokenizer import BYTES, ByteTokenizer, open_tokenizer

HELD_OUT = 0.05  # share of the tokens for validation, in whole documents
MOST_HELD_OUT = 1_000_000  # tokens: enough for a loss, and quickly evaluated


@dataclass(frozen=True)
class Samples:
    """Samples of a packing.

    Attributes:
        alone: whether a token sees its own document only; otherwise it sees all tokens before it in the sample.
        restart: whether positions count from the start of each piece; otherwise from the start of the sample.
        quantum: divisor of the length of a micro-batch that ends with its longest sample.
    """

    packing: Packing
    alone: bool = True
    restart: bool = True
    quantum: int = 1

    def __len__(self) -> int:
        return len(self.packing)

    def batch(self, numbers: Sequence[int], rows: int = 0) -> tuple[np.ndarray, np.ndarray, masks.Documents]:
        """Return tokens and targets of these samples, (B, T) integers, and the boundaries of their documents.

        Args:
            rows: B; rows beyond the numbers are padding. 0 for as many rows as numbers.
        """
        shape = rows or len(numbers), self.packing.context
        tokens, targets = np.zeros(shape, self.packing.documents.tokens.dtype), np.full(shape, IGNORED, np.int32)
        places = np.arange(shape[1])
        first, positions = np.tile(places, (shape[0], 1)), np.tile(places, (shape[0], 1))
        longest = 1
        for row, number in enumerate(numbers):
            place = 0
            for piece in self.packing.sample(number):
                here = slice(place, place + piece.places)
                tokens[row, here], targets[row, here] = self.places(piece)
                first[row, here], positions[row, here] = place, places[: piece.places]
                place = here.stop
            longest = max(longest, place)
            if not self.alone:
                first[row, :place] = 0
        if self.packing.kind in PADDED:
            end = -(-longest // self.quantum) * self.quantum  # at most a sample
            tokens, targets, first, positions = (array[:, :end] for array in (tokens, targets, first, positions))
        return tokens, targets, masks.Documents(first, positions if self.restart else None, shape[0] * shape[1])

    def places(self, piece: Piece) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of a piece, and their targets."""
        documents = self.packing.documents
        begin, _ = documents.span(piece.document)
        found = documents.tokens[begin + piece.first : begin + piece.first + piece.places + 1]
        targets = found[1:].astype(np.int32)
        targets[: max(0, int(documents.bounds[piece.document, 1]) - 1 - piece.first)] = IGNORED
        return found[:-1], targets


@dataclass(frozen=True)
class DocumentCorpus:
    """Corpus of documents in two parts, the last documents held out for validation.

    Attributes:
        training: the samples of an epoch.
        validation: samples of the held-out documents, in the packing ``cut``.
        documents: the documents of both parts.
        tokenizer: the tokenizer that split them.
    """

    training: Samples
    validation: Samples
    documents: Documents
    tokenizer: ByteTokenizer = BYTES

    @property
    def bytes_per_token(self) -> float:
        """Mean number of bytes per token, over all documents."""
        return self.documents.manifest.bytes_per_token

    @property
    def sha256(self) -> str:
        """SHA-256 that identifies the corpus by the content and order of its files, not by their names."""
        files = [(file.nbytes, file.sha256, file.name.endswith(JSON_LINES)) for file in self.documents.manifest.files]
        return hashlib.sha256(repr(files).encode()).hexdigest()

    @property
    def note(self) -> str:
        """Summary for the user: counts of documents and samples, and of documents left out or cut."""
        documents, context = self.documents, self.training.packing.context
        counts = {
            f"{documents.manifest.empty:,} empty ones left out": documents.manifest.empty,
            f"{(longer := int((documents.lengths - 1 > context).sum())):,} longer than the context cut": longer,
        }
        told = [words for words, count in counts.items() if count]
        some = f"{len(self.validation.packing.documents):,} of them" if len(documents) > 1 else "its end"
        first = f"documents: {len(documents):,}, {some} held out"
        return ", ".join([first, *told]) + f"; samples in an epoch: {len(self.training):,}"

    def micro_batch(self, seed: int, first: int, count: int) -> tuple[np.ndarray, np.ndarray, masks.Documents]:
        """Return samples of a run from number ``first`` on, counted from its first step; see ``Samples.batch``.

        An epoch has each sample once, or with sorted packing each group of ``count``, which then divides ``first``.
        """
        self.documents.check_unchanged()
        return self.training.batch(self.numbers(seed, first, count), count)

    def numbers(self, seed: int, first: int, count: int) -> list[int]:
        """Return the numbers of these samples; fewer in a last group that is not full."""
        group, size = count if self.training.packing.kind == "sorted" else 1, len(self.training)
        groups = [sample_at(one, -(-size // group), seed)[1] for one in range(first // group, (first + count) // group)]
        return [number for one in groups for number in range(one * group, min((one + 1) * group, size))]

    def validation_batches(self, count: int) -> Iterator[tuple[np.ndarray, np.ndarray, masks.Documents]]:
        """Yield the held-out samples, ``count`` at a time, fewer in the last batch."""
        every = range(len(self.validation))
        for first in every[::count]:
            self.documents.check_unchanged()
            yield self.validation.batch(every[first : first + count])


def open_corpus(
    path: str, context: int, packing: str, tokenizer: str | None = None, alone: bool = True, restart: bool = True,
    quantum: int = 1,
) -> DocumentCorpus:  # fmt: skip
    """Open the documents of a file or folder, packed into samples of ``context`` places.

    Raises:
        ValueError: if they cannot be read, or the training or the held-out part has no target that counts.
    """
    if packing not in PACKINGS:
        raise ValueError(f"packing must be one of {', '.join(PACKINGS)}, not {packing!r}")
    by = open_tokenizer(tokenizer)
    documents = read_documents(path, by)
    training, held_out = parted(documents)
    for part, what in ((training, "to train on"), (held_out, "held out for validation")):
        if not targets_in(part):
            raise ValueError(f"{path}: the documents {what} have no target that counts: add documents")
    settings = alone, restart, quantum
    return DocumentCorpus(
        Samples(Packing(training, context, packing), *settings), Samples(Packing(held_out, context, "cut"), *settings),
        documents, by,
    )  # fmt: skip


def parted(documents: Documents) -> tuple[Documents, Documents]:
    """Split documents into those to train on and the last ones, which are held out.

    These are as few as have more than HELD_OUT of the tokens, or MOST_HELD_OUT. A single document is cut in two.
    """
    count, tokens = len(documents), len(documents.tokens)
    if count == 1:
        place = tokens - max(2, int(min(tokens * HELD_OUT, MOST_HELD_OUT)))
        prompt = int(documents.bounds[0, 1])
        bounds = np.array([[place, min(prompt, place)], [tokens, max(0, prompt - place)]])
        documents, count = Documents(documents.tokens, bounds, documents.manifest, documents.mapped), 2
    first = max(1, int(np.searchsorted(documents.bounds[:, 0], max(tokens * (1 - HELD_OUT), tokens - MOST_HELD_OUT))))
    return documents.part(0, first), documents.part(first, count)


def targets_in(documents: Documents) -> int:
    """Return the number of targets that count: in each document those after its first token and its prompt."""
    return int(np.maximum(0, documents.lengths - np.maximum(1, documents.bounds[:, 1])).sum())
