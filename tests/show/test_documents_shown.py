"""Documents on the stage: what a pack wastes and skips, and what a target weighs, counted token by token."""

import json

import numpy as np
import pytest
from recorded import fact, recorded
from stories import words

from minidist.show.demos.documents.run import DRAWN, KINDS, PER_SIDE, TEXT, Counted, Grid, Packed


def drawn() -> list[str]:
    lines = map(json.loads, TEXT.read_text(encoding="utf-8").splitlines()[:DRAWN])
    return [line.get("text") or line["prompt"] + line["answer"] for line in lines]


def test_packs_have_each_document_once_and_tell_what_they_waste():
    """Counted by hand: a document of n letters has n - 1 places."""
    places = sum(len(text) - 1 for text in drawn())
    for kind in KINDS:
        one = Packed(kind, 64)
        assert one.padding == pytest.approx(1 - places / (64 * len(one.pieces)))
        texts = sorted(one.text(piece) for pieces in one.pieces for piece in pieces)
        assert (texts == sorted(drawn())) is (one.cut == 0) is (kind != "cut")
    assert len(Packed("padding", 64).pieces) == DRAWN and len(Packed("cut", 64).pieces) == -(-places // 64)


def test_tiles_are_computed_where_a_token_sees_another_one_of_its_document():
    one = Packed("first-fit", 64)
    for number, pieces in enumerate(one.pieces):
        document = np.repeat(
            [*range(len(pieces)), -1], [*(p.places for p in pieces), 64 - sum(p.places for p in pieces)]
        )
        see = np.tril((document[:, None] == document) & (document >= 0)) | np.eye(64, dtype=bool)  # (queries, keys)
        tiles = see.reshape(PER_SIDE, 4, PER_SIDE, 4).any((1, 3))
        grid = Grid.of(one.samples, number)
        assert grid.computed == list(zip(*np.nonzero(tiles), strict=True))
        assert sum(len(grid.seen(i, j)) for i, j in grid.computed) == see.sum()


@pytest.mark.long
def test_local_counts_give_another_mean_of_the_same_losses():
    """A mean of means, by hand; of the first step, in which both runs have the same weights, both ways."""
    found = recorded("documents")
    right, broken = (found.trained(name)[-1] for name in ("train_counting", "train_locally"))
    targets, losses = (np.stack([rank.arrays[name] for rank in right.ranks]) for name in ("targets", "losses"))
    counts = (targets >= 0).sum(-1)  # (ranks, steps)
    assert right.losses == pytest.approx(losses.sum(0) / counts.sum(0), rel=1e-6)
    first = np.stack([rank.arrays["losses"][0] for rank in broken.ranks])
    assert (first == losses[:, 0]).all() and broken.losses[0] == pytest.approx((first / counts[:, 0]).mean(), rel=1e-6)
    assert len({rank.fingerprint for rank in broken.ranks}) == 1 and broken.fingerprint != right.fingerprint
    step = Counted.most_uneven(right)
    ratio = step.counts.max() / step.counts.min()
    assert ratio == (counts.max(0) / counts.min(0)).max()
    stories = [story for story in found.animation.scenes if story.name == "count"]
    for story, weighs in zip(stories, (1, ratio), strict=True):
        assert f"{weighs:.3g} ×" in words(story, story.ends)
        assert fact(story, "mean over all targets") == [round(step.losses.sum() / step.counts.sum(), 3)]
        assert fact(story, "mean of the GPUs") == [round((step.losses / step.counts).mean(), 3)]
    curves = next(story for story in found.animation.scenes if story.name == "loss" and story.broken)
    assert fact(curves, "held out") == [round(run.ranks[0].validation_loss, 3) for run in (right, broken)]
