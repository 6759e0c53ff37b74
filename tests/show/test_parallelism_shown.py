"""The demonstrations of parallelism: what they show is what was run, sent, held and planned."""

import zlib
from unittest import mock

import numpy as np
import pytest
from recorded import fact, numbers, recorded
from stories import words

from minidist.analysis.steps import hidden_share, kind_of, slots_of, step_length, traced_step
from minidist.parallel.context import sequence_chunks_of
from minidist.parallel.pipeline import Pipeline
from minidist.parallel.tools.schedule_check import bubble, timeline
from minidist.parallel.tools.schedules import Action, schedule
from minidist.show.demos.context_parallel.run import BACKWARD, CHUNKS, FORWARD, Pass, Visit
from minidist.show.demos.data_parallel.run import distances
from minidist.show.demos.data_parallel.story import HIDDEN, SENDS
from minidist.show.demos.expert_parallel import balance
from minidist.show.demos.expert_parallel.run import step_of
from minidist.show.demos.pipeline.bug import activations_swapped, corrupted_by
from minidist.show.demos.pipeline.kinds import KINDS
from minidist.show.demos.pipeline.story import RACING
from minidist.show.demos.shared.on_gpus import GIGABYTES, LINK, last_step_of, on_gpus
from minidist.show.demos.tensor_parallel.attention import HEAD, TOKENS, WIDTH, numbers_of, weights_of
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import train_rank
from minidist.verify.comparison import ONE_PROCESS

pytestmark = pytest.mark.long  # they record many training runs


# ── data parallelism ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_dp_hides_what_the_replay_hides():
    found = recorded("dp")
    story = found.animation.find("race").at_start
    sums = [mark.now for mark in story.marks if mark.thing.startswith("all-reduce")]
    for y, (sync, shown) in zip(sorted({now["y"] for now in sums}), story.beats[-1].facts.items(), strict=True):
        (one,) = found.trained(dp=2, sync=sync)
        step = traced_step(on_gpus([last_step_of(rank.log) for rank in one.ranks], GIGABYTES[LINK.start]).logs)
        assert numbers(shown) == [float(f"{step_length(step) / 1e6:.3g}"), round(100 * hidden_share(step[0]))]
        hidden, shown_all = (
            sum(now["w"] for now in sums if now["y"] == y and now["fill"] in colours)
            for colours in ((HIDDEN,), (HIDDEN, SENDS))
        )
        assert hidden / shown_all == pytest.approx(hidden_share(step[0]), abs=0.05)


def test_dp_without_a_bucket_drifts_apart_as_far_as_shown():
    found = recorded("dp")
    (one,), (right,), (wrong,) = (
        found.trained("train_keeping_weights", dp=1), found.trained("train_keeping_weights", dp=2),
        found.trained("train_broken_keeping_weights"),
    )  # fmt: skip
    for run, name in ((right, "weights"), (wrong, "broken weights")):
        far = distances(run, one).max(axis=0)  # (steps,)
        assert (far == 0).all() if run is right else (np.diff(far) > 0).all()
        story = found.animation.find("weights", broken=name != "weights")
        for rank, shown in enumerate(distances(run, one)[:, -1]):
            assert story.beats[-1].facts[f"rank {rank}"] == f"{shown:.3g}"


# ── tensor and sequence parallelism ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("demo", "calls"), [("tp", {"all-reduce": 9}), ("sp", {"all-gather": 10, "reduce-scatter": 9})]
)
def test_tp_and_sp_call_and_wait_as_was_traced(demo, calls):
    """For L = 2 blocks: 4 L + 1 sums of float64 and, with sp, 4 L + 2 gathers of float32."""
    found = recorded(demo)
    run, story = found.trained(tp=2, sp=int(demo == "sp"))[0], found.animation.find("measured")
    step = traced_step([last_step_of(rank.log) for rank in run.ranks])
    spans = [event for event in step[0] if kind_of(event) in ("forward", "backward")]
    events = [e for e in step[0] if e.track == "communication" and any(s.start <= e.start < s.end for s in spans)]
    for call, count in calls.items():
        assert fact(story, f"{call}s") == [count] <= [sum(e.name.startswith(call.replace("-", "_")) for e in events)]
    idle = sum(event.end - event.start for event in events) / step_length(step)
    assert story.beats[0].asks.choices[story.beats[0].asks.answer] == f"{idle:.0%}"


def test_the_cut_heads_are_numpy_s():
    found = recorded("tp")
    given, (one, _), (held, bad) = numbers_of(0), found.results["whole"], found.results["split"]
    assert [rank.sent for rank in held] == [8 * TOKENS * WIDTH] * 2 and [rank.sent for rank in bad] == [0, 0]
    total = np.zeros((TOKENS, WIDTH))
    for rank in range(2):
        q, k, v = (given.x @ given.qkv[rank][:, HEAD * i : HEAD * (i + 1)] for i in range(3))
        total += weights_of(q[None], k[None])[0] @ v @ given.out[rank]
    assert np.allclose(held[0].y, total, atol=1e-5)  # float32
    wrong = sum(int((rank.y != one.y).sum()) for rank in bad)
    stories = [found.animation.find("heads", broken) for broken in (False, True)]
    assert wrong and stories[1].verdict == "y is wrong on both."
    assert [fact(one, "sent") for one in stories] == [[8 * TOKENS * WIDTH], [0]]


# ── context parallelism ──────────────────────────────────────────────────────────────────────────────────────────────


def test_cp_computes_every_pair_up_to_the_diagonal_once_and_sends_the_bytes_of_the_formula():
    found, n = recorded("cp"), 4
    for kind, passes in zip(CHUNKS, found.results["passes_of"], strict=False):
        context, chunks = 2 * n * 8, CHUNKS[kind] * n
        for way, one in passes.items():
            done = sorted(pair for visits in one.visits for visit in visits for pair in visit.pairs)
            assert done == [(i, j) for i in range(chunks) for j in range(i + 1)]
            for hop, visits in enumerate(one.visits):
                for rank, visit in enumerate(visits):
                    mine, theirs = (sequence_chunks_of(r, n, chunks, kind) for r in (rank, (rank - hop) % n))
                    assert visit.pairs == [(i, j) for i in mine for j in theirs if j <= i]
                    assert visit.owner == (rank - hop) % n
            elements = 2 * context // n * 16  # keys and values
            assert one.nbytes == elements * ((n - 1) * 4 + (n * 16 if way == BACKWARD else 0))
        shown, busy = found.animation.find(kind), (n + 1) / (2 * n) if kind == "ring" else 1
        assert fact(shown, "each GPU sends") == [passes[FORWARD].nbytes] and fact(shown, "busy") == [100 * busy]
    stale = found.results["passes_of"][2][FORWARD].stale()
    assert stale == {(hop, rank) for hop in range(1, n) for rank in range(hop, n)}
    told = found.animation.find("ring", broken=True)
    assert told.beats[-1].says.startswith(f"{len(stale)} of {n * (n + 1) // 2} tiles")
    red = [mark for mark in told.marks if mark.kind == "box" and mark.at(told.ends)["fill"] == "wrong"]
    assert len(red) == len(stale)  # a tile is one pair of chunks


def test_cp_time_by_hand():
    """Rank 1 has no work in hop 1, but rank 0 sends hop 2's keys only when its own first visit is over."""
    counts = [[5, 1, 1], [1, 0, 2], [0, 3, 0]]
    visits = [[Visit(FORWARD, 0, rank, [(0, 0)] * count, None) for rank, count in enumerate(hop)] for hop in counts]
    assert Pass(visits).times() == [[(0, 5), (0, 1), (0, 1)], [(5, 6), (1, 1), (1, 3)], [(6, 6), (5, 8), (3, 3)]]


# ── expert parallelism ───────────────────────────────────────────────────────────────────────────────────────────────


def test_ep_routes_as_one_process_and_sends_the_rows_that_it_shows():
    found, n = recorded("ep"), 4
    for name, capacity in (("routes", None), ("capacity", 1.0)):
        runs = [run for run in found.trained("train_watched") if run.config.capacity == capacity]
        one, step = map(step_of, runs)
        assert runs[0].layout == ONE_PROCESS
        rows = np.zeros((n, n), int)  # from each rank to the expert of each rank
        for source, (mine, other) in enumerate(zip(step.routes, one.routes, strict=True)):
            assert np.array_equal(mine.chosen, other.chosen) and mine.weights.tobytes() == other.weights.tobytes()
            for expert in range(n):
                rows[source, expert] = min(int((mine.chosen == expert).any(axis=1).sum()), step.capacity or 99)
        moved, story = int(rows.sum() - np.trace(rows)), found.animation.find(name)
        sent = sum(row["bytes_sent"] for rank in runs[1].ranks for row in rank.collectives
                   if (row["axis"], row["dtype"]) == ("ep", "float32"))  # fmt: skip
        assert sent == 4 * moved * fact(story, "bytes of a row")[0]  # there, back, and in backward
        assert fact(story, "rows") == rows.sum(axis=0).tolist() and fact(story, "mean") == [rows.sum() / n]
        asked = story.beats[0].asks
        assert asked.choices[asked.answer] == f"after step {rows.sum(axis=0).max()}"  # all wait for the tallest column
        dropped = n * 2 * 2 - rows.sum()
        assert (f"{dropped} of {step.choices} rows" in story.beats[1].says) == bool(dropped)


def test_ep_gradients_and_loads_are_those_of_the_runs():
    found = recorded("ep")
    one, right = (step_of(run) for run in found.trained("train_watched")[:2])
    bad = step_of(found.trained("train_too_large")[0])
    used = [expert for expert in range(4) if right.rows[:, expert].any()]
    assert right.gradients.digests == one.gradients.digests and bad.loss == right.loss == one.loss
    for expert in used:
        assert bad.gradients.averaged[expert] == pytest.approx(4 * one.gradients.averaged[expert], rel=1e-6)
    told = found.animation.find("routes", broken=True)
    assert "are 4 times as large as those of one process" in told.beats[-1].says
    red = [mark for mark in told.marks if mark.thing.startswith("gradient of") and mark.now["fill"] == "wrong"]
    assert len(red) == len(used)
    runs = [run for run in found.trained(ep=4) if run.config.steps == balance.STEPS]
    counts = [np.array(run.ranks[0].expert_counts)[:, 0, :8] for run in runs]  # without a balance loss, with it
    paces = [(one.reshape(-1, 4, 2).sum(2).max(1) / one.reshape(-1, 4, 2).sum(2).mean(1))[-4:].mean() for one in counts]
    said = f"Without a balance loss {paces[0]:.1f} times the mean, with it {paces[1]:.1f}."
    assert found.animation.find("balance").beats[-1].says == said and paces[1] < paces[0]


# ── pipelines ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pp_plans_have_the_bubbles_and_stores_of_the_closed_forms_and_runs_did_what_they_say():
    found, p, m = recorded("pp"), 4, 8
    slots = {
        "naive": 3 * p * m, "GPipe": 3 * (m + p - 1), "1F1B": 3 * (m + p - 1), "interleaved": 3 * m + 1.5 * (p - 1),
        "ZB-H1": 3 * m + p - 1,
    }  # fmt: skip
    stored = {"naive": 1, "GPipe": m, "1F1B": p, "interleaved": p + (p - 1) / 2, "ZB-H1": p}
    race, measured = found.animation.find("race").at_start, found.animation.find("measured")
    for kind, run in zip(KINDS, found.trained(pp=p), strict=True):
        story, length = found.animation.find(kind.name), slots[kind.name]
        idle = 1 - 3 * m / length
        assert fact(story, "idle")[0] == round(100 * idle, 1) and fact(story, "GPU 0") == [stored[kind.name]]
        assert story.beats[0].asks.choices[story.beats[0].asks.answer] == f"{idle:.0%}"
        assert (kind.name in RACING) == (f"{bubble(kind.slots(p, m)):.0%} idle" in words(race, race.ends))
        ran = slots_of([last_step_of(rank.log) for rank in run.ranks])
        assert [[slot.action for slot in row] for row in ran] == schedule(kind.schedule, p, m, kind.virtual)
        assert f"{bubble(ran):.0%} idle" in words(measured, measured.ends)


def test_pp_exactly_what_is_marked_as_corrupted_is_wrong(ranks):
    """Each message of a real run is an action's outcome: compared with the run without the bug."""
    config = TrainConfig(layers=6, heads=2, width=16, context=8, global_batch=6, micro_batch=1, steps=1)

    def outcomes(world, rank_function):
        sent, send = {}, Pipeline.send

        def watched(self, array, stage, i, way):
            sent[Action(stage, "F", i) if way == "forward" else Action(stage + 1, "B", i)] = zlib.crc32(array.tobytes())
            send(self, array, stage, i, way)

        with mock.patch.object(Pipeline, "send", watched):
            rank_function(world, config, Layout(pp=3), RunOptions())
        return sent

    right, wrong = (
        {action: digest for sent in ranks(3).run(outcomes, function, timeout=60) for action, digest in sent.items()}
        for function in (train_rank, activations_swapped)
    )
    marked = corrupted_by([Action(1, "F", 0), Action(1, "F", 1)], timeline(schedule("1f1b", 3, 6)))
    assert {action for action in right if right[action] != wrong[action]} == marked & {*right}
