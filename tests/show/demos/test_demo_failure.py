"""The demonstration of failures: a run that loses a rank, and a save on a disk that loses power."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from frames import boxes, check_inside, labels, told

from minidist.comm.failures import RankFailed
from minidist.show.demos import DEMONSTRATIONS
from minidist.show.demos.failure import disk_scene, picture, run
from minidist.show.demos.failure.bug import FORGETS, train_early, train_forgetful
from minidist.show.demos.failure.power_cut import moments_of, resumed_from
from minidist.show.demos.failure.recording import (
    FOLDER,
    OLD,
    RANKS,
    Operation,
    record,
    recording_of,
)
from minidist.show.demos.shared.runs import warm_ranks
from minidist.show.palette import of_rank
from minidist.show.player.scene import Arrow, Box, Curve
from minidist.train.checkpoint.commit import LATEST, MANIFEST
from minidist.verify.comparison import agrees

pytestmark = pytest.mark.long  # it records several training runs

SIZE = 4  # the default, which lectures show
KILLED = 2 * SIZE - 1  # steps taken before the rank dies
COUNT = 4  # ranks


@pytest.fixture(scope="module")
def animation():
    return DEMONSTRATIONS["failure"](ranks=COUNT, size=SIZE, seed=0)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The interrupted run, the saves in the right and in the wrong order, and their moments."""
    config = run.config_of(COUNT, SIZE, 0)
    saved = replace(config, steps=2 * SIZE)
    with pytest.MonkeyPatch.context() as patch, warm_ranks() as warm:
        temporary = tmp_path_factory.mktemp("temporary")
        patch.setattr("tempfile.tempdir", str(temporary))
        interrupted, forgetful = run.interrupted(warm, config, COUNT, SIZE, train_forgetful)
        right, recording = record(warm, saved, run.layouts_of(COUNT)[0], SIZE)
        bad, wrong = record(warm, saved, run.layouts_of(COUNT)[0], SIZE, train_early)
        moments, bad_moments = moments_of(recording), moments_of(wrong)
        rests = [path.name for path in temporary.iterdir() if path.name.startswith("minidist-failure")]
        reference = warm.reference(saved)
    return SimpleNamespace(
        interrupted=interrupted, forgetful=forgetful, right=right, bad=bad, recording=recording, wrong=wrong,
        moments=moments, bad_moments=bad_moments, rests=rests, reference=reference,
    )  # fmt: skip


def curves(frame, colour: str) -> list[Curve]:
    return [shape for shape in frame.shapes if isinstance(shape, Curve) and shape.colour == colour]


def ranks_of(frame) -> list[Box]:
    return [box for box in boxes(frame) if box.id.startswith("rank")]


def marker(frame) -> Box:
    (found,) = boxes(frame, id="the run")
    return found


# ── a rank dies ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_run_goes_on_in_another_layout_and_ends_on_the_same_bits(found):
    one = found.interrupted
    assert isinstance(one.error, RankFailed) and one.error.rank == COUNT - 1 and "SIGKILL" in str(one.error)
    assert (str(one.before.layout), str(one.after.layout)) == ("dp=4", "tp=3")
    assert one.reference == one.fingerprint and {rank.fingerprint for rank in one.resumed.ranks} == {one.reference}
    assert one.resumed.steps_here == one.steps - SIZE and len(one.resumed.losses) == one.steps == 3 * SIZE


def test_lost_steps_are_those_after_the_last_checkpoint(found):
    one = found.interrupted
    assert one.before.saved == [SIZE] and one.after.saved == [2 * SIZE, 3 * SIZE]
    assert one.lost == range(SIZE, KILLED) and one.before.ended_by(one.fault.rank) == KILLED
    assert one.after.losses[0][: len(one.lost)] == one.before.losses[one.fault.rank][SIZE:KILLED]
    assert [losses == one.resumed.losses[SIZE:] for losses in one.after.losses] == [True] * (COUNT - 1)


def test_each_rank_reads_its_part_of_the_files(found):
    one = found.interrupted
    assert one.files == COUNT and all(0 < nbytes < one.nbytes for nbytes in one.bytes_read)


def test_another_loss_of_a_step_that_is_taken_again_is_found(found):
    one = found.interrupted
    losses = [[loss + 1 for loss in each] for each in one.after.losses]
    with pytest.raises(RuntimeError, match=r"step 4 has loss .* when taken again: a bug in minidist"):
        run._check_same_losses(replace(one, after=replace(one.after, losses=losses)))


def test_the_picture_of_the_death_is_true(animation):
    scene = animation.scenes[0]
    died, lost = scene.frames[KILLED + 1], scene.frames[KILLED + 2]
    assert scene.frames[KILLED].facts["steps"] == f"{KILLED} of {3 * SIZE}"
    assert [(box.fill, box.text) for box in ranks_of(died)] == [
        *((of_rank(rank), str(rank)) for rank in range(COUNT - 1)), ("wrong", f"× {COUNT - 1}"),
    ]  # fmt: skip
    assert marker(died).text == "×" and not curves(died, picture.LOST) and "lost" not in labels(died)
    (gone,) = curves(lost, picture.LOST)
    assert len(gone.points) == 1 + 3 and gone.width == picture.WIDE and "lost" in labels(lost)  # from the checkpoint on
    (kept,) = curves(lost, picture.LOSS)
    assert len(kept.points) == SIZE and kept.points[-1] == gone.points[0]
    assert lost.note.startswith("Lost: steps 5 to 7.")
    assert (died.facts["steps lost"], lost.facts["steps lost"]) == ("0", "3")


def test_the_run_goes_back_to_the_checkpoint_and_takes_the_lost_steps_again(animation):
    frames = animation.scenes[0].frames
    back = frames[KILLED + 3]
    place = next(box.x + box.w / 2 for box in boxes(back) if box.fill == picture.CHECKPOINT)
    assert marker(back).x + marker(back).w / 2 == pytest.approx(place)
    (arrow,) = (shape for shape in back.shapes if isinstance(shape, Arrow))
    assert arrow.to_x < arrow.x and arrow.label == "back to step 4" in labels(back)
    assert [box.fill for box in ranks_of(back)] == [*map(of_rank, range(COUNT - 1)), "wrong"]
    (death,) = boxes(frames[-1], id="the death")  # it stays where it was
    assert death.x + death.w / 2 == pytest.approx(marker(frames[KILLED + 1]).x + marker(frames[KILLED + 1]).w / 2)
    assert ranks_of(frames[-1]) == ranks_of(back) and boxes(frames[-1], text=f"× {COUNT - 1}", fill="wrong")
    (gone,) = curves(back, picture.LOST)
    for number, frame in enumerate(frames[KILLED + 4 : KILLED + 7], 1):
        again = curves(frame, picture.LOSS)[-1]
        assert again.points == gone.points[: number + 1]  # the same losses, over the lost ones
    saved = [box.id for box in boxes(frames[-1]) if box.fill == picture.CHECKPOINT]
    assert saved == [f"checkpoint of step {step}" for step in (4, 8, 12)]


def test_a_lower_loss_is_further_down(found):
    shown = picture.Losses(found.interrupted)
    values = [*found.interrupted.before.losses[0][:SIZE], *found.interrupted.after.losses[0]]
    places = [shown.at(step, loss) for step, loss in enumerate(values, 1)]
    assert [x for x, _ in places] == sorted({x for x, _ in places})
    order = sorted(range(len(values)), key=values.__getitem__)
    assert [places[step][1] for step in order] == sorted((y for _, y in places), reverse=True)
    assert {picture.TOP, picture.BOTTOM} <= {round(y, 9) for _, y in places}


def test_a_run_that_forgets_its_moments_is_another_run(animation, found):
    right, bad, scene = found.interrupted, found.forgetful, animation.also_broken[0]
    assert bad.reference == right.reference != bad.fingerprint and bad.after.first == right.after.first
    same = [one == other for one, other in zip(bad.after.losses[0], right.after.losses[0], strict=True)]
    assert same == [True] + [False] * (len(same) - 1)  # a step's loss is that of the weights before it
    assert scene.twin == animation.scenes[0].name and len(scene.frames) == len(animation.scenes[0].frames)
    assert scene.first_wrong == KILLED + 5 and scene.frames[KILLED + 4].note == "Step 5 again: the same loss."
    red = [bool(curves(frame, "wrong")) for frame in scene.frames]
    assert red.index(True) == scene.first_wrong and all(red[scene.first_wrong :])
    assert [picture.FORGOTTEN in labels(frame) for frame in scene.frames] == red  # at the fork
    assert all(marker(frame).fill == "wrong" for frame in scene.frames[scene.first_wrong :])
    assert animation.bug_of(scene) == FORGETS != animation.bug_of(animation.broken)
    assert bad.fingerprint[:8] in told(scene) and animation.breakable() == ("die, go on", "save")


def test_fingerprints_come_last(animation, found):
    *early, last = animation.scenes[0].frames
    sha = found.interrupted.reference[:8]
    assert [(box.text, box.fill) for box in boxes(last) if box.text == sha] == [(sha, None), (sha, "right")]
    assert not [box for frame in early for box in boxes(frame) if box.text == sha]
    wrong = picture.fingerprints(replace(found.interrupted, reference="0" * 64))
    assert [shape.fill for shape in wrong if isinstance(shape, Box)] == [None, "wrong"]
    assert f"(SHA-256 {sha})" in told(animation.scenes[0]) and "took 3 steps twice" in told(animation.scenes[0])


# ── a save ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def steps_of(recording) -> list[tuple[str, str]]:
    return [(group.method, group.about) for group in recording.groups]


FILES = [("write", RANKS), ("flush", RANKS), ("rename", RANKS), ("flush_folder", RANKS)]
COMMIT = [
    *((method, MANIFEST) for method in ("write", "flush", "rename", "flush_folder")),
    ("flush_folder", FOLDER),
    *((method, LATEST) for method in ("write", "flush", "rename", "flush_folder")),
    *((method, OLD) for method in ("remove", "flush_folder", "remove")),
]


def test_the_order_of_both_saves(found):
    write, flush, rename, flush_folder = FILES
    assert steps_of(found.recording) == [write, flush, rename, flush_folder, *COMMIT]
    assert steps_of(found.wrong) == [write, rename, *COMMIT, flush, flush_folder]
    for one in (found.recording, found.wrong):
        assert all(len(group.operations) >= COUNT for group in one.groups if group.about == RANKS)
        assert one.contents(2 * SIZE).keys() == {MANIFEST, *(f"rank-{rank}.safetensors" for rank in range(COUNT))}


def test_both_runs_have_the_right_bits(found):
    assert agrees(found.reference, found.right) and agrees(found.reference, found.bad)


def test_in_the_right_order_every_power_cut_leaves_a_whole_checkpoint(found):
    renamed = 1 + steps_of(found.recording).index(("rename", LATEST))
    for place, moment in enumerate(found.moments):
        old, new = {SIZE}, {2 * SIZE}
        assert moment.resumes == (old if place < renamed else old | new if place == renamed else new)


def test_in_the_wrong_order_files_that_latest_leads_to_may_be_empty(found):
    steps = steps_of(found.wrong)
    first, last = 1 + steps.index(("rename", LATEST)), 1 + steps.index(("flush", RANKS))
    assert [None in moment.resumes for moment in found.bad_moments] == [
        first <= place < last for place in range(len(found.bad_moments))
    ]
    refused = [one for moment in found.bad_moments for one in moment.left if one.step is None]
    assert all("bytes, and had" in one.error for one in refused)
    assert any("rank-0.safetensors has 0 bytes" in one.error for one in refused)


def test_minidist_itself_says_what_can_be_resumed(found):
    files = dict(found.moments[-1].read)
    assert resumed_from(files).step == 2 * SIZE
    name = next(name for name in files if name.endswith("rank-1.safetensors"))
    assert resumed_from(files | {name: files[name][:-1]}).step is None
    del files[name]
    assert f"{name} is missing" in resumed_from(files).error
    assert "there is no checkpoint" in resumed_from({}).error


def test_a_rank_that_writes_during_the_commit_is_found(found, tmp_path):
    logs = [list(rank.log) for rank in found.right.ranks]
    root, groups = found.recording.root, found.recording.groups
    commit = next(group for group in groups if group.about == LATEST)
    late = Operation(commit.operations[0].time + 1, "flush", (root / "step-000008" / "rank-1.safetensors",))
    logs[1].append(late)
    with pytest.raises(RuntimeError, match="a rank used the disk while rank 0 committed"):
        recording_of(logs, root, SIZE, 2 * SIZE, "")


def test_what_is_recorded_is_what_happened(found):
    """The last state by the recording is what the real disk had."""
    assert resumed_from(found.moments[-1].read).files == found.moments[-1].read
    assert found.moments[-1].read == found.moments[-1].left[0].files
    final = found.moments[-1].read
    assert final[LATEST] == b"step-000008" and not [name for name in final if "step-000004" in name]
    # Two runs write the same bytes, but for the manifest's order: in whatever order they flush them.
    assert {name: content for name, content in final.items() if "rank" in name} == {
        name: content for name, content in found.bad_moments[-1].read.items() if "rank" in name
    }


def left_edges(columns: int) -> list[float]:
    each = (disk_scene.END - disk_scene.FIRST - (columns - 1) * disk_scene.BETWEEN) / columns
    return [disk_scene.FIRST + number * (each + disk_scene.BETWEEN) for number in range(columns)]


def cell(frame, row: int, column: int) -> Box | None:
    """In a row of the table: 0 is the old checkpoint, then ranks, manifest, latest, what is resumed."""
    lines = [1, *range(3, 3 + COUNT + 2), disk_scene.RESUME + COUNT + 1]
    edges = left_edges(3 if "in the right order" in labels(frame) else 2)
    there = [box for box in boxes(frame) if box.y == lines[row] and box.x == edges[column]]
    return there[0] if there else None


OLD_ROW, MANIFEST_ROW, LATEST_ROW, RESUME_ROW = 0, COUNT + 1, COUNT + 2, COUNT + 3


def test_the_picture_of_the_save(animation):
    frames = animation.scenes[1].frames
    assert cell(frames[0], 1, 0) is None and cell(frames[0], RESUME_ROW, 1).text == "from step 4"
    assert cell(frames[1], 1, 0).text == "other name" and cell(frames[1], 1, 1) is None
    assert (cell(frames[3], 1, 0).text, cell(frames[3], 1, 1).text) == ("whole", "not sure")
    folder = 1 + ([*FILES, *COMMIT].index(("flush_folder", FOLDER)))
    for row in range(1, MANIFEST_ROW + 1):
        assert cell(frames[folder - 1], row, 1).text == "not sure"  # the folder itself may be gone
        assert (cell(frames[folder], row, 1).text, cell(frames[folder], row, 1).fill) == ("whole", "right")
    latest = 1 + [*FILES, *COMMIT].index(("rename", LATEST))
    texts = [cell(frames[place], LATEST_ROW, 1).text for place in (latest - 1, latest, latest + 1)]
    assert texts == ["→ step 4", "→ step 4 or 8", "→ step 8"]
    assert cell(frames[-1], OLD_ROW, 0) is None and cell(frames[-1], RESUME_ROW, 1).text == "from step 8"
    assert all(frame.facts["refused"] == "0" for frame in frames)
    assert animation.scenes[1].first_wrong is None


def test_break_it_is_the_same_picture_with_the_right_order_beside_it(animation, found):
    save, broken = animation.scenes[1], animation.broken
    assert broken.twin == save.name and len(broken.frames) == len(save.frames) and broken.height == save.height
    for frame, right in zip(broken.frames, save.frames, strict=True):
        expected = [(box.y, box.text, box.fill) for box in boxes(right) if box.x == left_edges(2)[1]]
        beside = [(box.y, box.text, box.fill) for box in boxes(frame) if box.x == left_edges(3)[2]]
        assert beside == expected
    first = broken.first_wrong
    assert None in found.bad_moments[first].resumes and None not in found.bad_moments[first - 1].resumes
    for frame, moment in zip(broken.frames[:-1], found.bad_moments, strict=False):
        refused = None in moment.resumes
        assert (cell(frame, RESUME_ROW, 1).fill == "wrong") == refused == ("Wrong" in frame.note)
        assert all((cell(frame, 1 + rank, 1) or Box(0, 0, 0, 0)).fill == "wrong" for rank in range(COUNT)) == refused
    assert cell(broken.frames[first], 1, 0).text == "whole"  # a program sees nothing
    assert cell(broken.frames[first], LATEST_ROW, 1).text == "→ step 4 or 8"
    end, worst = broken.frames[-1], broken.frames[first + 4]  # what a power cut could have left stays in sight
    assert disk_scene.CUT in labels(end) and "step 8" in cell(end, LATEST_ROW, 0).text
    for row in range(RESUME_ROW + 1):
        assert cell(end, row, 1) == cell(worst, row, 1)
    assert [cell(end, row, 1).fill for row in (OLD_ROW, 1, RESUME_ROW)] == ["wrong"] * 3
    old = [cell(frame, OLD_ROW, 1).text for frame in broken.frames[first : first + 5]]
    assert old == ["whole", "whole", "may be lost", "lost", "lost"]


def test_verdicts(animation, found):
    tried = sum(len(moment.left) for moment in found.moments)
    assert tried > len(found.moments) and f"each of {tried} different power cuts" in told(animation.scenes[1])
    harm = told(animation.broken)
    assert harm.startswith("In 5 of 17 moments") and "rank-0.safetensors has 0 bytes, and had" in harm
    assert "In 3 of them the old one is gone too" in harm and found.reference.fingerprint[:8] in harm


def test_a_bug_that_does_no_harm_is_an_error(found):
    with pytest.raises(RuntimeError, match="the injected bug does no harm"):
        disk_scene.harm(found.recording, found.moments)


def test_temporary_folders_are_removed(found):
    assert found.rests == []


def test_a_run_that_survives_its_fault_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = run.config_of(2, 2, 0)
    monkeypatch.setattr(run, "Fault", lambda rank, step, kind: run_without_fault)
    with warm_ranks() as warm, pytest.raises(RuntimeError, match="did not end the run: this is a bug in minidist"):
        run.interrupted(warm, config, 2, 2)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("minidist-failure")]


run_without_fault = SimpleNamespace(rank=99, step=0)  # nobody has this rank


@pytest.mark.parametrize(("ranks", "size"), [(2, 2), pytest.param(8, 6, marks=pytest.mark.long)])
def test_everything_is_in_the_picture(ranks, size):
    for one in DEMONSTRATIONS["failure"](ranks=ranks, size=size).all_scenes:
        check_inside(one, note=100)


def test_sizes():
    with pytest.raises(ValueError, match="size, the steps between two checkpoints, must be from 2 to 6, got 1"):
        DEMONSTRATIONS["failure"](size=1)
    with pytest.raises(ValueError, match="size, steps between two checkpoints, must be from 1 to 6, got 7"):
        DEMONSTRATIONS["failure"](size=7)
