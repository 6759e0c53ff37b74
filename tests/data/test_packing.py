"""Packings beside brute force: each place once, no sample too long, first fit and best fit by the book."""

import random

import numpy as np
import pytest

from minidist.data.documents import Documents, Manifest
from minidist.data.packing import PACKINGS, PADDED, Packing, best_fit, first_fit

CONTEXTS = (1, 2, 3, 8, 31)


def by_the_book(lengths: list[int], capacity: int, numbers: list[int], choose) -> list[list[int]]:
    """Put each piece into one of the packs with room, which ``choose`` takes by their room, or into a new one."""
    packs, room = [], []
    for number in numbers:
        fitting = [pack for pack, free in enumerate(room) if free >= lengths[number]]
        if not fitting:
            packs.append([])
            room.append(capacity)
        pack = choose(fitting, room) if fitting else len(packs) - 1
        packs[pack].append(number)
        room[pack] -= lengths[number]
    return packs


def first_fit_by_the_book(lengths: list[int], capacity: int) -> list[list[int]]:
    return by_the_book(lengths, capacity, list(range(len(lengths))), lambda fitting, room: fitting[0])


def best_fit_by_the_book(lengths: list[int], capacity: int) -> list[list[int]]:
    longest_first = sorted(range(len(lengths)), key=lambda number: -lengths[number])  # equal ones in their order
    return by_the_book(lengths, capacity, longest_first, lambda fitting, room: min(fitting, key=room.__getitem__))


@pytest.mark.parametrize("packed, expected", [(first_fit, first_fit_by_the_book), (best_fit, best_fit_by_the_book)])
def test_packs_are_those_of_the_book(packed, expected):
    rng = random.Random(0)
    for count in (0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 64, 100) * 12:
        capacity = rng.choice((1, 2, 5, 16, 100))
        longest = rng.randint(1, capacity)
        lengths = [rng.randint(1, longest) for _ in range(count)]
        assert packed(lengths, capacity) == expected(lengths, capacity), (lengths, capacity)


def test_packs_of_an_example():
    lengths = [5, 6, 3, 4, 2, 8]
    assert first_fit(lengths, 10) == [[0, 2, 4], [1, 3], [5]]
    assert best_fit(lengths, 10) == [[5, 4], [1, 3], [0, 2]]


def documents_of(lengths: list[int], prompts: list[int] | None = None) -> Documents:
    """Documents of so many tokens; each token says by its number where it is in all of them."""
    ends = np.cumsum(lengths)
    bounds = np.stack([ends, prompts or [0] * len(lengths)], 1)
    manifest = Manifest(1, "<u4", int(ends[-1]), len(lengths), int(ends[-1]), "", (), 0)
    return Documents(np.arange(ends[-1], dtype=np.uint32), bounds, manifest)


def lengths_of(seed: int) -> list[int]:
    """Lengths among which are many of one token, and some much longer than any context here."""
    rng = random.Random(seed)
    some = [rng.choice((1, 1, 2, rng.randint(1, 9), rng.randint(1, 40), rng.randint(1, 300))) for _ in range(seed % 60)]
    return [*some, rng.randint(2, 70)]


@pytest.mark.parametrize("kind", PACKINGS)
def test_an_epoch_has_every_place_once(kind):
    for seed in range(60):
        lengths = lengths_of(seed)
        for context in CONTEXTS:
            packing = Packing(documents_of(lengths), context, kind)
            samples = [packing.sample(number) for number in range(len(packing))]
            places = [
                (piece.document, place)
                for sample in samples
                for piece in sample
                for place in range(piece.first, piece.first + piece.places)
            ]
            expected = [(number, place) for number, length in enumerate(lengths) for place in range(length - 1)]
            assert sorted(places) == expected and packing.places == len(expected)
            if kind in ("cut", "padding"):
                assert places == expected  # in their order
            used = [sum(piece.places for piece in sample) for sample in samples]
            assert all(0 < count <= context for count in used)
            if kind == "cut":
                assert set(used[:-1]) <= {context}
            if kind in PADDED:
                assert {len(sample) for sample in samples} == {1}


@pytest.mark.parametrize("kind", [kind for kind in PACKINGS if kind != "cut"])
def test_a_document_is_cut_only_if_no_sample_can_hold_it(kind):
    """Into pieces of T places and a rest, of which each is packed as a document."""
    for seed in range(0, 60, 3):
        lengths = lengths_of(seed)
        for context in CONTEXTS:
            packing = Packing(documents_of(lengths), context, kind)
            pieces = [piece for number in range(len(packing)) for piece in packing.sample(number)]
            expected = [
                (document, first, min(context, length - 1 - first))
                for document, length in enumerate(lengths)
                for first in range(0, length - 1, context)
            ]
            found = [(piece.document, piece.first, piece.places) for piece in pieces]
            assert sorted(found) == expected
            if kind == "sorted":
                assert found == sorted(expected, key=lambda piece: piece[2])  # equal ones in their order
            elif kind != "padding":
                packed = {"first-fit": first_fit_by_the_book, "best-fit": best_fit_by_the_book}[kind]
                packs = packed([places for *_, places in expected], context)
                assert found == [expected[number] for pack in packs for number in pack]
                assert len(packing) == len(packs)
