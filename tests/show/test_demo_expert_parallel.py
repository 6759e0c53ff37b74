"""The demonstration of expert parallelism: routes and gradients of a real step, and the load of the experts."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from frames import boxes, check_inside, labels, told
from keeping import kept

from minidist.show.demos import DEMONSTRATIONS, expert_parallel
from minidist.show.demos.expert_parallel import balance, picture, scene
from minidist.show.demos.expert_parallel.balance import EVEN, HIGH, IDLE, LOW, STEPS, STRIDE, Load, colour_of
from minidist.show.demos.expert_parallel.bug import average_over_own_group
from minidist.show.demos.expert_parallel.run import (
    EXPERTS_OF_RANK,
    TOP_K,
    WIDTH,
    Gradients,
    Routed,
    Step,
    step_of,
)
from minidist.show.palette import of_rank
from minidist.show.player.scene import Arrow, Box

RANKS, SIZE, SEED = 4, 4, 0  # the defaults, which lectures show
EXPERTS = EXPERTS_OF_RANK * RANKS
DISPATCH = 3  # the frame in which rows for a rank's own experts stay


@pytest.fixture(scope="module")
def made():
    """The animation, and the runs that it was made from."""
    with pytest.MonkeyPatch.context() as patch:
        calls = kept(patch, expert_parallel, "step_of")
        animation = DEMONSTRATIONS["ep"](ranks=RANKS, size=SIZE, seed=SEED)
    (one, _), (right, _), (bad, _) = calls
    return SimpleNamespace(animation=animation, runs=SimpleNamespace(one=one, right=right, bad=bad))


@pytest.fixture(scope="module")
def animation(made):
    return made.animation


@pytest.fixture(scope="module")
def runs(made):
    """Of one process, of the ranks, and of the ranks with the bug."""
    return made.runs


@pytest.fixture(scope="module")
def steps(runs):
    return SimpleNamespace(**{name: step_of(run) for name, run in vars(runs).items()})


def queues(frame) -> list[Box]:
    """The rows at the experts."""
    return [box for box in boxes(frame) if box.x >= picture.QUEUES and box.y < picture.panel_top(RANKS)]


def choices(frame) -> list[Box]:
    """The experts below the tokens: they are filled once the result is home."""
    return [box for box in boxes(frame) if box.x < picture.TOKENS_END and box.h == 0.85]


def panel(frame) -> list[Box]:
    return [box for box in boxes(frame) if box.y >= picture.panel_top(RANKS)]


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


def test_lanes_by_hand():
    drawn = [shape for shape in picture.lanes(made_up(), 3) if isinstance(shape, Box)]
    scale = (picture.END - picture.LANES) / 4
    done = {(box.fill, box.text, box.w) for box in drawn if box.text}
    assert done == {(of_rank(0), "2", 2 * scale), (of_rank(1), "1", scale)}
    assert [box.w for box in drawn if box.fill == "faint"] == [3 * scale] * 2  # below what has been computed


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
    """In each frame a row is at home, or at its expert, in its token's colour."""
    frames, step = animation.scenes[0].frames, steps.right
    total = RANKS * SIZE * TOP_K
    assert not choices(frames[0]) and len(choices(frames[1])) == total and not queues(frames[1])
    assert len(queues(frames[2])) == total and not any(box.fill for box in queues(frames[2]))
    compute = DISPATCH + RANKS
    computing = 1 if min(step.loads) == max(step.loads) else 2
    for distance in range(RANKS):
        frame = frames[DISPATCH + distance]
        arrived = step.moved(range(distance + 1))
        assert sum(box.fill is not None for box in queues(frame)) == arrived
        assert frame.facts["rows sent"].startswith(f"{step.moved(range(1, distance + 1))} of")
    for source in range(RANKS):
        assert sum(box.fill == of_rank(source) for box in queues(frames[compute])) == SIZE * TOP_K
    for distance in range(1, RANKS):
        frame = frames[compute + computing + distance - 1]
        home = step.moved(range(distance + 1))
        assert sum(box.fill is not None for box in choices(frame)) == home
        assert sum(box.fill is not None for box in queues(frame)) == total - home


def test_arrows_are_the_messages_of_the_pairwise_all_to_all(animation, steps):
    frames, step = animation.scenes[0].frames, steps.right

    def messages(frame) -> set[str]:
        return {shape.label for shape in frame.shapes if isinstance(shape, Arrow)}

    def expected(distance: int, back: bool) -> set[str]:
        found = set()
        for source in range(RANKS):
            rank = (source + distance) % RANKS
            if count := int(step.rows[source, rank]):
                ends = (rank, source) if back else (source, rank)
                found.add(f"{ends[0]} → {ends[1]}: {count} row{'s' * (count > 1)}")
        return found

    assert not messages(frames[DISPATCH])
    for distance in range(1, RANKS):
        assert messages(frames[DISPATCH + distance]) == expected(distance, False)
    combine = next(number for number, frame in enumerate(frames) if frame.note.startswith("Combine"))
    for distance in range(1, RANKS):
        assert messages(frames[combine - RANKS + distance]) == expected(distance, True)


def test_the_busiest_rank_sets_the_pace(animation, steps):
    loads = steps.right.loads
    (frame,) = [frame for frame in animation.scenes[0].frames if frame.note.startswith("The busiest rank")]
    scale = (picture.END - picture.LANES) / max(loads)
    for rank, load in enumerate(loads):
        line = [box for box in panel(frame) if box.y == picture.panel_top(RANKS) + 1 + rank]
        assert sum(box.w for box in line if box.text) == pytest.approx(scale * load)
        assert [box.w for box in line if box.fill == "faint"] == [pytest.approx(scale * max(loads))]
        assert f"rank {rank}: {load} rows" in labels(frame)
    assert f"{max(loads)} rows" in frame.note and frame.facts["busiest rank"].startswith(f"{max(loads)} rows")


def test_a_token_is_the_weighted_sum_of_two_experts(animation, steps):
    (frame,) = [frame for frame in animation.scenes[0].frames if frame.note.startswith("Combine")]
    route = steps.right.routes[0]
    (e, f), (v, w) = route.chosen[0], route.weights[0]
    assert frame.note.endswith(f"{v:.2f} × E{e} + {w:.2f} × E{f}.")
    drawn = [f"{a:.2f} {b:.2f}".replace("0.", ".") for route in steps.right.routes for a, b in route.weights]
    assert [text for text in labels(frame) if re.fullmatch(r"\.\d\d \.\d\d", text)] == drawn


def test_gradients_are_ep_times_too_large_in_the_broken_run_alone(animation, steps):
    one, right, bad = steps.one.gradients, steps.right.gradients, steps.bad.gradients
    assert right.digests == one.digests and not scene.wrong_experts(steps.right, steps.one)
    used = {expert for expert in range(EXPERTS) if any(steps.right.tokens(rank, expert) for rank in range(RANKS))}
    assert scene.wrong_experts(steps.bad, steps.one) == used
    for expert in used:
        assert bad.averaged[expert] == pytest.approx(RANKS * one.averaged[expert], rel=1e-6)
        assert bad.averaged[expert] == pytest.approx(right.summed[expert], rel=1e-6)
    broken, scene_of_ranks = animation.broken, animation.scenes[0]
    assert len(broken.frames) == len(scene_of_ranks.frames) and broken.first_wrong == len(broken.frames) - 2
    same = slice(0, broken.first_wrong)
    assert broken.frames[same] == scene_of_ranks.frames[same]
    fills = [box.fill for box in panel(broken.frames[broken.first_wrong]) if box.fill]
    assert fills == ["wrong"] * len(used)
    fills = [box.fill for box in panel(scene_of_ranks.frames[broken.first_wrong]) if box.fill]
    assert fills == [picture.OF_RANKS] * len(used)
    assert f"{len(used)} experts are {RANKS}.00 times as large" in told(broken)
    assert "first differs after step 0" in told(broken)


def test_the_fingerprint_differs_and_the_loss_does_not(animation, steps):
    assert steps.bad.loss == steps.right.loss == steps.one.loss and "the same bits" in told(animation.broken)
    assert steps.right.fingerprint == steps.one.fingerprint != steps.bad.fingerprint
    for one, step in ((animation.scenes[0], steps.right), (animation.broken, steps.bad)):
        reference, found = panel(one.frames[-1])
        assert (reference.text, found.text) == (steps.one.fingerprint[:32], step.fingerprint[:32])
        assert found.fill == ("wrong" if step is steps.bad else picture.OF_RANKS)


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
    colours = [(0, 0.0, IDLE), (1, 0.49, LOW), (1, 0.5, EVEN), (1, 1.99, EVEN), (1, 2.0, HIGH)]
    assert [colour_of(count, excess) for count, excess, _ in colours] == [colour for *_, colour in colours]


def test_without_a_balance_loss_experts_are_left_idle(animation):
    first, *_, last = animation.scenes[1].frames[1:]
    numbers = [text for text in labels(last) if re.search(r"×| of \d", text)]
    (busy, idle, slow), (even, none, fair) = numbers[:3], numbers[3:]
    assert float(busy.split()[0]) == EXPERTS / TOP_K and idle == f"{EXPERTS - TOP_K} of {EXPERTS}"  # as few as can be
    assert float(even.split()[0]) < 2 and none == f"0 of {EXPERTS}"
    assert float(slow.split()[0]) > 1.3 * float(fair.split()[0])
    off, on = (
        [
            box.fill
            for box in boxes(first)
            if box.x == balance.LEFT and box.w == 1 and top < box.y <= top + balance.LINES
        ]
        for top in (0, balance.LINES + 1)
    )
    assert off == on and len(on) == EXPERTS  # the same weights and the same tokens in the first step


def test_both_runs_are_on_one_time_axis(animation):
    one = animation.scenes[1]
    assert one.name == "balance" and len(one.frames) == STEPS // STRIDE + 1 and one.first_wrong is None
    for number, frame in enumerate(one.frames):
        cells = [box for box in boxes(frame) if box.fill is not None]
        assert len(cells) == 2 * EXPERTS * STRIDE * number
        for top in (0, balance.LINES + 1):
            columns = {box.x for box in cells if top < box.y < top + 1 + balance.LINES}
            assert columns == {balance.LEFT + step for step in range(STRIDE * number)}
    assert len(re.findall(f"of {EXPERTS}", told(one))) == 2 and "match the single-process run bit for bit" in told(one)


@pytest.mark.parametrize(("ranks", "size"), [(2, 1), pytest.param(8, 6, marks=pytest.mark.long)])
def test_everything_is_in_the_picture(ranks, size):
    for one in DEMONSTRATIONS["ep"](ranks=ranks, size=size).all_scenes:
        check_inside(one)


def test_sizes():
    with pytest.raises(ValueError, match="size, tokens on each rank, must be from 1 to 6, got 7"):
        DEMONSTRATIONS["ep"](size=7)
    with pytest.raises(ValueError, match="the demonstration ep shows 2 to 8 ranks, not 1"):
        DEMONSTRATIONS["ep"](ranks=1)
