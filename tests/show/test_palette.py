"""Colours mean one thing: in the legends of all demonstrations, in their code, and in the figures of the chapters."""

import re
from itertools import combinations
from pathlib import Path

import pytest

from minidist.show import palette
from minidist.show.demos import DEMONSTRATIONS
from minidist.show.palette import (
    AXES,
    KIN,
    MEANINGS,
    OTHER_TP_GROUP,
    PAPER,
    RANKS,
    SHARES,
    SIGNED,
    VERSIONS,
    of_rank,
    of_version,
    on_paper,
)

QUICK = ("broadcast", "reduce-scatter", "all-gather", "all-to-all", "cp", "bf16", "flash", "deadlock", "cluster")
WORDS = {  # of legends -> their meaning in the palette
    "forward": "forward", "backward": "backward", "backward (of inputs)": "backward", "backward, inputs": "backward",
    "backward of weights": "backward of weights", "backward, weights": "backward of weights",
    "recomputed": "recomputed", "computes": "computing", "can act": "computing",
    "optimizer": "optimizer",
    "waits": "idle", "waits, free": "idle",
    "compute idle": "idle", "idle: the bubble": "idle", "idle": "idle", "waits, idle": "idle",
    "not sure": "idle",  # nothing is there that one could rely on
    "messages": "communication", "message": "communication",
    "all-reduce": "communication", "all-reduce, exposed": "communication",
    "idle: a message is in flight": "communication", "all-reduce, hidden under backward": "hidden communication",
    "all-gather": "all-gather", "reduce-scatter": "reduce-scatter",
    "full": "full link",
    "read": "read", "written": "written",
    "parameters": "parameters", "weights": "parameters", "stored": "parameters", "gradients": "gradients",
    "residual": "residual", "sent": "communication", "with error feedback": "result",
    "optimizer state": "optimizer state", "master": "optimizer state", "master, run without the bug": "optimizer state",
    "activations": "activations", "scores S": "activations", "merged": "merged activations", "softmax P": "softmax",
    "maxima, sums": "softmax sums", "on every rank": "replicated",
    "checkpoint": "checkpoint", "saved": "checkpoint", "can be read": "checkpoint",
    "on the disk": "result", "result": "result",
    "of the ranks": "result", "finished": "result",
    "sign": "sign", "exponent": "exponent", "mantissa": "mantissa", "loss": "loss", "lost": "lost", "dropped": "lost",
    "wrong": "wrong", "wrong, bits are lost": "wrong", "never sent": "wrong", "skipped": "wrong", "killed": "wrong",
    "killed, wrong": "wrong", "wrong keys": "wrong", "✗ dropped": "wrong", "not the right loads": "wrong",
    "waits forever": "wrong", "not rescaled, wrong": "wrong", "wrong micro-batch, and what it corrupts": "wrong",
    "lost, wrong": "wrong", "without, wrong": "wrong", "above warm start, wrong": "wrong",
    "different dropout mask": "wrong", "stale parameters": "wrong", "applied again": "wrong",
    "synchronous": "synchronous", "bounded": "bounded", "asynchronous": "asynchronous", "not dealt yet": "idle",
}  # fmt: skip
FAMILIES = {  # words of other families, and of outlines and lines, which are drawn in ink
    "tp group 0": AXES["tp"], "tp group 1": OTHER_TP_GROUP, "dp message": AXES["dp"],
    "negative": SIGNED[0], "positive": SIGNED[-1], "smallest number sent": "ink", "full gradients": "ink",
    "just changed": "ink", "the swap": "ink",
    "computed in this hop": "ink", "of one process": "ink", "taken again": "ink",
    "oldest weights": VERSIONS[0], "newest weights": VERSIONS[-1],
    "server 0": of_rank(3), "server 1": of_rank(4), "of the straggler": "ink",  # ranks 0 to 2 are workers
    "kept, by formula": "ink", "kept from forward, by formula": "ink", "rank 0 to rank 1": "ink",
}  # fmt: skip
ROOT = Path(palette.__file__).parents[2]


def expected(word: str) -> str | None:
    """The colour that a word in a legend must have."""
    if word in WORDS:
        return MEANINGS[WORDS[word]]
    if word in FAMILIES:
        return FAMILIES[word]
    rank = re.fullmatch(r"(?:(?:tokens|experts) of )?rank (\d)(?:'s part|'s head)?", word)
    return of_rank(int(rank[1])) if rank else None


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in DEMONSTRATIONS]
)
def test_every_word_in_a_legend_has_the_colour_of_its_meaning(name):
    legends = [one.key for scene in DEMONSTRATIONS[name]().all_scenes for one in (scene, *scene.variants)]
    for word, colour in {entry for legend in legends for entry in legend.items()}:
        assert expected(word), f"say in {Path(__file__).name} what {word!r} means: one of {', '.join(MEANINGS)}"
        assert colour == expected(word), f"{word!r} is to have the colour of {WORDS.get(word, 'its family')!r}"


def test_a_colour_means_one_thing_or_kin():
    shared = {frozenset(pair) for pair in combinations(MEANINGS, 2) if MEANINGS[pair[0]] == MEANINGS[pair[1]]}
    assert shared == {frozenset(pair) for kin in KIN for pair in combinations(kin, 2)}
    others = [*AXES.values(), OTHER_TP_GROUP, *SHARES, *SIGNED, *VERSIONS]
    assert len({*others}) == len(others) and not {*others} & ({*MEANINGS.values()} | {*RANKS})


def linear(colour: str) -> list[float]:
    """Red, green and blue as linear light, 0 to 1."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def weighted(row: tuple[float, ...], light) -> float:
    return sum(weight * part for weight, part in zip(row, light, strict=True))


def test_words_on_every_colour_are_readable():
    for colour in {*map(on_paper, MEANINGS), *RANKS, *AXES.values(), OTHER_TP_GROUP, *SHARES, *SIGNED, *VERSIONS}:
        light = weighted((0.2126, 0.7152, 0.0722), linear(colour))
        ink = 1.0 if palette.ink_on(colour) == "white" else 0.0
        assert (max(ink, light) + 0.05) / (min(ink, light) + 0.05) >= 4.5, colour  # what WCAG requires of text


def test_versions_go_from_the_first_colour_to_the_last():
    assert [of_version(number, 4) for number in range(5)] == list(VERSIONS)
    assert of_version(0, 0) == of_version(0, 7) == VERSIONS[0] and of_version(7, 7) == VERSIONS[-1]
    halfway = of_version(1, 8)
    for i in (1, 3, 5):
        ends = [int(colour[i : i + 2], 16) for colour in VERSIONS[:2]]
        assert abs(int(halfway[i : i + 2], 16) - sum(ends) / 2) <= 0.5
    light = [weighted((0.2126, 0.7152, 0.0722), linear(of_version(number, 30))) for number in range(31)]
    assert light == sorted(light)  # new is lighter than old, also without colours


TOGETHER = (  # what is next to each other in a picture
    ("forward", "backward", "optimizer", "idle", "communication", "hidden communication"),
    ("forward", "backward", "backward of weights", "idle", "communication", "wrong"),
    ("forward", "backward", "optimizer", "idle", "communication", "all-gather", "reduce-scatter"),
    ("parameters", "gradients", "optimizer state", "activations", "recomputed", "wrong"),
    ("queries", "keys", "values", "activations", "result"),
    ("activations", "merged activations", "softmax", "wrong"),
    ("gradients", "residual", "communication", "idle", "wrong"),
    ("synchronous", "bounded", "asynchronous"),
)
# linear light as seen without red or green cones: Vienot, Brettel and Mollon (1999)
EYES = {
    "protan": ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0)),
    "deutan": ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0)),
}
XYZ = ((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0177, 0.1095, 0.8728))  # in parts of the white of D65


def seen(colour: str, eye: str) -> tuple[float, ...]:
    """A colour in CIELAB as such an eye sees it."""
    light = [max(0.0, weighted(row, linear(colour))) for row in EYES[eye]]
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (weighted(row, light) for row in XYZ))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("meanings", TOGETHER, ids=", ".join)
def test_colours_in_one_picture_differ_for_colour_blind_readers(meanings, eye):
    for one, other in combinations(meanings, 2):
        colours = (seen(on_paper(meaning), eye) for meaning in (one, other))
        apart = sum((a - b) ** 2 for a, b in zip(*colours, strict=True)) ** 0.5
        assert apart >= 10, (one, other, apart)  # just noticeable side by side is 2.3


def test_whoever_draws_names_meanings_and_no_colours():
    known = {
        colour.upper()
        for colour in (*MEANINGS.values(), *RANKS, *AXES.values(), *SHARES, *SIGNED, *VERSIONS, *PAPER.values())
    }
    known -= {"#D0D0D0", "#FFFFFF", "#444444"}  # greys of lines and grounds
    for path in sorted((ROOT / "minidist" / "show" / "demos").rglob("*.py")):
        assert not re.search(r'"#[0-9A-Fa-f]{6}"', path.read_text(encoding="utf-8")), path
    for path in sorted((ROOT / "chapters" / "figures").rglob("*.py")):
        written = {colour.upper() for colour in re.findall(r'"(#[0-9A-Fa-f]{6})"', path.read_text(encoding="utf-8"))}
        assert not written & known, path
