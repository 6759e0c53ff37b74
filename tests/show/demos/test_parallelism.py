"""The demonstrations of parallelism: what they show is what was run, sent, held and planned."""

import zlib
from unittest import mock

import numpy as np
import pytest
from every_scene import EveryScene
from frames import last
from minidist.show.demos.shared.gpus import DIALS, last_step_of, on_gpus
from minidist.show.demos.tensor_parallel.attention.run import HEAD, TOKENS, WIDTH, numbers_of, weights_of
from recorded import recorded

from minidist.analysis.steps import hidden_share, kind_of, slots_of, step_length, traced_step
from minidist.nn.gpt import GPT
from minidist.parallel.context import sequence_chunks_of
from minidist.parallel.pipeline import Pipeline
from minidist.parallel.tools.schedule_check import bubble, timeline
from minidist.parallel.tools.schedules import Action, schedule
from minidist.show.demos.context_parallel.run import BACKWARD, CHUNKS, FORWARD, Pass, Visit
from minidist.show.demos.data_parallel.drift import distances
from minidist.show.demos.expert_parallel import balance
from minidist.show.demos.expert_parallel.run import step_of
from minidist.show.demos.pipeline.bug import activations_swapped, corrupted_by
from minidist.show.demos.pipeline.kinds import KINDS
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import train_rank
from minidist.verify.comparison import ONE_PROCESS

pytestmark = pytest.mark.long  # they record many training runs


@pytest.fixture(params=["dp", "tp", "sp", "cp", "ep", "pp"])
def shown(request):
    return recorded(request.param)


class TestScenes(EveryScene):
    pass


def elements_of(config: TrainConfig) -> int:
    return sum(one.size for one in GPT(config.model).parameters())


# ── data parallelism ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_dp_sends_the_bytes_of_the_formula_and_hides_what_the_replay_hides():
    found = recorded("dp")
    (run,) = found.trained(sync="overlapped", dp=2)
    sent = sum(row["bytes_sent"] for rank in run.ranks for row in rank.collectives)
    assert sent == 2 * (2 - 1) * 8 * (elements_of(run.config) + 1)  # float64, and the loss
    start = [dial.values[dial.start] for dial in DIALS]
    step = traced_step(on_gpus([last_step_of(rank.log) for rank in run.ranks], *start).logs)
    for name in ("overlapped", "bucketed", "naive"):
        assert f"send {sent:,} B in a step" in found.scene(name).details
    overlapped = found.scene("overlapped")
    assert last(overlapped, "time")[1] == round(step_length(step) / 1e6, 1)
    assert last(overlapped, "hidden")[1] == round(100 * hidden_share(step[0]))


def test_dp_without_a_bucket_drifts_apart_as_far_as_shown():
    found = recorded("dp")
    (one,), (right,), (wrong,) = (
        found.trained("train_keeping_weights", dp=1), found.trained("train_keeping_weights", dp=2),
        found.trained("train_broken_keeping_weights"),
    )  # fmt: skip
    size = np.sqrt(np.mean(one.ranks[0].arrays["weights"][-1].astype(float) ** 2))
    for run, name in ((right, "weights"), (wrong, "broken weights")):
        far = distances(run, one).max(axis=0)  # (steps,)
        assert (far == 0).all() if run is right else (np.diff(far) > 0).all()
        assert last(found.scene(name), "farthest rank")[0] == pytest.approx(100 * far[-1] / size, rel=0.02, abs=0.005)
        assert last(found.scene(name), "loss")[0] == round(run.losses[-1], 3)


# ── tensor and sequence parallelism ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("demo", "scene", "calls", "factor"),
    [
        ("tp", "as measured here", {"all-reduce": 9}, 9 * 16),
        ("sp", "as measured here", {"all-gather": 10, "reduce-scatter": 9}, 10 * 4 + 9 * 8),
        ("sp", "tp here", {"all-reduce": 9}, 9 * 16),
    ],
)
def test_tp_and_sp_call_send_wait_and_hold_what_was_traced(demo, scene, calls, factor):
    """Of 2 blocks: 4 L + 1 sums of float64 and, with sp, 4 L + 2 gathers of float32."""
    found, shown = recorded(demo), recorded(demo).scene(scene)
    run = found.trained(tp=2, sp=int("all-gather" in calls))[0]
    step = traced_step([rank.log for rank in run.ranks])
    spans = [event for event in step[0] if kind_of(event) in ("forward", "backward")]
    events = [e for e in step[0] if e.track == "communication" and any(s.start <= e.start < s.end for s in spans)]
    for call, count in calls.items():
        traced = sum(event.name.startswith(call.replace("-", "_")) for event in events)
        assert last(shown, f"{call}s of activations")[0] == count <= traced
    nbytes = factor * (2 - 1) * run.config.global_batch * run.config.context * run.config.width
    assert last(shown, "sent for them") == last(shown, "formula")[-1:] == [nbytes]
    idle = sum(event.end - event.start for event in events)
    assert shown.verdict == f"Rank 0's compute was idle for {idle / step_length(step):.0%} of the step."
    assert last(shown, "activations at peak") == [round(run.ranks[0].memory["activations"] / 2**10)]


def test_the_cut_heads_are_numpy_s():
    found = recorded("tp")
    given, (one,), (held, bad) = numbers_of(0), found.results["whole"], found.results["split"]
    assert [rank.sent for rank in held] == [8 * TOKENS * WIDTH] * 2 and [rank.sent for rank in bad] == [0, 0]
    total = np.zeros((TOKENS, WIDTH))
    for rank in range(2):
        q, k, v = (given.x @ given.qkv[rank][:, HEAD * i : HEAD * (i + 1)] for i in range(3))
        total += weights_of(q[None], k[None])[0] @ v @ given.out[rank]
    assert np.allclose(held[0].y, total, atol=1e-5)  # float32
    wrong = sum(int((rank.y != one.y).sum()) for rank in bad)
    assert f"wrong in {wrong} of {2 * TOKENS * WIDTH} cells" in found.scene("broken heads").verdict


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
        shown, busy = found.scene(kind), (n + 1) / (2 * n) if kind == "ring" else 1
        assert last(shown, "a rank sends") == [passes[FORWARD].nbytes]
        assert shown.verdict == f"The ranks are busy for {busy:.1%} of the time."
    stale = found.results["passes_of"][2][FORWARD].stale()
    assert stale == {(hop, rank) for hop in range(1, n) for rank in range(hop, n)}
    assert found.animation.broken.verdict.startswith(f"Wrong keys in {len(stale)} of ")


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
        moved, scene = int(rows.sum() - np.trace(rows)), found.scene(name)
        sent = sum(row["bytes_sent"] for rank in runs[1].ranks for row in rank.collectives
                   if (row["axis"], row["dtype"]) == ("ep", "float32"))  # fmt: skip
        assert [sent] == last(scene, "bytes") == [4 * moved * 4 * runs[1].config.width]  # there, back, and in backward
        assert last(scene, "rows sent") == [4 * moved] * 2
        assert last(scene, "busiest rank") == [rows.sum(axis=0).max(), rows.sum() / n]
        dropped = n * 2 * 2 - rows.sum()
        assert (f"{dropped} of 16 copies are dropped" in scene.verdict) == bool(dropped)


def test_ep_gradients_and_loads_are_those_of_the_runs():
    found = recorded("ep")
    one, right = (step_of(run) for run in found.trained("train_watched")[:2])
    bad = step_of(found.trained("train_too_large")[0])
    used = [expert for expert in range(4) if right.rows[:, expert].any()]
    assert right.gradients.digests == one.gradients.digests and bad.loss == right.loss == one.loss
    for expert in used:
        assert bad.gradients.averaged[expert] == pytest.approx(4 * one.gradients.averaged[expert], rel=1e-6)
    assert found.animation.broken.verdict == f"The gradients of {len(used)} experts are 4.00 times too large."
    runs = [run for run in found.trained(ep=4) if run.config.steps == balance.STEPS]
    counts = [np.array(run.ranks[0].expert_counts)[-1, 0, :8] for run in runs]  # without a balance loss, with it
    shown, idle = found.scene("balance"), [int((one == 0).sum()) for one in counts]
    assert shown.verdict == f"Without a balance loss {idle[0]} of 8 experts are idle in the end; with it, {idle[1]}."
    assert last(shown, "loss") == [round(run.losses[-1], 3) for run in runs]


# ── pipelines ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pp_plans_have_the_bubbles_and_stores_of_the_closed_forms_and_runs_did_what_they_say():
    found, p, m = recorded("pp"), 4, 8
    slots = {
        "naive": 3 * p * m, "GPipe": 3 * (m + p - 1), "1F1B": 3 * (m + p - 1), "interleaved": 3 * m + 1.5 * (p - 1),
        "ZB-H1": 3 * m + p - 1,
    }  # fmt: skip
    stored = {"naive": 1, "GPipe": m, "1F1B": p, "interleaved": p + (p - 1) / 2, "ZB-H1": p}
    for kind, run in zip(KINDS, found.trained(pp=p), strict=True):
        scene, length = found.scene(kind.name), slots[kind.name]
        idle = 1 - 3 * m / length
        assert scene.verdict.startswith(f"{length:g} slots, {idle:.0%} idle; up to {stored[kind.name]:g} stored")
        assert last(found.scene("all"), kind.name) == [round(100 * idle), stored[kind.name]]
        ran = slots_of([last_step_of(rank.log) for rank in run.ranks])
        assert [[slot.action for slot in row] for row in ran] == schedule(kind.schedule, p, m, kind.virtual)
        assert found.scene("measured").frames[-1].facts[kind.name] == f"{bubble(ran):.0%} idle"


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
