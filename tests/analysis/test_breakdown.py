"""Where the time of a step goes; MFU and HFU next to the closed form, and what they are divided by."""

from dataclasses import replace

import pytest
from choosing import long

from minidist.analysis import breakdown
from minidist.analysis.breakdown import KINDS, NO_CORE, shares, shares_of_time
from minidist.analysis.utilization import Utilization, palm_flops_per_token
from minidist.trace import Event, Kernel, Message
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import Run, RunOptions
from minidist.train.trainer import run


def call(name: str, start: int, end: int, stream: int = 0) -> Event:
    return Event("all_reduce", "communication", start, end, {"bytes": 8, "call": name}, stream)


def log(shift: int, *entries) -> list:
    """A step of 100 ns that begins at ``shift``, and what happens within it."""
    return [Event("step 0", "step", -500, -400), *entries, Event("step 1", "step", shift, shift + 100)]


POLLING = Event("wait for rank 1", "wait", 20, 40)
RECOMPUTING = [  # a product inside a recomputation, inside the backward of an operation that needs its input again
    Kernel("Linear", 1000, 8, "fp32", 0),
    Event("Linear", "compute", 20, 35),
    Event("recompute", "compute", 15, 40),
    Kernel("GELU.backward", 0, 8, "fp32", 0),
    Event("GELU.backward", "compute", 12, 50),
    Event("backward 0", "compute", 10, 60),
    call("a.1", 75, 80),
    Event("optimizer", "compute", 70, 90),
]
HIDING = [  # two all-reduces in the background: for one the rank waits at the end
    call("a.1", 10, 30, stream=1),
    Kernel("Linear.backward", 1000, 8, "fp32", 0),
    Event("Linear.backward", "compute", 0, 60),
    call("a.2", 40, 90, stream=1),
    Event(breakdown.BACKGROUND, "wait", 65, 90),
    Event("sync gradients", "wait", 60, 95),
]
COMPUTING = [call("a.1", 15, 30, stream=1), Event("Add", "compute", 0, 70), call("a.2", 72, 90, stream=1)]
RECEIVING = [
    Event("wait for rank 0", "wait", 20, 44),
    Message("send", 1, 0, 0, 8, 36),  # what it sends meanwhile ends no wait
    Message("receive", 0, 1, 7, 8, 40),  # sent before the log began
    Message("receive", 0, 1, 0, 8, 44),
    Event("receive 0", "wait", 10, 45),
    Event("send the rest", "wait", 80, 90),  # nobody takes it
]
CASES = {  # each rank's entries, and the ns of each kind
    "the first rank to arrive waits": (
        [[call("a", 10, 40), call("b", 50, 60)], [call("a", 35, 40), call("b", 50, 60)]],
        [{"rest": 60, "communication": 15, "waiting": 25}, {"rest": 85, "communication": 15}],
    ),
    "calls of different groups are told apart: rank 2 calls the same collective of another one, late": (
        [[call("a.1", 20, 50)], [call("a.1", 10, 50)], [call("b.1", 45, 50)]],
        [
            {"rest": 70, "communication": 30},
            {"rest": 60, "waiting": 10, "communication": 30},
            {"rest": 95, "communication": 5},
        ],
    ),
    "a wait within a collective belongs to it: the other still prepares a message": (
        [[POLLING, call("a.1", 10, 50)], [call("a.1", 10, 50)]],
        [{"rest": 60, "communication": 40}] * 2,
    ),
    "nested spans count once": (
        [RECOMPUTING],
        [{"products": 15, "elementwise": 13, "rest": 10 + 12 + 30, "optimizer": 15, "communication": 5}],
    ),
    "what is hidden under compute counts as compute": (
        [HIDING, COMPUTING],
        [{"products": 60, "waiting": 7, "communication": 18, "rest": 15}, {"elementwise": 70, "rest": 30}],
    ),
    "a message is waited for until it is sent": (
        [[Message("send", 0, 1, 0, 8, 30)], RECEIVING],
        [{"rest": 100}, {"waiting": 20 + 10, "communication": 15, "rest": 55}],
    ),
    "what is between steps is left out": (
        [[Event("Add", "compute", -300, -200), Event("Add", "compute", 10, 30)]],
        [{"elementwise": 20, "rest": 80}],
    ),
}


def test_each_kind_takes_the_time_that_is_counted_by_hand():
    for claim, (entries, expected) in CASES.items():
        steps = [each[-1] for each in breakdown.seconds_by_kind([log(0, *each) for each in entries])]
        found = [{kind: round(1e9 * seconds) for kind, seconds in step.items() if seconds} for step in steps]
        assert found == expected, claim
    early, late = log(0, call("0", 10, 40), call("1", 50, 60)), log(5, call("0", 30, 41), call("1", 50, 65))
    for steps, expected in zip(breakdown.seconds_by_kind([early, late]), ((60, 20, 20), (74, 26, 0)), strict=True):
        compute = sum(steps[-1][kind] for kind in breakdown.COMPUTE)
        found = compute, steps[-1]["communication"], steps[-1]["waiting"]
        assert found == pytest.approx([nanoseconds / 1e9 for nanoseconds in expected])


RUNS = {
    "dp=2,sync=overlapped,bucket_mb=0.001": {},
    "tp=2,recompute=full": {},
    "pp=2,stages=2+1": {},
    "zero=3,dp=2,prefetch=1": {},
    "cp=2": {"sequence_chunks": 2, "attention": "tiled", "attention_tile": 4},
    "ep=2,dp=2": {"experts": 4, "expert_hidden": 16},
}


@pytest.mark.parametrize("layout", [*list(RUNS)[:2], *map(long, list(RUNS)[2:]), "dp=1"])
def test_a_real_run_adds_up(ranks, layout):
    split, config = Layout.parse(layout), replace(CONFIG, **RUNS.get(layout, {}), steps=3)
    result = run(ranks(split.world_size), config, split, RunOptions(trace=True))
    logs = [rank.log for rank in result.ranks]
    for rank, steps in zip(result.ranks, breakdown.seconds_by_kind(logs), strict=True):
        spans = [entry for entry in rank.log if isinstance(entry, Event) and entry.track == "step"]
        assert sum(rank.step_seconds) <= rank.seconds and len(rank.step_seconds) == 3
        for seconds, span in zip(rank.step_seconds[1:], spans, strict=True):  # without what is between steps
            assert (span.end - span.start) / 1e9 <= seconds
        for found, span in zip(steps, spans, strict=True):
            assert sum(found.values()) == pytest.approx((span.end - span.start) / 1e9) and min(found.values()) >= 0
            assert min(found[kind] for kind in ("products", "elementwise", "optimizer", "rest")) > 0
            assert (found["communication"] + found["waiting"] > 0) == (split.world_size > 1)


CONFIG = TrainConfig(layers=3, heads=4, width=16, context=32, global_batch=4, steps=2)
VOCABULARY = 256  # bytes


def model_flops(result: Run) -> int:
    """Return the model FLOPs of one step, over all ranks."""
    used = [Utilization.of_rank([1.0], rank.step_flops, 1.0) for rank in result.ranks]
    return sum(one.model_flops for one in used) // result.steps_here


def closed_form(config: TrainConfig) -> int:
    """PaLM's estimate of a step, with the parameters that multiply activations: those of the blocks, and the head.

    The head's weight is the embedding's, which as an embedding takes no product; biases, LayerNorms and the positions
    take none either.
    """
    parameters = config.layers * 12 * config.width**2 + VOCABULARY * config.width
    per_token = palm_flops_per_token(parameters, config.layers, config.width, config.context)
    return config.tokens_per_step * per_token


def test_the_closed_form_counts_masked_scores_and_tiles_above_the_diagonal_are_skipped(ranks):
    """10 of 4 x 4 tiles are computed. Backward computes scores again, which are half of forward's products."""
    config = replace(CONFIG, attention="tiled", attention_tile=8)
    scores = 12 * config.layers * config.width * config.context * config.tokens_per_step
    result = run(ranks(1), config, Layout())
    assert model_flops(result) == closed_form(config) - scores * 6 // 16
    assert result.ranks[0].step_flops["recompute"] == config.steps * scores * 10 // 16 // 3 // 2
    result = run(ranks(1), CONFIG, Layout.parse("recompute=full"))  # the blocks' forward once more: all but the head
    head = 6 * VOCABULARY * CONFIG.width * CONFIG.tokens_per_step
    assert model_flops(result) == closed_form(CONFIG)
    assert result.ranks[0].step_flops["recompute"] == CONFIG.steps * (closed_form(CONFIG) - head) // 3


def test_steps_that_are_computed_again_to_check_them_do_not_count_and_those_that_overflowed_do(ranks):
    result = run(ranks(1), CONFIG, Layout(), RunOptions(check_replicas=1, check_by="replay"))
    assert model_flops(result) == closed_form(CONFIG)
    assert sum(result.ranks[0].flops.values()) == 2 * CONFIG.steps * closed_form(CONFIG)
    config = replace(CONFIG, precision="fp16", loss_scale=2.0**40)  # no step updates anything
    result = run(ranks(1), config, Layout(), RunOptions(trace=True))
    assert result.ranks[0].skipped_steps == config.steps and model_flops(result) == closed_form(config)


def test_utilization_by_hand():
    """Two ranks with a peak of 100 FLOP/s each. One takes 2 and 3 seconds for its steps, the other is done earlier."""
    slow = Utilization.of_rank([2.0, 3.0], {"forward": 50, "backward": 100, "recompute": 50}, 100.0)
    fast = Utilization.of_rank([1.0, 3.0], {"forward": 40, "backward": 60}, 100.0)
    assert (slow.speed, slow.mfu, slow.hfu) == (30.0, 0.3, 0.4)
    assert (fast.speed, fast.mfu, fast.hfu) == (25.0, 0.25, 0.25)
    whole = Utilization.of_run([slow, fast])
    assert (whole.seconds, whole.speed, whole.mfu, whole.hfu) == (5.0, 50.0, 0.25, 0.3)
    assert whole.as_dict()["mfu"] == 0.25 and whole.as_dict()["model_flops"] == 250


def test_nothing_is_divided_by_zero_and_waiting_for_a_core_is_taken_from_all_computing():
    for used in Utilization.of_rank([], {}, 5.0), Utilization.of_rank([1.0], {"forward": 8}, 0.0):
        assert used.mfu == used.hfu == Utilization.of_run([used]).mfu == 0
    assert Utilization.of_rank([], {}, 5.0).speed == 0 and set(shares([], 0.0).values()) == {0.0}
    step = dict.fromkeys(breakdown.KINDS, 0.0) | {"products": 4.0, "rest": 2.0, "optimizer": 2.0, "waiting": 2.0}
    known = {"products": 0.2, "optimizer": 0.1, "waiting": 0.2, NO_CORE: 0.4, "rest": 0.1}
    assert {kind: share for kind, share in shares([step], 4.0).items() if share} == known
    assert shares([step, step], 4.0)["products"] == pytest.approx(0.3)
    assert shares([step], 100.0)[NO_CORE] == 0.8  # never more than it computed
    log = [Event("step 7", "step", 0, 1_000_000_000)]  # only the traced steps' waits count
    assert shares_of_time([log], [[9.0, 9.0, 0.25]])[0] == dict.fromkeys(KINDS, 0.0) | {NO_CORE: 0.25, "rest": 0.75}
