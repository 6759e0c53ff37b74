"""Words on colours are readable, and the colours of one picture differ for colour-blind readers."""

from itertools import combinations, product

from minidist.show.palette import AXES, DOCUMENTS, MEANINGS, RANKS, SHARES, SIGNED, VERSIONS, ink_on, on_paper

OTHERS = [*AXES.values(), *DOCUMENTS, *SHARES, *SIGNED, *VERSIONS]
LIGHT = (0.2126, 0.7152, 0.0722)  # of red, green and blue
TOGETHER = (  # what is next to each other in a picture
    ("forward", "backward", "optimizer", "idle", "communication", "hidden communication"),
    ("forward", "backward", "backward of inputs", "backward of weights", "idle", "communication", "wrong"),
    ("forward", "backward", "optimizer", "idle", "communication", "all-gather", "reduce-scatter"),
    ("parameters", "gradients", "optimizer state", "activations", "recomputed", "wrong"),
    ("queries", "keys", "attention", "parameters", "gradients", "elementwise"),
    ("softmax", "softmax sums", "read", "wrong"),
    ("gradients", "residual", "communication", "idle", "wrong"),
    ("synchronous", "bounded", "asynchronous"),
)
EYES = {  # linear light as seen with all cones, and without red or green ones: Vienot, Brettel and Mollon (1999)
    "all": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protan": ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0)),
    "deutan": ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0)),
}
XYZ = ((0.4339, 0.3762, 0.1899), LIGHT, (0.0177, 0.1095, 0.8728))  # in parts of the white of D65


def linear(colour: str) -> list[float]:
    """Red, green and blue as linear light, 0 to 1."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def weighted(row: tuple[float, ...], light) -> float:
    return sum(weight * part for weight, part in zip(row, light, strict=True))


def seen(colour: str, eye: str) -> tuple[float, ...]:
    """A colour in CIELAB as such an eye sees it."""
    light = [max(0.0, weighted(row, linear(colour))) for row in EYES[eye]]
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (weighted(row, light) for row in XYZ))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def apart(one: str, other: str, eye: str) -> float:
    return sum((a - b) ** 2 for a, b in zip(seen(one, eye), seen(other, eye), strict=True)) ** 0.5


def test_words_on_every_colour_are_readable():
    for colour in {*map(on_paper, MEANINGS), *RANKS, *OTHERS}:
        ink, light = float(ink_on(colour) == "white"), weighted(LIGHT, linear(colour))
        assert (max(ink, light) + 0.05) / (min(ink, light) + 0.05) >= 4.5, colour  # what WCAG requires of text


def test_colours_in_one_picture_differ_for_colour_blind_readers():
    for eye in EYES:
        for one, other in (pair for meanings in TOGETHER for pair in combinations(meanings, 2)):
            assert apart(on_paper(one), on_paper(other), eye) >= 10, (eye, one, other)  # just noticeable is 2.3
        for one, other in zip(DOCUMENTS, (*DOCUMENTS[1:], DOCUMENTS[0]), strict=True):  # neighbours in a pack
            assert apart(one, other, eye) >= 10, (eye, one, other)


def test_ranks_look_like_no_meaning_and_differ_for_colour_blind_readers():
    for rank, meaning in product(RANKS, MEANINGS):
        assert apart(rank, on_paper(meaning), "all") >= 10, (rank, meaning)
    for eye in EYES:
        assert min(apart(one, other, eye) for one, other in combinations(RANKS, 2)) >= 25, eye
