"""The demonstration of expert parallelism: routes and gradients of a real step, and the load of the experts."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from frames import boxes, check_inside, told

from minidist.show.demos import DEMONSTRATIONS
from minidist.show.demos.expert_parallel import balance, balance_scene, picture, scene
from minidist.show.demos.expert_parallel.balance import STEPS, STRIDE, Load
from minidist.show.demos.expert_parallel.bug import average_over_own_group, train_too_large
from minidist.show.demos.expert_parallel.picture import EXPERT, GAP, ROWS, Rows, copy_of, pitch
from minidist.show.demos.expert_parallel.run import (
    EXPERTS_OF_RANK,
    TOP_K,
    WIDTH,
    Gradients,
    Routed,
    Step,
    config_of,
    layout_of,
    step_of,
    train_watched,
)
from minidist.show.demos.shared.runs import warm_ranks
from minidist.show.palette import of_rank
from minidist.show.player.scene import Arrow, Box
from minidist.verify.comparison import ONE_PROCESS

pytestmark = pytest.mark.long  # it records several training runs

RANKS, SIZE, SEED = 4, 2, 0  # the defaults, which lectures show
EXPERTS = EXPERTS_OF_RANK * RANKS
DISPATCH = 3  # the frame in which rows for a rank's own experts stay


@pytest.fixture(scope="module")
def animation():
    return DEMONSTRATIONS["ep"](ranks=RANKS, size=SIZE, seed=SEED)


@pytest.fixture(scope="module")
def runs():
    """Of one process, of the ranks, and of the ranks with the bug."""
    config, layout = config_of(RANKS, SIZE, SEED), layout_of(RANKS)
    with warm_ranks() as warm:
        return SimpleNamespace(
            one=warm.train(config, ONE_PROCESS, train_watched, trace=True),
            right=warm.train(config, layout, train_watched, trace=True),
            bad=warm.train(config, layout, train_too_large, trace=True),
        )


@pytest.fixture(scope="module")
def steps(runs):
    return SimpleNamespace(**{name: step_of(run) for name, run in vars(runs).items()})


def queues(frame) -> list[Box]:
    """The rows at the experts, or the places for them."""
    return [box for box in boxes(frame) if box.y >= ROWS and box.fill != "faint"]


def choices(frame) -> list[Box]:
    """The copies below the tokens: filled where the token or the result is at home."""
    return [box for box in boxes(frame) if box.y == picture.COPIES]


def column(box: Box) -> int:
    return round(box.x // pitch(RANKS))


def test_routes_are_those_of_one_process(steps):
    for one, mine in zip(steps.one.routes, steps.right.routes, strict=True):
        assert np.array_equal(one.chosen, mine.chosen) and one.weights.tobytes() == mine.weights.tobytes()
        assert mine.chosen.shape == (SIZE, TOP_K)
        np.testing.assert_allclose(mine.weights.sum(axis=1), 1, rtol=1e-6)
    assert steps.right.rows.sum() == sum(steps.right.loads) == RANKS * SIZE * TOP_K
    for rank in range(RANKS):
        for expert in range(EXPERTS):
            chosen = [token for token, row in enumerate(steps.right.routes[rank].chosen) if expert in row]
            assert steps.right.tokens(rank, expert) == chosen


def made_up() -> Step:
    """Two ranks with one expert each. Rank 0 sends both of its tokens away, rank 1 none."""
    routes = [Routed(np.array([[1], [1]]), np.ones((2, 1))), Routed(np.array([[1], [1]]), np.ones((2, 1)))]
    return Step(routes, 2, 8, Gradients([0.0, 4.0], [0.0, 2.0], [1, 2]), 1.0, "ab")


def test_rows_by_hand():
    step = made_up()
    assert step.rows.tolist() == [[0, 2], [0, 2]] and step.loads == [0, 4]
    assert [step.moved([distance]) for distance in (0, 1)] == [2, 2]
    assert step.tokens(0, 1) == [0, 1] and step.tokens(0, 0) == []


def test_time_by_hand():
    """Down is time: a row's place is when it is computed, and what is shorter than the longest column is idle."""
    step, everywhere = made_up(), range(2)
    drawn = [one for one in picture.stacks(step, Rows(True, everywhere), 3) if isinstance(one, Box) and one.y >= ROWS]
    high = picture.row_height(step)
    idle = [box for box in drawn if box.fill == "faint"]
    assert [(box.x, box.y, box.h) for box in idle] == [(0, ROWS, pytest.approx(3 * high))]  # rank 0 has no row
    rows = [(box.text, box.fill, round((box.y - ROWS) / high)) for box in drawn if box.fill != "faint"]
    assert rows == [
        ("0a ✓", of_rank(0), 0), ("0b ✓", of_rank(0), 1), ("1a ✓", of_rank(1), 2), ("1b", of_rank(1), 3)
    ]  # fmt: skip
    assert all(box.x == pitch(2) and box.w == pitch(2) - GAP for box in drawn if box.fill != "faint")


def test_bytes_are_those_that_were_sent(runs, animation, steps):
    with pytest.raises(RuntimeError, match=r"bytes of rows, not \d+: this is a bug in minidist"):
        step_of(replace(runs.right, config=replace(runs.right.config, width=2 * WIDTH)))
    sent = sum(
        row["bytes_sent"]
        for rank in runs.right.ranks
        for row in rank.collectives
        if (row["axis"], row["dtype"]) == ("ep", "float32")
    )
    moved = int(steps.right.rows.sum() - np.trace(steps.right.rows))
    assert sent == 4 * moved * 4 * WIDTH  # there and back, forward and backward; float32
    facts = animation.scenes[0].frames[-1].facts
    assert facts["bytes"] == f"{sent:,}" and facts["rows sent"] == f"{4 * moved} of {4 * moved}"
    assert f"{sent:,} B" in told(animation.scenes[0])


def test_rows_travel_there_and_back(animation, steps):
    """In each frame a copy is at home or at its expert, in its token's colour, and keeps its name."""
    frames, step = animation.scenes[0].frames, steps.right
    total = RANKS * SIZE * TOP_K
    names = {
        copy_of(rank, token, expert)
        for rank, route in enumerate(step.routes)
        for token, chosen in enumerate(route.chosen.tolist())
        for expert in chosen
    }
    assert not choices(frames[0]) and len(names) == len(choices(frames[1])) == total and not queues(frames[1])
    assert len(queues(frames[2])) == total and not any(box.fill for box in queues(frames[2]))
    compute = DISPATCH + RANKS
    for distance in range(RANKS):
        frame = frames[DISPATCH + distance]
        arrived = [box for box in queues(frame) if box.fill]
        assert len(arrived) == step.moved(range(distance + 1))
        assert all(box.fill == of_rank(int(box.id[0])) and int(box.id[-1]) == column(box) for box in arrived)
        assert frame.facts["rows sent"].startswith(f"{step.moved(range(1, distance + 1))} of")
    assert {box.id for box in queues(frames[compute])} == names
    back = next(number for number, frame in enumerate(frames) if frame.note.startswith("A second all-to-all"))
    assert {box.id for box in choices(frames[back])} == names and not any(box.fill for box in queues(frames[back]))
    assert all(column(box) == int(box.id[0]) for box in choices(frames[back]))


def test_arrows_are_the_messages_of_the_pairwise_all_to_all(animation, steps):
    frames, step = animation.scenes[0].frames, steps.right

    def messages(frame) -> set[str]:
        return {shape.label for shape in frame.shapes if isinstance(shape, Arrow)}

    def expected(distance: int) -> set[str]:
        found = set()
        for source in range(RANKS):
            rank = (source + distance) % RANKS
            if count := int(step.rows[source, rank]):
                found.add(f"{source} → {rank}: {count} row{'s' * (count > 1)}")
        return found

    assert not messages(frames[DISPATCH])
    for distance in range(1, RANKS):
        assert messages(frames[DISPATCH + distance]) == expected(distance)


def test_the_busiest_rank_sets_the_pace(animation, steps):
    loads = steps.right.loads
    assert max(loads) > min(loads)  # or the lecture has nothing to show
    (frame,) = [frame for frame in animation.scenes[0].frames if frame.note.startswith("The busiest rank")]
    high, end = picture.row_height(steps.right), ROWS + picture.row_height(steps.right) * max(loads)
    idle = {column(box): box for box in boxes(frame, fill="faint")}
    heads = {box.text: box.outline for box in boxes(frame) if box.y == EXPERT}
    for rank, load in enumerate(loads):
        assert sum(column(box) == rank for box in queues(frame)) == load
        assert (rank in idle) == (load < max(loads))
        if rank in idle:
            assert idle[rank].y == pytest.approx(ROWS + load * high) and idle[rank].y + idle[rank].h == pytest.approx(
                end
            )
        outline = heads[f"expert {rank}: {load} row{'s' * (load != 1)}"]
        assert outline == ("ink" if load == max(loads) else of_rank(rank))
    assert f"{max(loads)} rows" in frame.note and frame.facts["busiest rank"].startswith(f"{max(loads)} rows")


def test_a_token_is_the_weighted_sum_of_two_experts(animation, steps):
    (frame,) = [frame for frame in animation.scenes[0].frames if frame.note.startswith("Combine")]
    route = steps.right.routes[0]
    (e, f), (v, w) = route.chosen[0], route.weights[0]
    assert frame.note.endswith(f"0a = {v:.2f} × expert {e} + {w:.2f} × expert {f}.")
    drawn = [f"{weight:.2f}" for route in steps.right.routes for weight in route.weights.reshape(-1)]
    assert [box.text.rjust(4, "0") for box in choices(frame)] == drawn


def test_a_full_expert_drops_what_comes_last(animation, steps):
    with warm_ranks() as warm:
        config = config_of(RANKS, SIZE, SEED, 1.0)
        one, many = (
            step_of(warm.train(config, layout, train_watched, trace=True)) for layout in (ONE_PROCESS, layout_of(RANKS))
        )  # ``step_of`` compares the bytes that were sent with the rows that were not dropped
    assert many.capacity == 1 and many.fingerprint == one.fingerprint
    for mine, other in zip(many.routes, steps.right.routes, strict=True):
        assert np.array_equal(mine.chosen, other.chosen)  # the same choices as without a capacity
    for rank in range(RANKS):
        for expert in range(EXPERTS):
            assert many.tokens(rank, expert) == steps.right.tokens(rank, expert)[:1]
    dropped = RANKS * SIZE * TOP_K - sum(many.loads)
    assert dropped > 0 and max(many.loads) < max(steps.right.loads)
    shown = animation.scenes[2]
    assert shown.name == "capacity" and f"{dropped} of {RANKS * SIZE * TOP_K} copies are dropped" in shown.verdict
    for number, frame in enumerate(shown.frames):
        crossed = [box for box in choices(frame) if box.outline == "wrong"]
        assert len(crossed) == (dropped if number >= 2 else 0)
        assert not {box.id for box in crossed} & {box.id for box in queues(frame)}
    assert animation.broken_twin(shown).first_wrong == len(shown.frames) - 1


def test_gradients_are_ep_times_too_large_in_the_broken_run_alone(animation, steps):
    one, right, bad = steps.one.gradients, steps.right.gradients, steps.bad.gradients
    assert right.digests == one.digests and not scene.wrong_experts(steps.right, steps.one)
    used = {expert for expert in range(EXPERTS) if any(steps.right.tokens(rank, expert) for rank in range(RANKS))}
    assert scene.wrong_experts(steps.bad, steps.one) == used
    for expert in used:
        assert bad.averaged[expert] == pytest.approx(RANKS * one.averaged[expert], rel=1e-6)
        assert bad.averaged[expert] == pytest.approx(right.summed[expert], rel=1e-6)
    broken, scene_of_ranks = animation.broken, animation.scenes[0]
    assert len(broken.frames) == len(scene_of_ranks.frames) and broken.first_wrong == len(broken.frames) - 1
    same = slice(0, broken.first_wrong)
    assert broken.frames[same] == scene_of_ranks.frames[same]
    drawn = [boxes(one.frames[-1], y=ROWS) for one in (broken, scene_of_ranks)]
    (bars, of_one), (right_bars, same) = (
        ([box for box in found if box.fill], [box for box in found if not box.fill]) for found in drawn
    )
    assert [box.fill for box in bars] == ["wrong"] * len(used)
    assert [box.fill for box in right_bars] == [of_rank(expert) for expert in sorted(used)]
    assert of_one == same  # of one process
    for box, right_box in zip(bars, of_one, strict=True):
        assert box.h == pytest.approx(RANKS * right_box.h, rel=1e-6)
    assert f"{len(used)} experts are {RANKS}.00 times too large" in told(broken)
    assert "first differs after step 0" in told(broken)


def test_the_fingerprint_differs_and_the_loss_does_not(animation, steps):
    assert steps.bad.loss == steps.right.loss == steps.one.loss and "the same bits" in told(animation.broken)
    assert steps.right.fingerprint == steps.one.fingerprint != steps.bad.fingerprint


def test_the_bug_leaves_other_parameters_alone():
    dense = SimpleNamespace(expert_axis=None, grad=np.array([8.0]), dtype=np.float32)
    expert = SimpleNamespace(expert_axis=1, grad=np.array([8.0]), dtype=np.float32)
    average_over_own_group([dense, expert], count=4, ep=2)
    assert dense.grad.tolist() == [2.0] and expert.grad.tolist() == [4.0]


def test_load_by_hand():
    load = Load(0.0, np.array([[4, 4, 0, 8], [4, 4, 4, 4]]), [1.0, 1.0], "ab")
    assert load.excess().tolist() == [[1, 1, 0, 2], [1, 1, 1, 1]] and load.pace().tolist() == [1, 1]
    uneven = Load(0.0, np.array([[8, 6, 2, 0]]), [1.0], "ab")
    assert uneven.pace().tolist() == [14 / 8]


def bars(frame, panel: int) -> dict[int, Box]:
    """Expert -> its bar, in the run without a balance loss (0) or with one (1)."""
    name = list(balance.AUX_LOSS)[panel]
    return {int(box.id[-1]): box for box in boxes(frame) if box.id.startswith(f"{name}, expert")}


def test_without_a_balance_loss_experts_are_left_idle(animation):
    one = animation.scenes[1]
    assert one.name == "balance" and len(one.frames) == STEPS // STRIDE + 1 and one.first_wrong is None
    experts = balance.EXPERTS_OF_RANK * RANKS
    unit = (balance_scene.BASE - balance_scene.TOP) / (experts / TOP_K)
    off, on = bars(one.frames[-1], 0), bars(one.frames[-1], 1)
    assert len(off) <= experts / 2 and len(on) == experts
    for panel in (off, on):
        assert sum(box.h for box in panel.values()) == pytest.approx(unit * experts)  # every row is somewhere
        assert [box.fill for box in panel.values()] == [of_rank(expert // 2) for expert in panel]
    assert max(box.h for box in off.values()) == pytest.approx(unit * experts / TOP_K)  # every token chooses it
    assert max(box.h for box in on.values()) < 2 * unit
    assert f"{experts - len(off)} of {experts} experts are idle in the end; with it, 0" in one.verdict
    assert "match the single-process run bit for bit" in told(one)


def test_adam_hides_the_bug_but_the_loads_differ(animation):
    right, wrong = animation.scenes[1], animation.also_broken[0]
    assert animation.broken_twin(right) is wrong and len(wrong.frames) == len(right.frames)
    first = wrong.first_wrong
    assert 0 < first < len(right.frames) and wrong.frames[:first] == right.frames[:first]
    for number, frame in enumerate(wrong.frames):
        assert any(box.outline == "wrong" for box in boxes(frame)) == (number >= first)
        assert ("other experts than they should" in frame.note) == (number >= first)
    assert "Adam" in told(wrong)


@pytest.mark.parametrize(("ranks", "size"), [(2, 1), pytest.param(8, 4, marks=pytest.mark.long)])
def test_everything_is_in_the_picture(ranks, size):
    for one in DEMONSTRATIONS["ep"](ranks=ranks, size=size).all_scenes:
        check_inside(one)


def test_the_picture_of_lectures(animation):
    for one in animation.all_scenes:
        check_inside(one)
        assert one.questions and one.cues and len(one.verdict) < 100
        assert one.height <= 13  # so that letters are as large as the page's width allows


def test_sizes():
    with pytest.raises(ValueError, match="size, tokens on each rank, must be from 1 to 4, got 5"):
        DEMONSTRATIONS["ep"](size=5)
    with pytest.raises(ValueError, match="the demonstration ep shows 2 to 8 ranks, not 1"):
        DEMONSTRATIONS["ep"](ranks=1)
