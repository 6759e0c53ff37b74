"""The demonstration pp: plans on one axis, what ranks store, real runs as GPUs would and as measured, and a bug that is
where the picture marks it."""

import zlib
from itertools import pairwise
from unittest import mock

import pytest
from frames import boxes, check_inside, labels

from minidist.analysis.time.bubbles import slots_of
from minidist.parallel.pipeline import Pipeline
from minidist.parallel.tools.schedule_check import SLOTS, bubble, in_flight, needs, timeline
from minidist.parallel.tools.schedules import Action, schedule
from minidist.show.demos import DEMONSTRATIONS
from minidist.show.demos.pipeline import gpus, picture
from minidist.show.demos.pipeline.bug import MISTAKEN, activations_swapped, corrupted_by, slots_with_bug, waits_with_bug
from minidist.show.demos.pipeline.kinds import KINDS, NAIVE, SWAPPABLE
from minidist.show.demos.pipeline.mini import LEFT, MESSAGE, RIGHT
from minidist.show.demos.pipeline.scene import of_plan, window
from minidist.show.demos.shared import runs
from minidist.show.demos.shared.gpus import LATENCIES, on_gpus
from minidist.show.palette import ON_LIGHT
from minidist.show.player.scene import Box, Label
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank

pytestmark = pytest.mark.long

SMALL = TrainConfig(layers=6, heads=2, width=16, context=8, global_batch=6, micro_batch=1, steps=1)
MARKS = set("FBIW!")


@pytest.fixture(scope="module")
def animation():
    with mock.patch.object(runs, "TRIES", 1):
        return DEMONSTRATIONS["pp"](ranks=2, size=3)


@pytest.fixture(scope="module")
def scenes(animation):
    return {scene.name: scene for scene in animation.all_scenes}


def plan(kind):
    """With 2 ranks and 4 micro-batches."""
    planned = schedule(kind.schedule, 2, 4, kind.virtual)
    return timeline(planned, lambda action: SLOTS[action.kind] / kind.virtual)


def cells(frame) -> list[Box]:
    return [shape for shape in frame.shapes if isinstance(shape, Box) and shape.mark in MARKS]


def rows_of(frame) -> list[list[Box]]:
    """The cells of each row, from left to right."""
    rows: dict[float, list[Box]] = {}
    for cell in cells(frame):
        rows.setdefault(cell.y, []).append(cell)
    return [sorted(rows[y], key=lambda cell: cell.x) for y in sorted(rows)]


def twin_of(kind, animation):
    return next(scene for scene in animation.all_broken if scene.twin == kind.name)


def test_every_shape_and_text_is_inside(animation):
    for scene in animation.all_scenes:
        for one in (scene, *scene.variants):
            check_inside(one, note=150)


def test_all_plans_share_one_axis_and_show_every_action_where_it_is(animation):
    shared = window(2, 4)
    assert shared == 16  # GPipe and 1F1B take 15, and a slot more with the bug
    for kind, scene in zip(KINDS[1:], animation.scenes[1:], strict=False):
        for row, shown in zip(plan(kind), rows_of(scene.frames[-1]), strict=True):
            expected = [f"{slot.action.kind}{slot.action.micro_batch}" for slot in row]
            assert [box.mark + box.id.removeprefix("micro-batch ") for box in shown] == expected
            places = [picture.LEFT + slot.start / shared * (picture.RIGHT - picture.LEFT) for slot in row]
            assert [box.x for box in shown] == pytest.approx(places)


def test_the_naive_plan_moves_on_at_the_same_scale(scenes):
    shared, seen = window(2, 4), set()
    for frame in scenes["naive"].frames:
        first = max(0, frame.at + picture.AHEAD - shared)
        for box in cells(frame):
            begin = first + (box.x - picture.LEFT) / (picture.RIGHT - picture.LEFT) * shared
            if box.x > picture.LEFT or not first:
                seen.add((round(begin, 6), box.y, box.mark, box.text))
    assert {begin for begin, *_ in seen} == {slot.start for row in plan(KINDS[0]) for slot in row}
    assert scenes["naive"].frames[-1].at == 24


def test_plans_have_one_clock(animation):
    for kind, scene in zip(
        (*KINDS, *SWAPPABLE), (*animation.scenes[:5], *map(twin_of, SWAPPABLE, [animation] * 4)), strict=True
    ):
        moments = [frame.at for frame in scene.frames]
        assert moments == sorted(moments) and len(moments) <= 41
        length = max(slot.end for row in (slots_with_bug(kind, 2, 4) if scene.twin else plan(kind)) for slot in row)
        assert moments[-1] == length and {int(length)} <= set(moments)
        for frame in scene.frames:
            assert f"slot {frame.at:g}" in labels(frame) and frame.note.startswith(f"Slot {frame.at:g}: ")


def test_a_plan_shows_what_each_rank_stores(animation):
    """The stack's boxes are the forwards that have begun, less the backwards that have ended."""
    for kind, scene in zip(KINDS, animation.scenes, strict=False):
        for rank, row in enumerate(plan(kind)):
            counts = []
            for frame in scene.frames:
                begun = sum(slot.action.kind == "F" and slot.start < frame.at for slot in row)
                ended = sum(slot.action.kind in "BW" and slot.end <= frame.at for slot in row)
                found = [box for box in boxes(frame, mark="o") if f"on rank {rank}" in box.id]
                assert len(found) == begun - ended == len({box.id for box in found})
                counts.append(len(found))
            most = in_flight([slot.action for slot in row])
            assert max(counts) == most and counts[-1] == 0
            outline = [box for box in boxes(scene.frames[-1], outline="ink", fill=None)][rank]
            assert outline.w == pytest.approx(most * 10 / 4 / kind.virtual)  # the most stays visible
    told = [scene.verdict.split("; ")[1] for scene in animation.scenes[:3]]
    assert told == ["up to 1 stored", "up to 4 stored", "up to 2 stored"]


def test_idle_slots_are_a_share_of_all(animation):
    for kind, scene in zip(KINDS, animation.scenes, strict=False):
        for frame in scene.frames:
            busy = sum(max(0, min(slot.end, frame.at) - slot.start) for row in plan(kind) for slot in row)
            all_slots = 2 * frame.at
            expected = f"{all_slots - busy:g} of {all_slots:g} rank-slots ({(all_slots - busy) / all_slots:.0%})"
            assert frame.facts["idle so far"] == expected
        first, last = scene.frames[0].facts, scene.frames[-1].facts
        assert first[f"bubble {kind.formula}"] == "?"  # not before it is over
        assert last[f"bubble {kind.formula}"] == f"{bubble(plan(kind)):.1%}"
        assert "it matches the single-process run bit for bit" in scene.details


def test_questions_are_asked_before_their_answer_and_answered_right(scenes):
    def answers(name):
        return [question.choices[question.answer] for question in scenes[name].questions]

    assert answers("naive") == ["24"] and answers("GPipe") == ["4", "15"]
    assert answers("1F1B") == ["backward 0", "both take as long"]
    assert answers("interleaved") == ["1.5", "more"] and answers("ZB-H1") == ["when the rank would be idle"]
    assert answers("all") == ["ZB-H1", "naive"]
    turn = scenes["1F1B"].questions[0].frame
    assert "rank 1 forward 0" in scenes["1F1B"].frames[turn - 1].note
    assert "rank 1 backward 0" in scenes["1F1B"].frames[turn].note
    stored = scenes["GPipe"].questions[0].frame
    assert "4 micro-batches" not in [frame.facts["rank 0 stores"] for frame in scenes["GPipe"].frames[:stored]]
    for scene in scenes.values():
        assert bool(scene.twin) != bool(scene.questions) and bool(scene.twin) != bool(scene.cues)
        assert all(question.frame < len(scene.frames) for question in scene.questions)


# ── all schedules on one axis ────────────────────────────────────────────────────────────────────────────────────────


def bands(frame, names) -> dict[str, list[list[Box]]]:
    """The cells of each schedule, rank by rank."""
    found = rows_of(frame)
    return {name: [row for row in found if row[0].id.startswith(f"{name}: ")] for name in names}


def test_the_overview_is_as_long_as_the_plans(scenes):
    shown = bands(scenes["all"].frames[-1], [kind.name for kind in KINDS])
    right = max(box.x + box.w for box in cells(scenes["all"].frames[-1]))
    assert right == pytest.approx(60, abs=0.2)
    for kind in KINDS:
        for row, found in zip(plan(kind), shown[kind.name], strict=True):
            assert [box.mark for box in found] == [slot.action.kind for slot in row]
            assert [box.x for box in found] == pytest.approx([LEFT + slot.start / 24 * (60 - LEFT) for slot in row])
        assert f"{max(slot.end for row in plan(kind) for slot in row):g} slots" in labels(scenes["all"].frames[-1])
        stored = [box for box in boxes(scenes["all"].frames[-1], mark="o") if box.id.startswith(f"{kind.name}: ")]
        assert sum(box.w for box in stored) / (9.5 / 4) + 0.14 * len(stored) == pytest.approx(
            in_flight(schedule(kind.schedule, 2, 4, kind.virtual)[0]) / kind.virtual
        )


def test_the_measured_scene_is_the_real_trace(animation, scenes):
    ran = slots_of(animation.logs)
    frame = scenes["measured"].frames[-1]
    shown = bands(frame, [kind.name for kind in KINDS])
    scale = (shown["naive"][0][1].x - LEFT) / ran[0][1].start
    for row, found in zip(ran, shown["naive"], strict=True):
        assert [box.x for box in found] == pytest.approx([LEFT + slot.start * scale for slot in row])
    assert frame.facts["naive"] == f"{bubble(ran):.0%} idle"
    for kind in KINDS:  # every run did what its plan says
        for row, found in zip(schedule(kind.schedule, 2, 4, kind.virtual), shown[kind.name], strict=True):
            assert [box.mark + box.id[-1] for box in found] == [f"{a.kind}{a.micro_batch}" for a in row]


def test_gpus_wait_for_what_is_in_flight(animation, scenes):
    scene = scenes["GPUs"]
    assert [len(dial.values) for dial in scene.dials] == [4, 3] and len(scene.variants) == 12
    orange = [
        sum(box.w for box in boxes(variant.frames[-1], fill=MESSAGE)) / (RIGHT - LEFT) for variant in scene.variants
    ]
    by_link = [orange[number :: len(LATENCIES)] for number in range(len(LATENCIES))]
    assert all(slow > fast for shares in by_link for slow, fast in pairwise(shares))
    for variant in scene.variants:
        last = variant.frames[-1]
        first = variant.questions[0].choices[variant.questions[0].answer]
        ends = {name: max(box.x + box.w for row in rows for box in row) for name, rows in
                bands(last, [kind.name for kind in SWAPPABLE]).items()}  # fmt: skip
        assert ends[first] == min(ends.values()) and variant.verdict == f"{first} is done first."


def test_a_delay_is_idle_time_that_ends_when_a_message_arrives(animation):
    replayed = on_gpus(animation.logs, "0.1 GB/s", "100 µs", "1 TFLOP/s")
    rows = slots_of(replayed.logs)
    delays = gpus.delays_of(replayed, rows)
    assert sum(map(len, delays)) == 2 * 4  # naive on 2 ranks: 4 forwards wait on rank 1, and 4 backwards on rank 0
    for row, found in zip(rows, delays, strict=True):
        for begin, end in found:
            assert end - begin > LATENCIES["100 µs"]
            assert any(slot.start == end for slot in row)
            assert not any(slot.start < end and slot.end > begin + 2e-9 for slot in row)


# ── the bug ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", SWAPPABLE, ids=lambda kind: kind.name)
@pytest.mark.parametrize("ranks_", [2, 4])
def test_with_the_bug_rank_1_waits_for_the_other_micro_batch(kind, ranks_):
    slots = slots_with_bug(kind, ranks_, 8)
    assert [[slot.action for slot in row] for row in slots] == kind.planned(ranks_, 8)
    ended = {slot.action: slot.end for row in slots for slot in row}
    for slot in (slot for row in slots for slot in row):
        if slot.action in MISTAKEN:
            assert slot.start >= ended[Action(0, "F", MISTAKEN[slot.action])]
        else:
            for some in needs(slot.action, ranks_ * kind.virtual):
                assert min(ended[one] for one in some if one in ended) <= slot.start


def test_every_schedule_has_a_broken_twin(animation):
    assert [scene.twin for scene in animation.all_broken] == ["1F1B", "GPipe", "interleaved", "ZB-H1", "naive", "all"]
    for kind in SWAPPABLE:
        scene = twin_of(kind, animation)
        wrong = [[cell for cell in cells(frame) if cell.fill == "wrong"] for frame in scene.frames]
        assert not any(wrong[: scene.first_wrong]) and all(wrong[scene.first_wrong :])
        assert [cell.text or cell.id[-1] for cell in wrong[-1]] == ["1", "0"]
        assert picture.SWAP in labels(scene.frames[-1])  # in sight to the end
        marked = [cell for cell in cells(scene.frames[-1]) if "wrong" in (cell.fill, cell.outline)]
        assert scene.verdict.startswith(f"{len(marked)} wrong cells; the loss is ")
        told = "".join(frame.note for frame in scene.frames)
        assert "Rank 1 takes 1 instead of 0." in told and "Rank 1 takes 0 instead of 1." in told
        assert "after step 0, in " in scene.details and "weight[" in scene.details and "ulp" in scene.details


def test_the_overview_breaks_at_the_same_moments(animation, scenes):
    broken = scenes["broken all"]
    assert broken.twin == "all" and [f.at for f in broken.frames] == [f.at for f in scenes["all"].frames]
    shown = bands(broken.frames[-1], [kind.name for kind in KINDS])
    assert [cell.mark for row in shown["naive"] for cell in row] == ["F"] and "deadlock" in labels(broken.frames[-1])
    for kind in SWAPPABLE:
        marked = sum(cell.fill == "wrong" for row in shown[kind.name] for cell in row)
        assert marked == len(corrupted_by(MISTAKEN, slots_with_bug(kind, 2, 4))) > 4
        assert sum(cell.outline == "ink" for row in shown[kind.name] for cell in row) == len(MISTAKEN)
        assert broken.frames[-1].facts[kind.name] == f"{marked} wrong cells"


def test_the_naive_schedule_deadlocks_with_the_bug(animation):
    """As the picture says, so the real ranks said: everyone waits for a neighbour, in the same moments as before."""
    scene = twin_of(NAIVE, animation)
    assert waits_with_bug(NAIVE, 4, 8) == {0: 1, 1: 0, 2: 1, 3: 2} and slots_with_bug(NAIVE, 4, 8)[1:] == [[], [], []]
    assert not any(waits_with_bug(kind, 4, 8) for kind in SWAPPABLE)
    assert [frame.at for frame in scene.frames] == [frame.at for frame in animation.scenes[0].frames]
    last = scene.frames[-1]
    waits = [box.text for box in boxes(last, outline="wrong")]
    assert waits == ["waits for rank 1", "waits for rank 0"] and not cells(last)  # the one forward has moved out
    stuck = picture.Lanes(slots_with_bug(NAIVE, 4, 8), 40, 8, stuck=waits_with_bug(NAIVE, 4, 8)).shapes(96)
    fills = [one.fill for one in stuck if isinstance(one, Box) and one.outline == "wrong"]
    assert fills == ["wrong", "wrong", "faint", "faint"]  # ranks 0 and 1 are the loop
    for rank, text in enumerate(waits):
        told = next(line for line in scene.details.splitlines() if line.startswith(f"  rank {rank} is in irecv: "))
        assert text.replace("for", "for a message from") in told
    assert last.note.endswith("every rank waits for another.") and scene.frames[0].note.endswith("; 1 idle.")
    assert not any(boxes(frame, outline="wrong") for frame in scene.frames[: scene.first_wrong])
    assert scene.frames[scene.first_wrong].at == 2


@pytest.mark.parametrize("ranks_", [2, 3])
def test_exactly_what_is_marked_as_corrupted_is_wrong(ranks, ranks_):
    """Each message of a real run is an action's outcome: compared with the run without the bug."""

    def outcomes(world, rank_function):
        sent, send = {}, Pipeline.send

        def watched(self, array, stage, i, way):
            sent[Action(stage, "F", i) if way == "forward" else Action(stage + 1, "B", i)] = zlib.crc32(array.tobytes())
            send(self, array, stage, i, way)

        with mock.patch.object(Pipeline, "send", watched):
            rank_function(world, SMALL, Layout(pp=ranks_), RunOptions())
        return sent

    found = []
    for function in (train_rank, activations_swapped):
        results = ranks(ranks_).run(outcomes, function, timeout=60)
        found.append({action: digest for sent in results for action, digest in sent.items()})
    right, wrong = found
    mistaken = [Action(1, "F", 0), Action(1, "F", 1)]
    marked = corrupted_by(mistaken, timeline(schedule("1f1b", ranks_, 6)))
    assert {action for action in right if right[action] != wrong[action]} == marked & set(right)
    assert {action.micro_batch for action in marked} == {0, 1}


@pytest.mark.parametrize(("count", "micro_batches"), [(2, 2), (3, 3), (4, 8)])
def test_the_bug_does_harm(ranks, count, micro_batches):
    config = TrainConfig(**(vars(SMALL) | {"layers": 4, "global_batch": micro_batches, "seed": count}))
    one, bad = run(ranks(1), config, Layout()), run(
        ranks(count), config, Layout(pp=count), rank_function=activations_swapped
    )  # fmt: skip
    assert one.losses != bad.losses and one.fingerprint != bad.fingerprint


def test_sizes(animation):
    assert DEMONSTRATIONS["pp"].ranks == 4  # on few cores too
    assert (
        animation.scenes[3].title
        == "interleaved, as planned: 2 ranks, 4 micro-batches, 3 rounded up to a multiple of 2 ranks"
    )
    with pytest.raises(ValueError, match="size, the micro-batches of a step, must be at most 16"):
        DEMONSTRATIONS["pp"](ranks=2, size=17)
    with pytest.raises(ValueError, match="shows 2 to 8 ranks, not 9"):
        DEMONSTRATIONS["pp"](ranks=9)


def test_cells_of_half_a_slot_have_their_numbers_in_turn_above_and_below():
    """By default: 4 ranks, 8 micro-batches, a forward of a stage takes half a slot."""
    last = of_plan(KINDS[3], 4, 8, "proved", "").frames[-1]
    narrow = [cell for cell in cells(last) if not cell.text]
    numbers = {(shape.x, shape.text) for shape in last.shapes if isinstance(shape, Label) and shape.colour == ON_LIGHT}
    assert len(narrow) == 4 * 2 * 8 and {(cell.x + cell.w / 2, cell.id[-1]) for cell in narrow} == numbers
    for row in rows_of(last):
        inside = sorted((s.x, s.y) for s in last.shapes if getattr(s, "colour", "") == ON_LIGHT
                        and row[0].y < s.y < row[0].y + row[0].h)  # fmt: skip
        assert len(inside) == 16
        for (x, y), (next_x, next_y) in pairwise(inside):
            assert y != next_y or next_x - x > 1  # side by side, two digits would touch
