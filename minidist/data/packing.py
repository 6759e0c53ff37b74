"""Packing: which parts of which documents make a sample of T places.

A *place* is a token and its target, the token after it. So a document of n tokens has n - 1 places, the last of which
has the last token as its target, and no place has a target in another document.

    cut          all places one after the other, cut every T: nothing is wasted, and many documents lose their begin
    padding      a document in each sample, and nothing behind it; the samples of a micro-batch end with its longest
    sorted       the same, but documents of like length make a micro-batch
    first-fit    each document into the first sample with room for it
    best-fit     the longest first, each into the sample with the least room that suffices

Only ``cut`` cuts documents that would fit. One that is longer than T is cut into *pieces* of T places and a rest by all
of them, and each piece is a document then, whose tokens do not see what is before.

(Concatenate-and-cut is GPT-3's; first fit torchtitan's ``packing.py``; best fit with longest first: Ding et al., "Fewer
Truncations Improve Language Modeling", 2024.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush

import numpy as np

from minidist.data.documents import Documents
from minidist.overrides import overridable

RANDOM = "random"  # samples from anywhere in one text, in no packs
PADDED = ("padding", "sorted")
PACKINGS = ("cut", "padding", "sorted", "first-fit", "best-fit")


@overridable
def first_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Packs: the numbers of the pieces in each, in the order in which they came.

    Each piece goes into the first pack that has room, or into a new one. A tree over the packs has at each node the
    most room below it, so the first one is found in log2(packs) steps.

    Args:
        lengths: places of each piece, from 1 to ``capacity``.
    """
    leaves = 1 << (len(lengths) - 1).bit_length()
    room = [capacity] * (2 * leaves)  # node n has the children 2 n and 2 n + 1; packs are the leaves
    packs: list[list[int]] = []
    for number, length in enumerate(lengths):
        node = 1
        while node < leaves:
            node = 2 * node + (room[2 * node] < length)
        room[node] -= length
        if node - leaves == len(packs):
            packs.append([])
        packs[node - leaves].append(number)
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return packs


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Packs: the numbers of the pieces in each. The longest come first, of equal ones those that came first.

    Each goes into the pack with the least room that suffices, of equal ones into the oldest. Arguments as of
    ``first_fit``.
    """
    packs: list[list[int]] = []
    with_room: dict[int, list[int]] = {}  # room -> a heap of the packs that have it
    rooms = 0  # the bits of rooms that a pack has
    for number in sorted(range(len(lengths)), key=lambda number: (-lengths[number], number)):
        length = lengths[number]
        enough = rooms >> length
        if enough:
            room = length + (enough & -enough).bit_length() - 1  # the least of them
            pack = heappop(with_room[room])
            if not with_room[room]:
                rooms ^= 1 << room
        else:
            room, pack = capacity, len(packs)
            packs.append([])
        packs[pack].append(number)
        heappush(with_room.setdefault(room - length, []), pack)
        rooms |= 1 << (room - length)
    return packs


@dataclass(frozen=True)
class Piece:
    """Consecutive places of one document.

    Attributes:
        document: its number.
        first: the first place, from the document's begin.
        places: how many.
    """

    document: int
    first: int
    places: int


@dataclass(frozen=True)
class Packing:
    """How documents make samples of ``context`` places.

    Attributes:
        kind: one of PACKINGS.
    """

    documents: Documents
    context: int
    kind: str

    @cached_property
    def places(self) -> int:
        """The number of targets in all documents."""
        return len(self.documents.tokens) - len(self.documents)

    @cached_property
    def ends(self) -> np.ndarray:
        """Where each document's pieces end, among the pieces of all: int64 (documents,)."""
        return np.cumsum(-(-(self.documents.lengths - 1) // self.context))

    @cached_property
    def pieces(self) -> np.ndarray:
        """The pieces that a table packs: int64, places of each."""
        tokens = self.documents.lengths
        counts = np.diff(self.ends, prepend=0)
        lengths = np.full(int(self.ends[-1]), self.context)
        lengths[self.ends[counts > 0] - 1] = ((tokens - 2) % self.context + 1)[counts > 0]
        return lengths

    @cached_property
    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """The pieces' numbers, pack by pack, and where each pack ends among them."""
        if self.kind in PADDED:
            numbers = np.arange(len(self.pieces))
            return np.argsort(self.pieces, stable=True) if self.kind == "sorted" else numbers, numbers + 1
        # a full piece has a pack to itself, and there may be very many of them: only the others are packed one by one
        full, others = np.flatnonzero(self.pieces == self.context), np.flatnonzero(self.pieces < self.context)
        packs = {"first-fit": first_fit, "best-fit": best_fit}[self.kind](self.pieces[others].tolist(), self.context)
        order = np.concatenate([full, others[np.array([number for pack in packs for number in pack], int)]])
        sizes = np.array([1] * len(full) + [len(pack) for pack in packs])
        if self.kind == "first-fit":  # a pack comes when its first piece does; with the longest first, full ones do
            firsts = order[np.cumsum(sizes) - sizes]
            order = order[np.argsort(np.repeat(firsts, sizes), stable=True)]
            sizes = sizes[np.argsort(firsts)]
        return order, np.cumsum(sizes)

    def __len__(self) -> int:
        """The number of samples."""
        return -(-self.places // self.context) if self.kind == "cut" else len(self.table[1])

    def sample(self, number: int) -> list[Piece]:
        """The pieces of one sample, in order."""
        if self.kind == "cut":
            return self._cut(number * self.context, min((number + 1) * self.context, self.places))
        order, ends = self.table
        return [self.piece(int(n)) for n in order[ends[number - 1] if number else 0 : ends[number]]]

    def piece(self, number: int) -> Piece:
        document = int(np.searchsorted(self.ends, number, "right"))
        first = (number - int(self.ends[document - 1] if document else 0)) * self.context
        return Piece(document, first, int(self.pieces[number]))

    def _cut(self, place: int, end: int) -> list[Piece]:
        """Places of all documents, one after the other, from ``place`` to before ``end``."""
        low, high = 0, len(self.documents)
        while low < high:  # the first document that ends behind this place: its end in places is bounds - documents
            middle = (low + high) // 2
            if int(self.documents.bounds[middle, 0]) - middle - 1 <= place:
                low = middle + 1
            else:
                high = middle
        pieces = []
        while place < end:
            begin, stop = self.documents.span(low)
            first = place - (begin - low)
            count = min(stop - begin - 1 - first, end - place)
            if count:
                pieces.append(Piece(low, first, count))
            place, low = place + count, low + 1
        return pieces
