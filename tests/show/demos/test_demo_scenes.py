"""Every demonstration: the scenes that are known before a rank starts, and the colours in its legends."""

import re
from functools import cache
from pathlib import Path

import pytest

from minidist.show.demos import DEMONSTRATIONS
from minidist.show.demos.menu import SCENES
from minidist.show.palette import AXES, MEANINGS, OTHER_TP_GROUP, SIGNED, VERSIONS, of_rank

QUICK = ("broadcast", "flash", "deadlock")
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in DEMONSTRATIONS]
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


@pytest.fixture(scope="module")
def animations():
    """``animations(name)`` is what a demonstration shows, recorded once."""
    return cache(lambda name: DEMONSTRATIONS[name]())


@pytest.mark.parametrize("name", NAMES)
def test_declared_scenes_are_made(name, animations, short_training):
    made = tuple(scene.name for scene in animations(name).scenes)
    assert made == SCENES[name], f"in show/demos/menu.py write  {name!r}: {made},"


def expected(word: str) -> str | None:
    """The colour that a word in a legend must have."""
    if word in WORDS:
        return MEANINGS[WORDS[word]]
    if word in FAMILIES:
        return FAMILIES[word]
    rank = re.fullmatch(r"(?:(?:tokens|experts) of )?rank (\d)(?:'s part|'s head)?", word)
    return of_rank(int(rank[1])) if rank else None


@pytest.mark.parametrize("name", NAMES)
def test_every_word_in_a_legend_has_the_colour_of_its_meaning(name, animations, short_training):
    legends = [one.key for scene in animations(name).all_scenes for one in (scene, *scene.variants)]
    for word, colour in {entry for legend in legends for entry in legend.items()}:
        assert expected(word), f"say in {Path(__file__).name} what {word!r} means: one of {', '.join(MEANINGS)}"
        assert colour == expected(word), f"{word!r} is to have the colour of {WORDS.get(word, 'its family')!r}"


def test_the_menu_lists_every_demonstration_once_in_its_order():
    assert list(SCENES) == list(DEMONSTRATIONS)


@pytest.mark.parametrize("demonstration", DEMONSTRATIONS.values(), ids=DEMONSTRATIONS.keys())
def test_what_it_shows_fits_a_line_of_the_menu(demonstration):
    assert len(demonstration.about) <= 62
