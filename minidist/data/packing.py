"""Packing: filling samples of T places with documents.

A *place* is a token and its target, the token after it. So a document of n tokens has n - 1 places: the last place has
the last token as its target, and no place has a target in another document.

    cut          all places in a row, cut every T: nothing is wasted, but many documents lose their start
    padding      one document in each sample, then padding; the samples of a micro-batch end with its longest
    sorted       like padding, with documents of similar length in a micro-batch
    first-fit    each document into the first sample with room for it
    best-fit     the longest first, each into the sample with the least room that suffices

Only ``cut`` cuts documents that would fit. All of them cut a document longer than T into *pieces* of T places and a
remainder. Each piece is then a document of its own: its tokens do not see the pieces before it.

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

RANDOM = "random"  # samples from anywhere in one text, not packed
PADDED = ("padding", "sorted")
PACKINGS = ("cut", "padding", "sorted", "first-fit", "best-fit")


@overridable
def first_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Return packs of pieces by first fit: the numbers of the pieces in each pack, in the order of arrival.

    Each piece goes into the first pack that has room, or into a new one. A tree over the packs has at each node the
    most room below it, so the first one is found in log2(packs) steps.

    Args:
        lengths: number of places in each piece, from 1 to ``capacity``.
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
    """Return packs of pieces by best fit: the numbers of the pieces in each pack.

    The longest piece is packed first; equal ones in the order of arrival. Each goes into the pack with the least room
    that suffices; among equal packs into the oldest. Arguments: see ``first_fit``.
    """
    packs: list[list[int]] = []
    with_room: dict[int, list[int]] = {}  # room -> a heap of the packs that have it
    rooms = 0  # bit r is set if a pack has room r
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
        document: number of the document.
        first: the first place, counted from the start of the document.
        places: number of places.
    """

    document: int
    first: int
    places: int


@dataclass(frozen=True)
class Packing:
    """Packing of documents into samples of ``context`` places.

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
        """The end of each document's pieces among the pieces of all documents: int64 (documents,)."""
        return np.cumsum(-(-(self.documents.lengths - 1) // self.context))

    @cached_property
    def pieces(self) -> np.ndarray:
        """Number of places in each piece that a table packs: int64 (pieces,)."""
        tokens = self.documents.lengths
        counts = np.diff(self.ends, prepend=0)
        lengths = np.full(int(self.ends[-1]), self.context)
        lengths[self.ends[counts > 0] - 1] = ((tokens - 2) % self.context + 1)[counts > 0]
        return lengths

    @cached_property
    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the pieces, pack by pack, and the end of each pack among them."""
        if self.kind in PADDED:
            numbers = np.arange(len(self.pieces))
            return np.argsort(self.pieces, stable=True) if self.kind == "sorted" else numbers, numbers + 1
        # a full piece has a pack to itself, and there may be very many: only the others are packed one by one
        full, others = np.flatnonzero(self.pieces == self.context), np.flatnonzero(self.pieces < self.context)
        packs = {"first-fit": first_fit, "best-fit": best_fit}[self.kind](self.pieces[others].tolist(), self.context)
        order = np.concatenate([full, others[np.array([number for pack in packs for number in pack], int)]])
        sizes = np.array([1] * len(full) + [len(pack) for pack in packs])
        if self.kind == "first-fit":  # packs in the order of their first pieces; by best fit, full ones are first
            firsts = order[np.cumsum(sizes) - sizes]
            order = order[np.argsort(np.repeat(firsts, sizes), stable=True)]
            sizes = sizes[np.argsort(firsts)]
        return order, np.cumsum(sizes)

    def __len__(self) -> int:
        """Return the number of samples."""
        return -(-self.places // self.context) if self.kind == "cut" else len(self.table[1])

    def sample(self, number: int) -> list[Piece]:
        """Return the pieces of one sample, in order."""
        if self.kind == "cut":
            return self._cut(number * self.context, min((number + 1) * self.context, self.places))
        order, ends = self.table
        return [self.piece(int(n)) for n in order[ends[number - 1] if number else 0 : ends[number]]]

    def piece(self, number: int) -> Piece:
        document = int(np.searchsorted(self.ends, number, "right"))
        first = (number - int(self.ends[document - 1] if document else 0)) * self.context
        return Piece(document, first, int(self.pieces[number]))

    def _cut(self, place: int, end: int) -> list[Piece]:
        """Return the pieces from ``place`` to before ``end``, counted over the places of all documents in a row."""
        low, high = 0, len(self.documents)
        while low < high:  # the first document that ends after this place: its end in places is bounds - documents
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
