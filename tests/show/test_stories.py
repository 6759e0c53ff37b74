"""What holds in all stories of all demonstrations, at the sizes of lectures and at others."""

from dataclasses import replace
from itertools import pairwise

import pytest
from choosing import long
from recorded import RANKS, recorded, short_runs
from stories import check, shown, told

from minidist.nn.exact import bits_of
from minidist.show.demos import DEMONSTRATIONS, collectives
from minidist.show.demos.bf16.run import train_recording
from minidist.show.demos.collectives import kinds
from minidist.show.demos.compress.run import train_recording as train_compressing
from minidist.show.demos.context_parallel.run import train_watched
from minidist.show.demos.documents.run import train_counting
from minidist.show.demos.expert_parallel.run import train_watched as train_routed
from minidist.show.demos.parameter_server.watched import train_watched as train_served
from minidist.show.demos.shared.memory_log import train_logging_memory
from minidist.show.stage.characters import picture
from minidist.show.stage.lecture import notes
from minidist.show.stage.marks import WIDTH
from minidist.show.stage.story import Story
from minidist.train.trainer import train_rank

QUICK = ("broadcast", "ring", "all-to-all", "cp", "recompute", "bf16", "exact", "flash", "deadlock")  # a second each
TOLD = [name if name in QUICK else long(name) for name in DEMONSTRATIONS]
UNBREAKABLE = {  # no run that a bug could spoil, or none that it does
    "zero": {"16 bytes"}, "sp": {"MLP"}, "pp": {"race", "measured"}, "flash": {"standard"}, "cluster": {"one node"},
    "async": {"synchronous", "evidence"}, "deadlock": {"odd recv first", "posted together"},
    "documents": {"packs", "tiles"},
    "exact": {"product"},  # a BLAS may add a row alone in its batch's order
}  # fmt: skip
SIZES = [  # name, ranks, size, seed: the least and the most, odd ones, and others' random numbers
    ("broadcast", 2, 1, 0), ("ring", 3, 1, 1), long("broadcast", 8, 5, 1), long("ring", 2, 4, 7), long("ring", 8, 4, 0),
    long("reduce-scatter", 7, 2, 3), long("all-gather", 2, 3, 2), long("all-gather", 8, 3, 2),
    long("all-to-all", 8, 5, 1),
    long("dp", 3, 13, 1), long("dp", 8, 8, 0), long("zero", 2, 9, 1), long("zero", 8, 12, 0), long("tp", 3, 9, 5),
    long("tp", 8, 8, 0), long("sp", 3, 9, 5), long("sp", 8, 16, 1), long("cp", 2, 1, 1), long("cp", 8, 64, 0),
    long("ep", 2, 1, 0), long("ep", 8, 4, 1), long("ep", 5, 3, 2), long("pp", 2, 1, 0), long("pp", 3, 9, 1),
    long("pp", 8, 32, 0), long("documents", 2, 32, 1), long("documents", 3, 128, 0),
    long("recompute", 3, 13, 1), long("recompute", 2, 7, 0), long("recompute", 8, 12, 0),
    long("bf16", 3, 16, 1), long("bf16", 8, 16, 2), ("exact", 1, 4, 1), ("exact", 1, 8, 2),
    long("flash", 1, 12, 1), long("flash", 1, 512, 0),
    long("async", 3, 2, 0), long("async", 6, 6, 1), long("compress", 2, 8, 1), long("compress", 8, 24, 0),
    ("deadlock", 7, 2000, 3), ("deadlock", 2, 600_000, 1), long("deadlock", 8, 1_000_000, 2),
    long("cluster", 4, 128, 1), long("cluster", 8, 512, 0),
    long("failure", 2, 2, 1), long("failure", 8, 2, 0),
]  # fmt: skip


def every_form(story: Story) -> list[Story]:
    return list(story.variants or [story])


def ticks(story: Story) -> set[tuple[str, float, float]]:
    """The numbers that stand still on the stage, which are those of axes, and where."""
    return {
        (mark.still["text"], mark.keys[0][1]["x"], mark.keys[0][1]["y"])
        for mark in story.marks
        if mark.kind == "text" and len(mark.keys) == 1 and mark.still["text"].replace(".", "").isdigit()
    }


@pytest.mark.parametrize("name", TOLD)
def test_every_story_can_be_read_and_every_run_can_be_broken(name):
    animation, about = recorded(name).animation, DEMONSTRATIONS[name]
    assert tuple(story.name for story in animation.right) == about.scenes and all(animation.logs)
    colours = {values["fill"] for story in animation.scenes for one in every_form(story) for mark in one.marks
               for _, values in mark.keys}  # fmt: skip
    for story in animation.scenes:
        for one in every_form(story):
            check(one)
        assert set((story.key or {}).values()) <= colours
        assert all(0 < len(beat.says) <= 110 for beat in story.beats)
        twin = animation.twin(story)
        assert bool(twin) or story.name in UNBREAKABLE.get(name, ()), f"no bug in {story.name}"
        if twin and not story.broken:
            ends = [[*told(one, one.beats[-1]), one.verdict] for one in (story.at_start, twin.at_start)]
            assert ends[0] != ends[1], f"{story.name}: nobody sees the bug"
            assert "bit for bit" not in twin.verdict and "Every bit" not in twin.verdict
    assert "<- the answer" in notes(animation) and len(animation.html()) < 400_000


@pytest.mark.parametrize("name", TOLD)
def test_both_panes_of_a_comparison_have_the_same_axes(name):
    """Numbers of axes are where they are in the right run, and a first bar that no bug can reach is as wide."""
    for story in recorded(name).animation.right:
        twin = recorded(name).animation.twin(story)
        for one, other in zip(every_form(story), every_form(twin) if twin else [], strict=bool(twin)):
            both = {(x, y) for _, x, y in ticks(one)} & {(x, y) for _, x, y in ticks(other)}
            if name != "cluster":  # whose numbers are those of ranks, dealt in another order
                assert {tick for tick in ticks(one) if tick[1:] in both} <= ticks(other), story.name
            if story.name in ("race", "step"):  # on a simulated clock forward always takes as long
                wide = [max(values["w"] for _, values in _first_bar(each).keys) for each in (one, other)]
                assert wide[0] == pytest.approx(wide[1], rel=1e-6), story.name


def _first_bar(story: Story):
    """A bar that grows, and is no waiting, which is grey."""
    growing = (mark for mark in story.marks if mark.kind == "box" and len(mark.keys) > 1)
    return next(mark for mark in growing if mark.now["fill"] != "faint")


@pytest.mark.parametrize("name", TOLD)
def test_dials_have_a_dozen_positions_each_with_another_picture(name):
    for story in recorded(name).animation.scenes:
        for dial in story.dials:
            assert len(dial.values) >= 12 and len({*dial.values}) == len(dial.values)
        for one, other in pairwise(story.variants):
            assert [mark.keys for mark in one.marks] != [mark.keys for mark in other.marks]


def asked_for(story: Story, moment: float) -> list[str]:
    """The words of a moment; in a box, whose width may be measured, those for which 80 columns have room."""
    return [
        mark.still["text"]
        for mark, (left, _, right, _) in shown(story, moment)
        if mark.kind == "text" or ("text" in mark.still and right - left > (len(mark.still["text"]) + 2) * WIDTH / 80)
    ]


@pytest.mark.parametrize("name", TOLD)
def test_a_terminal_of_80_columns_shows_every_word(name):
    for story in recorded(name).animation.scenes:
        story = story.at_start
        for beat in story.beats:
            shown_there = picture(story, beat.at, 80, 22, colours=False).plain
            hidden = [text for text in asked_for(story, beat.at) if len(text) > 2 and text not in shown_there]
            assert not hidden, f"{story.name}, {beat.at:g} s: {hidden}"


@pytest.mark.parametrize(("name", "ranks", "size", "seed"), SIZES)
def test_other_sizes_can_be_read(name, ranks, size, seed):
    for story in recorded(name, ranks, size, seed).animation.scenes:
        for one in every_form(story):
            check(one)


# ── a right run that is not right, or a bug that does nothing, is no demonstration ───────────────────────────────────

PROVED = dict.fromkeys(
    ("dp", "zero", "tp", "sp", "cp", "ep", "pp", "documents", "recompute", "bf16", "cluster", "failure"), "shared.runs"
) | {"async": "parameter_server.run"}  # the module that compares its runs with one process
HARMLESS = {  # what puts the bug in, and what leaves it out
    "dp": ("data_parallel.drops_a_bucket", train_rank), "tp": ("tensor_parallel.bug.drops_g", train_rank),
    "zero": ("zero.STALE", dict.fromkeys((1, 2, 3), train_logging_memory)),
    "sp": ("tensor_parallel.bug.drops_gains", train_rank),
    "cp": ("context_parallel.train_stale", train_watched), "ep": ("expert_parallel.train_too_large", train_routed),
    "pp": ("pipeline.activations_swapped", train_rank), "recompute": ("recompute.train_redrawn", train_logging_memory),
    "documents": ("documents.train_locally", train_counting),
    "bf16": ("bf16.train_without_masters", train_recording), "flash": ("flash.train_without_rescaling", train_rank),
    "exact": ("exact.bits_without_room", bits_of),
    "async": ("parameter_server.train_with_copies", train_served),
    "compress": ("compress.train_forgetting", train_compressing),
    "failure": ("failure.train_forgetful", train_rank),
}  # fmt: skip


@pytest.mark.parametrize("name", [long(name) if name not in QUICK else name for name in PROVED])
def test_no_run_is_called_right_that_one_process_does_not_confirm(name, monkeypatch):
    short_runs(monkeypatch)
    monkeypatch.setattr(f"minidist.show.demos.{PROVED[name]}.agrees", lambda *_: False)
    with pytest.raises(RuntimeError, match="does not match the single-process run"):
        DEMONSTRATIONS[name](RANKS.get(name))


@pytest.mark.parametrize("name", [long(name) if name not in QUICK else name for name in HARMLESS])
def test_a_bug_that_does_nothing_is_not_shown(name, monkeypatch):
    short_runs(monkeypatch)
    monkeypatch.setattr(f"minidist.show.demos.{HARMLESS[name][0]}", HARMLESS[name][1])
    with pytest.raises(RuntimeError, match=r"changes no bit|does no harm"):
        DEMONSTRATIONS[name](RANKS.get(name))


@pytest.mark.parametrize("kind", [kinds.BROADCAST, long(kinds.ALL_REDUCE), long(kinds.REDUCE_SCATTER),
                                  long(kinds.ALL_GATHER), kinds.ALL_TO_ALL], ids=lambda kind: kind.name)  # fmt: skip
def test_a_collective_ends_on_what_one_process_computes_and_its_bug_does_not(kind):
    for changed in ("program", "broken"):
        other = {"program": "broken", "broken": "program"}[changed]
        algorithms = {name: replace(how, **{changed: getattr(how, other)}) for name, how in kind.algorithms.items()}
        with pytest.raises(RuntimeError, match="does not end on the right terms, or its bug does no harm"):
            collectives.animation(replace(kind, algorithms=algorithms), 4, 1, 0)
