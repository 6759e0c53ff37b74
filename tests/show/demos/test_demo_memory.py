"""The demonstrations of memory: their claims against formulas, the ledger's own peaks, and the moment of the bug."""

import re
from dataclasses import replace
from itertools import pairwise
from unittest import mock

import pytest
from frames import boxes, check_inside, labels

from minidist.nn.gpt import GPT
from minidist.show.demos import DEMONSTRATIONS, recompute, zero
from minidist.show.demos.recompute.bug import train_redrawn
from minidist.show.demos.recompute.run import MODES, bytes_of_block
from minidist.show.demos.recompute.scene import AGAIN
from minidist.show.demos.shared.memory_log import KINDS, Change, MemoryLog, last_steps, train_logging_memory
from minidist.show.demos.shared.runs import warm_ranks
from minidist.show.demos.shared.stacks import Mark, Panel, Stacks, bytes_text, panels_of
from minidist.show.demos.zero import states
from minidist.show.demos.zero.bug import train_stale, train_stale_sharded
from minidist.show.demos.zero.scene import FORMULAS
from minidist.show.figures.memory import COLOURS
from minidist.show.player.scene import WIDTH, Box, Label
from minidist.trace import Event
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout

pytestmark = pytest.mark.long  # it records several training runs


@pytest.fixture(scope="module")
def warm():
    with warm_ranks() as ranks:
        yield ranks


@pytest.fixture(scope="module")
def stages_and_marks():
    with mock.patch.object(zero.scene, "Mark", wraps=Mark) as made:
        animation = zero.animation(2, 16, 0)
    return animation, [Mark(*call.args) for call in made.call_args_list]


@pytest.fixture(scope="module")
def stages(stages_and_marks):
    return stages_and_marks[0]


@pytest.fixture(scope="module")
def modes():
    return recompute.animation(2, 16, 0)


CONFIG = TrainConfig(layers=2, heads=4, width=16, context=16, global_batch=2, micro_batch=1, steps=2)


def test_what_is_held_is_what_the_ledger_says(warm):
    run = warm.train(CONFIG, Layout(dp=2, zero=1), train_logging_memory, trace=True)
    total = sum(parameter.size for parameter in GPT(CONFIG.model).parameters())
    for rank in run.ranks:
        two, one = last_steps(rank.log, 2), last_steps(rank.log)
        assert {kind: two.highest(kind) for kind in KINDS} == {kind: rank.memory[kind] for kind in KINDS}
        assert two.highest() == rank.memory["peak"]
        assert one.highest("parameters") == 4 * total and one.highest("gradients") == 8 * total + 8 * total / 2
        assert [change.time for change in one.changes] == sorted(change.time for change in one.changes)
        step = [entry for entry in rank.log if getattr(entry, "track", "") == "step"][-1]
        assert one.changes[0].time <= step.start < one.changes[1].time and one.changes[-1].time <= step.end
        assert len(one.places("forward")) == 1 and len(two.places("forward")) == 2
        (forward, backward), (update, end) = one.places("forward")[0], one.places("optimizer")[0]
        assert 0 < forward < backward < update < end <= 1
        assert one.between(0, 1)["activations"] > 0 == one.at(1)["activations"]


def test_places_count_changes():
    changes = [Change(10 * i, dict.fromkeys(KINDS, 0) | {"gradients": size}) for i, size in enumerate((5, 9, 1, 2))]
    held = MemoryLog(changes, [Event("forward 0", "compute", 10, 25)])
    assert held.places("forward") == [(0.5, 0.75)] and held.places("backward") == []
    assert [held.at(place)["gradients"] for place in (0, 0.25, 0.5, 0.75, 1)] == [5, 5, 9, 1, 2]
    assert held.between(0, 0.5)["gradients"] == 9 and held.between(0.5, 0.6)["gradients"] == 1
    assert held.highest("gradients", end=0.25) == 5 and held.highest("optimizer") == 0


@pytest.mark.parametrize("ranks", range(1, 9))
def test_panels_are_side_by_side(ranks):
    panels, height = panels_of(ranks, lane=True)
    places = {(panel.x, panel.y) for panel in panels}
    assert len(panels) == len(places) == ranks and height <= 16
    for panel in panels:
        assert panel.x + panel.width <= WIDTH and panel.bottom + 1 == panel.floor == panel.y + height / rows(panels) - 1


def rows(panels: list[Panel]) -> int:
    return len({panel.y for panel in panels})


@pytest.mark.parametrize("ranks", [2, 8, 1024])
def test_bars_of_16_bytes_are_those_of_the_paper(ranks):
    """Rajbhandari et al., 2020, figure 1: with K = 12."""
    expected = [16, 4 + 12 / ranks, 2 + 14 / ranks, 16 / ranks]
    assert [sum(states.kept(kind, stage, ranks) for kind in states.BYTES) for stage in range(4)] == expected
    scene = states.scene(ranks)
    check_inside(scene)
    assert f" {ranks} keeps" in scene.title.replace("of ", " ")
    line = (states.FLOOR - states.TOP) / 16
    for stage, total in enumerate(expected):
        bar = [box for box in boxes(scene.frames[-1]) if box.id.endswith(f", {states.STAGES[stage]}")]
        assert sum(box.h for box in bar) == pytest.approx(line * total)
    assert [question.answer for question in scene.questions] == [0, 2]
    assert scene.questions[1].choices[2] == f"{16 / ranks:.3g} bytes"


def test_every_stage_asks_and_has_its_twin(stages):
    assert [scene.twin for scene in stages.all_broken] == ["stage 1", "stage 2", "stage 3"]
    assert stages.breakable() == ("stage 1", "stage 2", "stage 3")  # the others gather no parameters
    for scene in stages.all_broken:
        twin = next(one for one in stages.scenes if one.name == scene.twin)
        assert len(twin.frames) == len(scene.frames)
        assert [len(labels(frame)) for frame in twin.frames[: scene.first_wrong]] == [
            len(labels(frame)) for frame in scene.frames[: scene.first_wrong]
        ]
    for scene in stages.scenes:
        check_inside(scene)
        assert scene.cues and all(0 < question.frame < len(scene.frames) for question in scene.questions)
    answers = [scene.questions[0].answer for scene in stages.scenes[1:]]
    peaks = [float(s.frames[-1].facts["total, rank 0"].split("peak ")[1].split()[0]) for s in stages.scenes[1:]]
    lower = [after / before for before, after in pairwise(peaks)]
    assert answers[1:] == [sum(ratio < limit for limit in (0.98, 0.75)) for ratio in lower]


def test_an_address_without_dials_keeps_them_where_they_begin(stages, open_page, tmp_path):
    page = replace(stages, scenes=(states.scene(8), *stages.scenes[1:]))
    (tmp_path / "zero.html").write_text(page.html(), encoding="utf-8")
    one = open_page((tmp_path / "zero.html").as_uri() + "#scene=16%20bytes&step=1")
    assert one.text_content("#dials output") == "8" and "of 8" in one.text_content("h1 >> nth=0")


def heights(scene, frame: int, kind: str) -> float:
    """The largest height of a kind's boxes."""
    return max(box.h for box in scene.frames[frame].shapes if isinstance(box, Box) and box.fill == COLOURS[kind])


def test_zero_shows_what_each_stage_keeps(stages):
    assert [scene.name for scene in stages.scenes] == ["16 bytes", "replicated", "stage 1", "stage 2", "stage 3"]
    peaks, measured = [], stages.scenes[1:]
    for stage, scene in enumerate(measured):
        facts = scene.frames[-1].facts
        for kind, (words, formula) in FORMULAS[stage].items():
            now, text = facts[kind].split(", peak ")
            assert float(now) == pytest.approx(formula(2), abs=0.02), (scene.name, kind)
            assert f"formula {words}" in text and text.endswith(f"{formula(2):g}")
        peaks.append(float(facts["total, rank 0"].split("peak ")[1].removesuffix(" B per parameter")))
        assert scene.first_wrong is None and "it matches the single-process run bit for bit" in scene.details
    # of 2 ranks, stage 1 holds in backward both all gradients and its half of the sum: nothing is saved at the peak
    assert peaks[0] == peaks[1] > peaks[2] > peaks[3]
    plain, shard = (heights(measured[stage], -1, "optimizer") for stage in (0, 1))
    assert shard == pytest.approx(plain / 2, rel=0.02)


def test_kinds_are_stacked(stages):
    for scene in stages.scenes[1:]:
        frame = scene.frames[-1]
        boxes = [shape for shape in frame.shapes if isinstance(shape, Box) and shape.fill in COLOURS.values()]
        panel = panels_of(1, lane=False)[0][0]
        for column in range(panel.width):
            here = [box for box in boxes if box.x <= column < box.x + box.w]
            assert [box.mark for box in here] == ["p", "o", "g", "a"][: len(here)]
            edge = panel.bottom
            for box in here:
                assert box.y + box.h == pytest.approx(edge)
                edge = box.y
            assert edge >= panel.y + 1


def test_frames_hide_what_has_not_happened(stages):
    for scene in (*stages.scenes[1:], stages.broken):
        hidden = [
            sum(box.w for box in frame.shapes if isinstance(box, Box) and box.fill == "paper") for frame in scene.frames
        ]
        assert hidden[0] == 66 and hidden[-1] == 0 and len(hidden) == 34 and hidden == sorted(hidden, reverse=True)
        assert len({tuple(frame.facts) for frame in scene.frames}) == 1
        boxes = {shape for frame in scene.frames for shape in frame.shapes if isinstance(shape, Box)}
        assert sum(box.fill != "paper" for box in boxes) < 400


def test_a_bug_is_marked_from_its_moment_on(stages, modes):
    for animation in (stages, modes):
        scene = animation.broken
        wrong = ["wrong" in [getattr(shape, "fill", "") for shape in frame.shapes] for frame in scene.frames]
        assert wrong.index(True) == scene.first_wrong > 0 and all(wrong[scene.first_wrong :])
        assert "Wrong here" in scene.frames[scene.first_wrong].note and "Wrong" not in scene.frames[0].note
        assert re.search(r"it first differs after step \d, in .* ulps?\b apart", scene.details)
    assert "after step 2" in stages.broken.details and "after step 1" in modes.broken.details


def test_stale_are_the_parameters_that_other_ranks_update(stages_and_marks):
    _, marks = stages_and_marks
    block = 12 * 16**2 + 13 * 16  # of width 16: matrices, and their biases and both norms
    assert [mark.nbytes for mark in marks[:2]] == [4 * block // 2] * 2  # half of it is a rank's own; float32
    assert [mark.nbytes for mark in marks[2:]] == [4 * block] * (len(marks) - 2)  # stage 3: what was gathered before
    assert len(marks) > 2 and all(mark.start < mark.end for mark in marks)


def line(scene, lane: bool) -> float:
    """The height of the line above the bottom of rank 0's area."""
    box = next(shape for shape in scene.frames[-1].shapes if isinstance(shape, Box) and shape.fill == "ink")
    return panels_of(1, lane)[0][0].bottom - (box.y + box.h / 2)


def test_the_line_is_at_the_height_of_the_formula(stages, modes):
    """The area of the optimizer state, which is constant during a step, gives the scale."""
    for scene, kept, optimizer in zip(
        (*stages.scenes[1:], stages.broken), (24, 14, 14, 12, 14), (8, 4, 4, 4, 4), strict=True
    ):  # bytes a parameter, of 2 ranks
        expected = heights(scene, -1, "optimizer") * kept / optimizer
        assert line(scene, lane=False) == pytest.approx(expected, rel=0.02)
    state = last_steps(modes.logs[0]).highest("optimizer")  # master and two moments: 12 bytes a parameter
    for scene in (*modes.scenes, modes.broken):
        blocks = number(list(scene.frames[-1].facts.values())[2])
        expected = heights(scene, -1, "optimizer") * (state / 12 * (2 + 12 + 8) + blocks) / state
        assert line(scene, lane=True) == pytest.approx(expected, rel=0.02)


def test_a_mark_is_as_high_as_its_bytes_and_always_visible():
    changes = [Change(10 * i, dict.fromkeys(KINDS, 0) | {"parameters": 100}) for i in range(34)]
    held = MemoryLog(changes, [Event("step 0", "step", 0, 400)])
    for nbytes, high in ((50, 5), (20, 2), (1, 0.5)):
        marks = [[Mark(0.5, 1, "wrong", "stale", nbytes)]]
        scene = Stacks([held], 100, 100, {"zero grad": "x"}, lambda *_: {}, marks, {}).scene("x", "x", "x")
        (box,) = (s for s in scene.frames[-1].shapes if isinstance(s, Box) and s.fill == "wrong")
        assert (box.h, box.y + box.h) == (high, panels_of(1, False)[0][0].bottom) and (box.x, box.w) == (34, 34)
        assert [s.text for s in scene.frames[-1].shapes if isinstance(s, Label) and s.colour == "wrong"] == ["stale"]


def test_as_many_recomputations_as_marks_so_far(modes):
    for scene in (*modes.scenes, modes.broken):
        colour = "wrong" if scene is modes.broken else AGAIN
        shown = []
        for frame in scene.frames:
            marks = [s for s in frame.shapes if isinstance(s, Box) and s.fill == colour]
            shown.append(int(frame.facts["recomputed so far"].replace("nothing", "0").split()[0]))
            assert shown[-1] == len(marks)
        assert shown[0] == 0 and (scene.name == "none" or set(shown) == {0, 1, 2, 3, 4})


def test_the_recomputed_share_of_flops_follows_from_the_shapes(modes):
    """By hand, per token: width 16, context 64, vocabulary 256; a product counts 2 for each weight."""
    core = 2 * (2 * 64 * 16)  # queries with keys, and attention weights with values
    block = 2 * (16 * 48 + 16 * 16 + 2 * 16 * 64) + core
    step = 3 * (4 * block + 2 * 16 * 256)  # backward is two forwards
    for scene, again in zip(modes.scenes, (0, core, block), strict=True):
        for frame in scene.frames:
            assert list(frame.facts.values())[4:] == [f"{4 * again / step:.1%}"] * 2


def test_both_modes_that_recompute_can_be_broken_and_everything_is_asked(modes):
    assert {scene.twin: scene.name for scene in modes.all_broken} == {
        "full": "broken full", "selective": "broken selective"
    }  # fmt: skip
    for scene in modes.all_scenes:
        (question,) = scene.questions
        assert scene.cues and 0 < question.frame < len(scene.frames)
        added = scene.frames[0].facts["recomputed share of FLOPs"]
        if scene.name in ("selective", "full"):
            assert question.reason.startswith(added)
            assert question.choices[question.answer].startswith(
                "less than a tenth" if float(added[:-1]) < 10 else "about a third"
            )


def test_recomputation_trades_memory_for_work(modes):
    assert [scene.name for scene in modes.scenes] == ["none", "selective", "full"]
    last = [list(scene.frames[-1].facts.values()) for scene in modes.scenes]
    peaks = [number(facts[1]) for facts in last]
    kept = [number(facts[2]) for facts in last]
    assert peaks == sorted(peaks, reverse=True) and all(k < peak for k, peak in zip(kept, peaks, strict=True))
    assert [facts[3] for facts in last] == ["nothing", "4 of 4 blocks", "4 of 4 blocks"]
    assert all(facts[4] == facts[5] for facts in last)
    assert [float(facts[4][:-1]) for facts in last] == sorted(float(facts[4][:-1]) for facts in last)


def number(text: str) -> float:
    value, unit = text.split()
    return float(value) * {"kB": 1e3, "MB": 1e6}[unit]


def test_blocks_keep_what_the_formula_says(warm):
    """A model with one more block holds more, by as much as the formula says."""
    for mode in MODES:
        found = {}
        for layers in (2, 3):
            config = TrainConfig(
                layers=layers, heads=4, width=16, context=16, global_batch=4, micro_batch=2, steps=1, dropout=0.1,
                precision="bf16",
            )  # fmt: skip
            found[layers] = warm.train(config, Layout(dp=2, recompute=mode)).ranks[0].memory["activations"]
        assert found[3] - found[2] == bytes_of_block(config, mode), mode


@pytest.mark.parametrize("ranks", (3, 4))
def test_the_bugs_do_harm_on_more_ranks(ranks):
    config = TrainConfig(
        layers=2, heads=1, width=5, context=8, global_batch=ranks, micro_batch=1, steps=3, dropout=0.1,
        precision="bf16", seed=ranks,
    )  # fmt: skip
    with warm_ranks() as warm:
        for layout, bug in (
            (Layout(dp=ranks, zero=1), train_stale),
            (Layout(dp=ranks, zero=3), train_stale_sharded),
            (Layout(dp=ranks, recompute="full"), train_redrawn),
        ):
            assert warm.first_difference(config, warm.train(config, layout, bug), bug).step == 2


@pytest.mark.parametrize("name", ("zero", "recompute", "bf16"))
def test_sizes_that_make_no_picture(name):
    for size in (3, 257):
        with pytest.raises(ValueError, match="size, the model's width, must be from 4 to 256"):
            DEMONSTRATIONS[name](size=size)
    with pytest.raises(ValueError, match="2 to 8 ranks, not 9"):
        DEMONSTRATIONS[name](ranks=9)


def test_bytes_text():
    assert bytes_text(999_900) == "999.9 kB" and bytes_text(1_234_567) == "1.23 MB"
