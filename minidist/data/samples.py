"""Samples of T places out of packed documents, and a run's corpus of them.

    tokens      the token at each place
    targets     the token after it in its document; IGNORED where it belongs to a prompt, or there is no token
    first       the place of the first token that it sees: where its piece begins
    positions   its position in its piece, or in the sample

Places behind the last piece are padding: token 0, no target, and it sees itself alone.
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
MOST_HELD_OUT = 1_000_000  # tokens: enough for a loss, and soon computed


@dataclass(frozen=True)
class Samples:
    """The samples of a packing.

    Attributes:
        alone: whether a token sees its own document only; otherwise all that is before it in the sample.
        restart: whether positions count from the begin of each piece; otherwise from that of the sample.
        quantum: where a micro-batch ends with its longest sample, its places are a multiple of this.
    """

    packing: Packing
    alone: bool = True
    restart: bool = True
    quantum: int = 1

    def __len__(self) -> int:
        return len(self.packing)

    def batch(self, numbers: Sequence[int], rows: int = 0) -> tuple[np.ndarray, np.ndarray, masks.Documents]:
        """Tokens and targets, (B, T) integers, of these samples, and where their documents are.

        Args:
            rows: B, of which the last ones may be padding alone; 0 for as many as there are numbers.
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
        """The tokens of a piece, and their targets."""
        documents = self.packing.documents
        begin, _ = documents.span(piece.document)
        found = documents.tokens[begin + piece.first : begin + piece.first + piece.places + 1]
        targets = found[1:].astype(np.int32)
        targets[: max(0, int(documents.bounds[piece.document, 1]) - 1 - piece.first)] = IGNORED
        return found[:-1], targets


@dataclass(frozen=True)
class DocumentCorpus:
    """Documents in two parts, the last ones held out for validation.

    Attributes:
        training: the samples that an epoch has each once.
        validation: all that is held out, cut as it comes.
        documents: all of them.
        tokenizer: what made them tokens.
    """

    training: Samples
    validation: Samples
    documents: Documents
    tokenizer: ByteTokenizer = BYTES

    @property
    def bytes_per_token(self) -> float:
        """The mean over all documents."""
        return self.documents.manifest.bytes_per_token

    @property
    def sha256(self) -> str:
        """What tells two corpora apart: of the files in their order, whatever they are called."""
        files = [(file.nbytes, file.sha256, file.name.endswith(JSON_LINES)) for file in self.documents.manifest.files]
        return hashlib.sha256(repr(files).encode()).hexdigest()

    @property
    def note(self) -> str:
        """What is trained on, for people, and what of it is not as it came."""
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
        """Samples of a run, from the ``first`` on, counted from its first step: as ``Samples.batch`` returns them.

        An epoch has each sample once, or each group of ``count`` that are sorted; ``first`` is a multiple of it then.
        """
        self.documents.check_unchanged()
        return self.training.batch(self.numbers(seed, first, count), count)

    def numbers(self, seed: int, first: int, count: int) -> list[int]:
        """Which samples these are: of a last group that is not full, fewer."""
        group, size = count if self.training.packing.kind == "sorted" else 1, len(self.training)
        groups = [sample_at(one, -(-size // group), seed)[1] for one in range(first // group, (first + count) // group)]
        return [number for one in groups for number in range(one * group, min((one + 1) * group, size))]

    def validation_batches(self, count: int) -> Iterator[tuple[np.ndarray, np.ndarray, masks.Documents]]:
        """The held-out samples, ``count`` at a time, fewer in the last batch."""
        every = range(len(self.validation))
        for first in every[::count]:
            self.documents.check_unchanged()
            yield self.validation.batch(every[first : first + count])


def open_corpus(
    path: str, context: int, packing: str, tokenizer: str | None = None, alone: bool = True, restart: bool = True,
    quantum: int = 1,
) -> DocumentCorpus:  # fmt: skip
    """The documents of a file or folder, packed into samples of ``context`` places.

    Raises:
        ValueError: if they cannot be read, or have no target that counts, to train on or to validate with.
    """
    if packing not in PACKINGS:
        raise ValueError(f"packing must be one of {', '.join(PACKINGS)}, not {packing!r}")
    by = open_tokenizer(tokenizer)
    documents = read_documents(path, by)
    training, held_out = parted(documents)
    for part, what in ((training, "to train on"), (held_out, "held out for validation")):
        if not targets_in(part):
            raise ValueError(f"{path} has no target that counts among the documents {what}: add documents")
    settings = alone, restart, quantum
    return DocumentCorpus(
        Samples(Packing(training, context, packing), *settings), Samples(Packing(held_out, context, "cut"), *settings),
        documents, by,
    )  # fmt: skip


def parted(documents: Documents) -> tuple[Documents, Documents]:
    """The documents to train on, and the last ones: as few as have more than HELD_OUT of the tokens, or MOST_HELD_OUT.

    One alone is cut in two.
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
    """How many targets count: of each document those behind its first token, and behind its prompt."""
    return int(np.maximum(0, documents.lengths - np.maximum(1, documents.bounds[:, 1])).sum())
