"""The demonstrations of parallelism: what they show is what was run, sent, held and planned, and what is broken is."""

import zlib
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from every_scene import EveryScene
from frames import arrows, boxes, labels, last, numbers, told
from recorded import recorded

from minidist.analysis.steps import kind_of, step_length, traced_step
from minidist.analysis.time.bubbles import slots_of
from minidist.analysis.time.overlap import hidden_share
from minidist.nn.gpt import GPT
from minidist.parallel.context import sequence_chunks_of
from minidist.parallel.data import fill_buckets
from minidist.parallel.pipeline import Pipeline
from minidist.parallel.tools.schedule_check import bubble, needs, timeline
from minidist.parallel.tools.schedules import Action, schedule
from minidist.show.demos.context_parallel import backward, heads_run
from minidist.show.demos.context_parallel.run import BACKWARD, CHUNKS, FORWARD, Pass, Visit, config_of, passes_of
from minidist.show.demos.data_parallel.bug import DROPPED_BUCKET
from minidist.show.demos.data_parallel.drift import distances
from minidist.show.demos.data_parallel.run import BUCKETS
from minidist.show.demos.data_parallel.steps import Step, full_times
from minidist.show.demos.expert_parallel import balance
from minidist.show.demos.expert_parallel.bug import average_over_own_group
from minidist.show.demos.expert_parallel.run import step_of
from minidist.show.demos.pipeline.bug import MISTAKEN, activations_swapped, corrupted_by, slots_with_bug, waits_with_bug
from minidist.show.demos.pipeline.kinds import KINDS, NAIVE, SWAPPABLE
from minidist.show.demos.shared.gpus import DIALS, LATENCIES, LINKS, last_step_of, on_gpus
from minidist.show.demos.shared.memory_log import KINDS as OF_MEMORY
from minidist.show.demos.shared.memory_log import Change, MemoryLog, last_steps
from minidist.show.demos.shared.runs import WarmRanks
from minidist.show.demos.tensor_parallel.attention.run import HEAD, TOKENS, WIDTH, matches, numbers_of, weights_of
from minidist.show.demos.tensor_parallel.numbers import numbers_of as mlp_numbers_of
from minidist.show.demos.tensor_parallel.split import matches as mlp_matches
from minidist.show.demos.tensor_parallel.split import split, whole
from minidist.show.player.scene import Label
from minidist.trace import Event
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import train_rank
from minidist.verify.comparison import ONE_PROCESS

pytestmark = pytest.mark.long  # they record many training runs

START = [dial.values[dial.start] for dial in DIALS]


@pytest.fixture(params=["dp", "zero", "tp", "sp", "cp", "ep", "pp"])
def shown(request):
    return recorded(request.param)


class TestScenes(EveryScene):
    pass


def parameters(config: TrainConfig) -> list:
    return GPT(config.model).parameters()


# ── data parallelism ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_dp_sends_the_bytes_of_the_formula_and_hides_what_the_replay_hides():
    found = recorded("dp")
    (run,) = found.trained(sync="overlapped", dp=2)
    elements = sum(one.size for one in parameters(run.config))
    sent = sum(row["bytes_sent"] for rank in run.ranks for row in rank.collectives)
    assert sent == 2 * (2 - 1) * 8 * (elements + 1)  # float64, and the loss
    step = traced_step(on_gpus([last_step_of(rank.log) for rank in run.ranks], *START).logs)
    ends = {}
    for name in ("overlapped", "bucketed", "naive"):
        scene = found.scene(name)
        assert f"send {sent:,} B in a step" in scene.details and scene.details.endswith(f"{sent:,} B.")
        ends[name] = last(scene, "time")[1]
        for one in scene.variants:
            hidden, ended, everything = last(one, "hidden")[1], *last(one, "all-reduces ended")
            assert ended == everything and (hidden > 0) == (name == "overlapped")
            for fact in ("all-reduces ended", "on the network", "hidden", "time"):
                values = [numbers(frame.facts[fact])[0] for frame in one.frames]
                assert values == sorted(values) and values[0] == 0
    assert ends["overlapped"] == round(step_length(step) / 1e6, 1) < ends["bucketed"] < ends["naive"]
    overlapped = found.scene("overlapped")
    assert last(overlapped, "hidden")[1] == round(100 * hidden_share(step[0]))
    assert {f"{name} {end:.1f} ms" for name, end in ends.items()} <= {
        *overlapped.frames[-1].note.rstrip(".").partition(": ")[2].split(", ")
    }
    answers = {one.questions[0].answer: last(one, "hidden")[1] >= 50 for one in overlapped.variants}
    assert answers == {1: False, 2: True}  # turning the dials changes it


def test_dp_sends_a_bucket_when_backward_has_filled_it():
    logs = [last_step_of(log) for log in recorded("dp").animation.logs]
    full = full_times(logs, START[2])
    assert full == sorted(full)
    for link in LINKS:
        sums = Step.of("overlapped", on_gpus(logs, link, *START[1:]).logs).sums
        assert sums[0].start == full[0] and all(one.start >= time for one, time in zip(sums, full, strict=True))


def test_dp_without_a_bucket_is_as_many_models_as_ranks_and_they_drift_apart():
    found = recorded("dp")
    broken = found.trained("drops_a_bucket")
    assert len({run.fingerprint for run in broken}) == 1  # the same bug, however the sums are taken
    assert all(len({rank.fingerprint for rank in run.ranks}) == 2 for run in broken)
    every = parameters(broken[0].config)[::-1]
    dropped = fill_buckets(every, sum(one.size for one in every) / BUCKETS)[DROPPED_BUCKET - 1]
    assert any(f"after step 0, in {one.name}[" in told(found.animation.broken) for one in dropped)
    buckets = [last(found.scene(name), "all-reduces ended")[0] for name in ("overlapped", "broken")]
    assert buckets[0] == buckets[1] + 1
    (one,), (right,), (wrong,) = (
        found.trained("train_keeping_weights", dp=1), found.trained("train_keeping_weights", dp=2),
        found.trained("train_broken_keeping_weights"),
    )  # fmt: skip
    size = np.sqrt(np.mean(one.ranks[0].arrays["weights"][-1].astype(float) ** 2))
    for run, name in ((right, "weights"), (wrong, "broken weights")):
        shown = [numbers(frame.facts["farthest rank"])[0] for frame in found.scene(name).frames[1:]]
        far = distances(run, one).max(axis=0)  # (steps,)
        assert (far == 0).all() if run is right else (np.diff(far) > 0).all()
        assert shown[-1] == pytest.approx(100 * far[-1] / size, rel=0.02, abs=0.005)  # two decimals, of sampled weights
        assert numbers(found.scene(name).frames[-1].facts["loss"])[0] == round(run.losses[-1], 3)


# ── ZeRO ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_zero_keeps_the_bytes_of_the_paper():
    """Rajbhandari et al., 2020, figure 1: with K = 12."""
    scene = recorded("zero").scene("16 bytes")
    for one, n in zip(scene.variants, map(int, scene.dials[0].values), strict=True):
        kept = [16, 4 + 12 / n, 2 + 14 / n, 16 / n]
        assert [numbers(frame.facts["a rank keeps"])[0] for frame in one.frames[:4]] == pytest.approx(kept, rel=5e-3)
        heights = [sum(box.h for box in boxes(one.frames[3]) if box.id.endswith(stage)) for stage in
                   ("replicated", "stage 1", "stage 2", "stage 3")]  # fmt: skip
        axis = {shape.text: shape.y for shape in one.frames[3].shapes if isinstance(shape, Label)}
        assert np.array(heights) / (axis["0"] - axis["16"]) * 16 == pytest.approx(kept)
        assert [question.choices[question.answer] for question in one.questions] == ["stage 1", f"{16 / n:.3g} bytes"]


def test_zero_shows_what_the_ledger_says_and_the_formula():
    found = recorded("zero")
    kept = [(4, 8, 12), (4, 2, 3), (4, 2, 3), (1, 2, 3)]  # parameters, optimizer state, gradients, by 4 ranks
    peaks = []
    for stage, (run, sizes) in enumerate(zip(found.trained("train_logging_memory"), kept, strict=True)):
        scene = found.scene(f"stage {stage}" if stage else "replicated")
        total = sum(one.size for one in parameters(run.config))
        memory = run.ranks[0].memory
        two, one = last_steps(run.ranks[0].log, 2), last_steps(run.ranks[0].log)
        assert {kind: two.highest(kind) for kind in OF_MEMORY} == {kind: memory[kind] for kind in OF_MEMORY}
        assert two.highest() == memory["peak"] and one.at(1)["activations"] == 0
        for kind, size in zip(("parameters", "optimizer", "gradients"), sizes, strict=True):
            now, peak, *_, formula = last(scene, kind)
            assert formula == size and now == pytest.approx(size, abs=0.02)  # shards are padded
            assert peak == round(memory[kind] / total, 2)
        peaks.append(last(scene, "total")[1])
        assert peaks[-1] == round(memory["peak"] / total, 2)
    lower = [after / before for before, after in pairwise(peaks)]
    answers = [found.scene(f"stage {stage}").questions[0].answer for stage in (1, 2, 3)]
    assert answers == [sum(ratio < limit for limit in (0.98, 0.75)) for ratio in lower] and max(lower) < 1


def test_zero_with_stale_parameters_holds_the_same_and_trains_something_else():
    found = recorded("zero")
    right = found.trained("train_logging_memory")[1:]
    for one, bad in zip(right, (*found.trained("train_stale"), *found.trained("train_stale_sharded")), strict=True):
        assert one.ranks[0].memory == bad.ranks[0].memory and one.fingerprint != bad.fingerprint
        assert one.losses[:-1] == bad.losses[:-1] and one.losses[-1] != bad.losses[-1]
    assert all("after step 2" in scene.details for scene in found.animation.all_broken)


def test_places_in_a_step_count_changes_of_the_ledger():
    changes = [Change(10 * i, dict.fromkeys(OF_MEMORY, 0) | {"gradients": n}) for i, n in enumerate((5, 9, 1, 2))]
    held = MemoryLog(changes, [Event("forward 0", "compute", 10, 25)])
    assert held.places("forward") == [(0.5, 0.75)] and held.places("backward") == []
    assert [held.at(place)["gradients"] for place in (0, 0.25, 0.5, 0.75, 1)] == [5, 5, 9, 1, 2]
    assert held.between(0, 0.5)["gradients"] == 9 and held.highest("gradients", end=0.25) == 5


# ── tensor and sequence parallelism ──────────────────────────────────────────────────────────────────────────────────


def inside_of(log: list[Event], name: str) -> list[Event]:
    """The collectives of a rank's forward or backward."""
    around = next(event for event in log if kind_of(event) == name)
    return [e for e in log if e.track == "communication" and around.start <= e.start < around.end]


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
    run = found.trained(tp=2, sp=int("gather" in str(calls)))[0]
    step = traced_step([rank.log for rank in run.ranks])
    events = {name: inside_of(step[0], name) for name in ("forward", "backward")}
    names = [event.name.split("(")[0] for each in events.values() for event in each]
    for call, count in calls.items():
        traced = sum(name.startswith(call.replace("-", "_")) for name in names)
        assert last(shown, f"{call}s of activations")[0] == count <= traced
    nbytes = factor * (2 - 1) * run.config.global_batch * run.config.context * run.config.width
    assert last(shown, "sent for them") == last(shown, "formula")[-1:] == [nbytes]
    still, end = sum(e.end - e.start for each in events.values() for e in each), step_length(step)
    assert last(shown, "compute idle") == [round(still / 1e6, 1)]
    assert shown.verdict == f"Rank 0's compute was idle for {still / end:.0%} of the step."
    assert last(shown, "activations at peak") == [round(run.ranks[0].memory["activations"] / 2**10)]


def test_tp_sums_with_g_in_forward_and_f_in_backward_and_sp_gathers_and_scatters():
    notes = [frame.note for frame in recorded("tp").scene("as measured here").frames]
    assert sum(note.startswith("Forward, ") and " g adds " in note for note in notes) == 4
    assert sum(note.startswith("Backward, ") and " f adds " in note for note in notes) == 5
    found = recorded("sp")
    log = traced_step(found.animation.logs)[0]
    for phase in ("forward", "backward"):
        words = [note for note in (frame.note for frame in found.scene("as measured here").frames)
                 if note.startswith(phase.capitalize()) and "is done" not in note]  # fmt: skip
        names = [e.name.split("_")[0] for e in inside_of(log, phase) if e.name.startswith(("all_gather", "reduce_s"))]
        assert ["all" if "gathers" in note else "reduce" for note in words] == names
        assert {"gradients" in note for note in words} == {phase == "backward"}


def test_sp_holds_less_and_dials_change_no_byte():
    assert last(recorded("sp").scene("as measured here"), "activ") < last(recorded("sp").scene("tp here"), "activ")
    for name in ("tp", "sp"):
        measured, gpus = recorded(name).scene("as measured here"), recorded(name).scene("as GPUs would")
        assert {one.frames[-1].facts["sent for them, all ranks"] for one in gpus.variants} == {
            measured.frames[-1].facts["sent for them, all ranks"]
        }
        assert len({last(one, "time")[1] for one in gpus.variants}) > 10


def test_without_its_sum_tp_has_a_call_less_and_other_weights():
    for name, function, where in (("tp", "drops_g", "embeddings.token.weight"), ("sp", "drops_gains", "norm1.gain")):
        found = recorded(name)
        (bad,) = found.trained(function)
        assert bad.fingerprint != found.trained(world_size=1)[0].fingerprint and where in found.animation.broken.details
    good, bad = (recorded("tp").scene(one) for one in ("as measured here", "broken, measured"))
    assert last(bad, "all-reduces of act")[0] == last(good, "all-reduces of act")[0] - 1
    assert last(bad, "sent for them") < last(bad, "formula")


@pytest.mark.parametrize("seed", [0, 1])
def test_the_cut_mlp_joins_to_the_bits_of_one_process(ranks, seed):
    numbers, warm = mlp_numbers_of(2, seed), WarmRanks(ranks)
    one = whole(warm, numbers)
    hidden = np.maximum((numbers.x_hat * numbers.gain) @ numbers.a, 0)
    assert np.array_equal(one.y, (hidden @ numbers.b).sum(0))  # GELU of these numbers is exact
    for sequence, broken, sent in ((False, "g", 192), (True, "gain", 168)):  # T C of float64 twice; sp: and the gain's
        held = split(warm, numbers, sequence)
        assert mlp_matches(held, one) and [rank.sent[-1] for rank in held] == [sent] * 2
        assert not mlp_matches(split(warm, numbers, sequence, broken), one)
    for name in ("tp", "sp"):
        scene = recorded(name).animation.scenes[0]
        assert last(scene, "collectives") == [2 if name == "tp" else 5]
        assert last(recorded(name).animation.broken, "bytes") < last(scene, "bytes")


def test_heads_are_attention_of_numpy_and_their_sum_is_right_as_shown():
    found = recorded("tp")
    given, (one,), (held, bad) = numbers_of(0), found.results["whole"], found.results["split"]
    assert matches(held, one) and not matches(bad, one)
    assert [rank.sent for rank in held] == [8 * TOKENS * WIDTH] * 2 and [rank.sent for rank in bad] == [0, 0]
    assert [rank.o.tobytes() for rank in bad] == [rank.o.tobytes() for rank in held]  # wrong from g on alone
    total = np.zeros((TOKENS, WIDTH))
    for rank, mine in enumerate(held):
        q, k, v = (given.x @ given.qkv[rank][:, HEAD * i : HEAD * (i + 1)] for i in range(3))
        assert (mine.q[0] == q).all() and (mine.k[0] == k).all() and (mine.v[0] == v).all()
        weights = weights_of(q[None], k[None])[0]
        assert np.allclose(weights.sum(1), 1) and not np.triu(weights, 1).any()
        total += weights @ v @ given.out[rank]
    assert np.allclose(held[0].y, total, atol=1e-5)  # float32
    terms, _, result = next(text for text in labels(found.scene("heads").frames[-1]) if " = " in text).partition(" = ")
    left = [float(word.replace("−", "-")) for word in terms.partition(": ")[2].split(" + ")]
    assert sum(left) == pytest.approx(float(result.replace("−", "-")))
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
                    assert visit.owner == one.owners()[hop][rank] == (rank - hop) % n
            elements = 2 * context // n * 16  # keys and values
            assert one.nbytes == elements * ((n - 1) * 4 + (n * 16 if way == BACKWARD else 0))
        shown, forward = found.scene(kind), passes[FORWARD]
        assert last(shown, "a rank sends") == [forward.nbytes] and last(shown, "time") == [forward.end(-1)] * 2
        assert forward.busy() == ((n + 1) / (2 * n) if kind == "ring" else 1)
        assert shown.verdict == f"The ranks are busy for {forward.busy():.1%} of the time."
        assert found.scene("ring").questions[1].choices[found.scene("ring").questions[1].answer] == "62%"
        for hop in range(1, n):  # keys move on, each to the next rank
            expected = {f"{(rank - 1) % n} → {rank}: KV {(rank - hop) % n}" for rank in range(n)}
            assert {*arrows(shown.frames[2 * hop])} == expected
    with pytest.raises(RuntimeError, match="bytes in forward, not"):
        run = found.trained("train_watched", cp_kind="ring")[0]
        passes_of(replace(run, config=config_of("ring", n, 16, 0)))


def test_cp_time_by_hand():
    """Rank 1 has no work in hop 1, but rank 0 sends hop 2's keys only when its own first visit is over."""
    counts = [[5, 1, 1], [1, 0, 2], [0, 3, 0]]
    visits = [[Visit(FORWARD, 0, rank, [(0, 0)] * count, None) for rank, count in enumerate(hop)] for hop in counts]
    assert Pass(visits).times() == [[(0, 5), (0, 1), (0, 1)], [(5, 6), (1, 1), (1, 3)], [(6, 6), (5, 8), (3, 3)]]


def test_cp_with_stale_keys_is_wrong_wherever_a_rank_has_work_after_hop_0():
    found, n = recorded("cp"), 4
    ring, _, stale, _, stale_backward = found.results["passes_of"]
    after_hop_0 = {(hop, rank) for hop in range(1, n) for rank in range(hop, n)}
    for way in (FORWARD, BACKWARD):
        assert stale[way].stale() == after_hop_0 and not ring[way].stale()
        assert stale[way].owners() == [list(range(n))] * n  # each uses its own
    assert found.animation.broken.verdict == f"Wrong keys in {len(after_hop_0)} of {ring[FORWARD].pairs()} tiles."
    assert not stale_backward[FORWARD].stale() and stale_backward[BACKWARD].stale() == after_hop_0
    right, wrong = (found.scene(name) for name in ("backward", "broken backward"))
    assert right.frames[-1].facts["loss of the step"] == wrong.frames[-1].facts["loss of the step"]
    off = backward.errors(stale_backward[BACKWARD], ring[BACKWARD])
    shown = [text for text in labels(wrong.frames[-1]) if text.endswith(" off")]
    assert shown == [f"dK {rank}: {off[rank][0]:.0%} off" for rank in range(n - 1)]  # the last rank's are its own alone


def test_cp_heads_and_tokens_change_places():
    found, n = recorded("cp"), 4
    runs = found.trained("train_heads")
    (there, back), (bad_there, _) = (heads_run.exchanges_of(run) for run in runs)
    for rank in range(n):
        tokens, head = {(rank, head) for head in range(n)}, {(chunk, rank) for chunk in range(n)}
        assert {*there[rank].before} == {*back[rank].after} == tokens
        assert {*there[rank].after} == {*back[rank].before} == head
        assert {*bad_there[rank].after.values()} == {there[rank].after[rank, rank]}  # its own keys everywhere
    sent = {place: crc for one in there for place, crc in one.before.items()}
    assert sent == {place: crc for one in there for place, crc in one.after.items()}  # moved, and nothing else
    elements = 2 * n * 8 // n * 8 * n * (n - 1) // n  # T/N tokens, C columns, less a rank's own head
    assert last(found.scene("Ulysses"), "a rank has sent") == [4 * (3 + 1) * elements]


def test_cp_on_gpus_tells_where_messages_hide():
    found = recorded("cp")
    answers = set()
    for one, stale in zip(found.scene("as GPUs would").variants, found.scene("broken on GPUs").variants, strict=True):
        assert one.frames[-1].facts == stale.frames[-1].facts  # wrong keys take no time
        answers.add((one.questions[0].answer, last(one, "a message") > last(one, "zigzag's tiles")))
        assert last(one, "zigzag")[0] <= last(one, "contiguous")[0]
    assert answers == {(0, False), (1, True)}  # both happen somewhere on the dials


# ── expert parallelism ───────────────────────────────────────────────────────────────────────────────────────────────


def test_ep_routes_as_one_process_and_sends_the_rows_that_it_shows():
    found, n = recorded("ep"), 4
    for name, capacity in (("routes", None), ("capacity", 1.0)):
        runs = [run for run in found.trained("train_watched") if run.config.capacity == capacity]
        one, step = map(step_of, runs)
        assert runs[0].layout == ONE_PROCESS
        for mine, other in zip(step.routes, one.routes, strict=True):
            assert np.array_equal(mine.chosen, other.chosen) and mine.weights.tobytes() == other.weights.tobytes()
            np.testing.assert_allclose(mine.weights.sum(axis=1), 1, rtol=1e-6)
        rows = np.zeros((n, n), int)  # from each rank to the expert of each rank
        for source, route in enumerate(step.routes):
            for expert in range(n):
                rows[source, expert] = min(int((route.chosen == expert).any(axis=1).sum()), step.capacity or 99)
        assert np.array_equal(rows, step.rows)
        moved, scene = int(rows.sum() - np.trace(rows)), found.scene(name)
        sent = sum(row["bytes_sent"] for rank in runs[1].ranks for row in rank.collectives
                   if (row["axis"], row["dtype"]) == ("ep", "float32"))  # fmt: skip
        assert [sent] == last(scene, "bytes") == [4 * moved * 4 * runs[1].config.width]  # there, back, and in backward
        assert last(scene, "rows sent") == [4 * moved] * 2
        assert last(scene, "busiest rank") == [rows.sum(axis=0).max(), rows.sum() / n]
        dropped = n * 2 * 2 - rows.sum()
        assert (f"{dropped} of 16 copies are dropped" in scene.verdict) == bool(dropped)
        for distance in range(1, n):
            (frame,) = [f for f in scene.frames if f.note.startswith(f"Dispatch, message {distance} of 3")]
            expected = [(r, (r + distance) % n, int(rows[r, (r + distance) % n])) for r in range(n)]
            assert {*arrows(frame)} == {f"{a} → {b}: {k} row{'s' * (k > 1)}" for a, b, k in expected if k}
        if capacity is None:
            question = scene.questions[1]
            assert question.choices[question.answer] == f"rank {rows.sum(axis=0).argmax()}"


def test_ep_gradients_are_ep_times_too_large_in_the_broken_run_alone():
    found = recorded("ep")
    one, right = (step_of(run) for run in found.trained("train_watched")[:2])
    bad = step_of(found.trained("train_too_large")[0])
    used = [expert for expert in range(4) if right.rows[:, expert].any()]
    assert right.gradients.digests == one.gradients.digests
    for expert in used:
        assert bad.gradients.averaged[expert] == pytest.approx(4 * one.gradients.averaged[expert], rel=1e-6)
    assert bad.loss == right.loss == one.loss and right.fingerprint == one.fingerprint != bad.fingerprint
    assert found.animation.broken.verdict == f"The gradients of {len(used)} experts are 4.00 times too large."
    dense, expert = (SimpleNamespace(expert_axis=axis, grad=np.array([8.0]), dtype=np.float32) for axis in (None, 1))
    average_over_own_group([dense, expert], count=4, ep=2)
    assert dense.grad.tolist() == [2.0] and expert.grad.tolist() == [4.0]


def test_ep_loads_are_those_of_the_runs():
    found = recorded("ep")
    runs = [run for run in found.trained(ep=4) if run.config.steps == balance.STEPS]
    off, on = (np.array(run.ranks[0].expert_counts)[:, 0, :8] for run in runs)  # (steps, E)
    assert (off.sum(axis=1) == on.sum(axis=1)).all()
    shown = found.scene("balance")
    idle = [(counts[-1] == 0).sum() for counts in (off, on)]
    assert shown.verdict == f"Without a balance loss {idle[0]} of 8 experts are idle in the end; with it, {idle[1]}."
    paces = [counts[-1].reshape(4, 2).sum(axis=1).max() / (counts[-1].sum() / 4) for counts in (off, on)]
    assert f"{paces[0]:.1f} and {paces[1]:.1f} times the mean" in shown.details
    even = [counts[-1].max() / counts[-1].mean() for counts in (off, on)]
    assert numbers(shown.frames[-1].note)[1:] == pytest.approx(even, abs=0.05)
    assert last(shown, "loss") == [round(run.losses[-1], 3) for run in runs]


# ── pipelines ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pp_plans_have_the_slots_bubbles_and_stores_of_the_closed_forms():
    found, p, m = recorded("pp"), 4, 8
    slots = {
        "naive": 3 * p * m, "GPipe": 3 * (m + p - 1), "1F1B": 3 * (m + p - 1), "interleaved": 3 * m + 1.5 * (p - 1),
        "ZB-H1": 3 * m + p - 1,
    }  # fmt: skip
    stored = {"naive": 1, "GPipe": m, "1F1B": p, "interleaved": p + (p - 1) / 2, "ZB-H1": p}
    for kind in KINDS:
        scene, length, plan = found.scene(kind.name), slots[kind.name], kind.slots(p, m)
        idle = 1 - 3 * m / length
        assert scene.frames[-1].at == length and last(scene, "bubble") == [round(100 * idle, 1)]
        assert scene.verdict.startswith(f"{length:g} slots, {idle:.0%} idle; up to {stored[kind.name]:g} stored")
        for frame in scene.frames:  # idle so far, and what rank 0 stores
            busy = sum(max(0, min(slot.end, frame.at) - slot.start) for row in plan for slot in row)
            assert numbers(frame.facts["idle so far"])[:2] == [p * frame.at - busy, p * frame.at]
            begun = sum(slot.action.kind == "F" and slot.start < frame.at for slot in plan[0]) / kind.virtual
            ended = sum(slot.action.kind in "BW" and slot.end <= frame.at for slot in plan[0]) / kind.virtual
            assert numbers(frame.facts["rank 0 stores"])[0] == pytest.approx(begun - ended)
        assert last(found.scene("all"), kind.name) == [round(100 * idle), stored[kind.name]]
    answers = [q.choices[q.answer] for name in ("naive", "GPipe", "1F1B", "all") for q in found.scene(name).questions]
    assert answers == ["96", "8", "33", "backward 0", "both take as long", "ZB-H1", "naive"]


def test_pp_runs_did_what_the_plans_say():
    found = recorded("pp")
    shown = found.scene("measured").frames[-1]
    for kind, run in zip(KINDS, found.trained(pp=4), strict=True):
        ran = slots_of([last_step_of(rank.log) for rank in run.ranks])
        assert [[slot.action for slot in row] for row in ran] == schedule(kind.schedule, 4, 8, kind.virtual)
        assert shown.facts[kind.name] == f"{bubble(ran):.0%} idle"


def test_pp_on_gpus_waits_less_for_faster_links():
    scene = recorded("pp").scene("GPUs")
    waits = [sum(numbers(scene.variants[i].frames[-1].facts[kind.name])[1] for kind in SWAPPABLE) for i in range(12)]
    for latency in range(len(LATENCIES)):
        by_link = waits[latency :: len(LATENCIES)]
        assert by_link == sorted(by_link, reverse=True) and by_link[0] > by_link[-1]
    for one in scene.variants:
        assert one.verdict == f"{one.questions[0].choices[one.questions[0].answer]} is done first."


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", SWAPPABLE, ids=lambda kind: kind.name)
def test_pp_with_the_bug_rank_1_waits_for_the_other_micro_batch(kind, count):
    slots = slots_with_bug(kind, count, 8)
    assert [[slot.action for slot in row] for row in slots] == kind.planned(count, 8)
    ended = {slot.action: slot.end for row in slots for slot in row}
    for slot in (slot for row in slots for slot in row):
        if slot.action in MISTAKEN:
            assert slot.start >= ended[Action(0, "F", MISTAKEN[slot.action])]
        else:
            for some in needs(slot.action, count * kind.virtual):
                assert min(ended[one] for one in some if one in ended) <= slot.start


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


def test_pp_says_how_many_cells_the_bug_spoils_what_the_loss_is_and_who_waits_for_whom():
    found = recorded("pp")
    right = found.trained(world_size=1)[0].losses[0]
    for kind, run in zip(SWAPPABLE, found.trained("activations_swapped"), strict=True):
        scene = next(one for one in found.animation.all_broken if one.twin == kind.name)
        wrong = len(corrupted_by(MISTAKEN, slots_with_bug(kind, 4, 8)))
        assert scene.verdict == f"{wrong} wrong cells; the loss is {run.losses[0]:.3f} instead of {right:.3f}."
        assert found.scene("broken all").frames[-1].facts[kind.name] == f"{wrong} wrong cells"
    naive = found.scene("broken naive")
    assert not any(waits_with_bug(kind, 4, 8) for kind in SWAPPABLE)
    for rank, other in waits_with_bug(NAIVE, 4, 8).items():  # as the plan says, so the real ranks said
        assert f"waits for rank {other}" in [box.text for box in boxes(naive.frames[-1])]
        told_of = next(line for line in naive.details.splitlines() if line.startswith(f"  rank {rank} is in irecv: "))
        assert f"waits for a message from rank {other}" in told_of
