"""The demonstration pp: its pictures show the plan and the real run, its bug is where the picture marks it."""

import zlib
from unittest import mock

import pytest

from minidist.analysis.time.bubbles import slots_of
from minidist.parallel.pipeline import Pipeline
from minidist.parallel.tools.schedule_check import SLOTS, bubble, in_flight, timeline
from minidist.parallel.tools.schedules import Action, schedule
from minidist.show.demos import DEMONSTRATIONS
from minidist.show.demos.pipeline.bug import activations_swapped, corrupted_by
from minidist.show.demos.pipeline.kinds import BROKEN, KINDS
from minidist.show.demos.shared import runs
from minidist.show.player.scene import WIDTH, Box
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank

SMALL = TrainConfig(layers=6, heads=2, width=16, context=8, global_batch=6, micro_batch=1, steps=1)
MARKS = set("FBIW!")


@pytest.fixture(scope="module")
def animation():
    with mock.patch.object(runs, "TRIES", 1):
        return DEMONSTRATIONS["pp"](ranks=2, size=3)


def cells(frame) -> list[Box]:
    return [shape for shape in frame.shapes if isinstance(shape, Box) and shape.mark in MARKS]


def last_cells(scene) -> list[list[Box]]:
    """For each row of the last frame, its cells from left to right."""
    rows: dict[float, list[Box]] = {}
    for cell in cells(scene.frames[-1]):
        rows.setdefault(cell.y, []).append(cell)
    return [sorted(rows[y], key=lambda cell: cell.x) for y in sorted(rows)]


def test_both_panels_show_every_action_in_the_order_of_the_schedule(animation):
    for kind, scene in zip(KINDS, animation.scenes, strict=True):
        planned = schedule(kind.schedule, 2, 4, kind.virtual)
        expected = [[f"{action.kind}{action.micro_batch}" for action in row] for row in planned]
        assert [[cell.mark + cell.text for cell in row] for row in last_cells(scene)] == 2 * expected


def test_the_figures_are_those_of_schedule_and_trace(animation):
    for kind, scene in zip(KINDS, animation.scenes, strict=True):
        planned = schedule(kind.schedule, 2, 4, kind.virtual)
        counted = f"{bubble(timeline(planned)):.1%}"
        facts = scene.frames[-1].facts
        assert facts[f"bubble {kind.formula}"] == counted and counted in scene.frames[-1].note
        idle, _, all_idle, _ = facts["idle so far"].split()
        assert idle == all_idle
        held = [float(frame.facts["rank 0 holds"].split()[0]) * kind.virtual for frame in scene.frames]
        assert max(held) == in_flight(planned[0]) and held[-1] == 0
        assert "it matches the single-process run bit for bit" in scene.verdict
    assert animation.scenes[0].frames[-1].facts["as it ran"] == f"{bubble(slots_of(animation.logs)):.1%}"


def test_the_lower_panel_is_the_real_trace(animation):
    ran = slots_of(animation.logs)
    end = max(slot.end for row in ran for slot in row)
    for row, boxes in zip(ran, last_cells(animation.scenes[0])[2:], strict=True):
        for slot, box in zip(row, boxes, strict=True):
            assert box.x == pytest.approx(7 + slot.start / end * 64.5)


def test_time_uncovers_and_never_hides(animation):
    """A cell appears when the cover passes its beginning, and stays."""
    for scene in (*animation.scenes, animation.broken):
        assert len(scene.frames) <= 41
        for before, after in zip(scene.frames, scene.frames[1:], strict=False):
            assert set(cells(before)) <= set(cells(after))
            cover = min(shape.x for shape in before.shapes if isinstance(shape, Box) and shape.fill == "paper")
            assert all(cell.x < cover for cell in cells(before))
            assert all(cell.x > cover - 1e-9 for cell in set(cells(after)) - set(cells(before)))
            assert list(before.facts) == list(after.facts)
        for frame in scene.frames:
            for box in (shape for shape in frame.shapes if isinstance(shape, Box)):
                assert 0 <= box.x <= box.x + box.w <= WIDTH and 0 <= box.y <= box.y + box.h <= scene.height


def test_a_slot_is_described_while_the_cover_passes_it(animation):
    """Each rank does what the schedule has at the end of that slot, and the cover of the plan has moved that far."""
    verbs = {"F": "forward", "B": "backward", "I": "backward (inputs)", "W": "backward (weights)"}
    for kind, scene in zip((*KINDS, BROKEN), (*animation.scenes, animation.broken), strict=True):
        plan = timeline(
            schedule(kind.schedule, 2, 4, kind.virtual), lambda action, v=kind.virtual: SLOTS[action.kind] / v
        )
        total = max(slot.end for row in plan for slot in row)
        for frame in scene.frames:
            now = float(frame.facts["slot"].split()[0])
            covers = [s.x for s in frame.shapes if isinstance(s, Box) and s.fill == "paper"]
            assert covers == ([pytest.approx(7 + now / total * 64.5)] * 2 if now < total else [])
            shown = {
                rank: f"rank {rank} {verbs[slot.action.kind]} {slot.action.micro_batch}"
                + (f" of stage {slot.action.stage}" if kind.virtual > 1 else "")
                for rank, row in enumerate(plan)
                for slot in row
                if slot.start < now <= slot.end
            }
            idle = "; 1 rank is idle." if len(shown) == 1 else "."
            assert frame.note.startswith(f"Slot {now:g} of the plan: {', '.join(shown.values())}{idle}")


def test_a_mistake_is_reported_when_it_appears_in_the_plan(animation):
    seen = 0
    for frame in animation.broken.frames:
        new = [cell.text for cell in cells(frame) if cell.fill == "wrong" and cell.y < animation.broken.height / 2][
            seen:
        ]
        assert [part.split()[0] for part in frame.note.split("Rank 1 takes ")[1:]] == new
        seen += len(new)
    assert seen == 2


def test_the_broken_run_diverges_where_it_is_marked(animation):
    wrong = [[cell for cell in cells(frame) if cell.fill == "wrong"] for frame in animation.broken.frames]
    at = animation.broken.first_wrong
    assert not any(wrong[:at]) and all(wrong[at:])
    assert [cell.text for cell in wrong[-1]] == ["1", "0", "1", "0"]
    assert (
        "after step 0, in " in animation.broken.verdict
        and "weight[" in animation.broken.verdict
        and "ulp" in animation.broken.verdict
    )


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
    assert (
        animation.scenes[3].title
        == "Pipeline, interleaved: 2 ranks, 4 micro-batches, 3 rounded up to a multiple of 2 ranks"
    )
    with pytest.raises(ValueError, match="size, the micro-batches of a step, must be at most 16"):
        DEMONSTRATIONS["pp"](ranks=2, size=17)
    with pytest.raises(ValueError, match="shows 2 to 8 ranks, not 9"):
        DEMONSTRATIONS["pp"](ranks=9)
