"""MFU and HFU: what is counted, next to the closed form, and what it is divided by."""

from dataclasses import replace

import pytest

from minidist.analysis.time import breakdown
from minidist.analysis.time.utilization import KINDS, NO_CORE, Utilization, palm_flops_per_token, shares, shares_of_time
from minidist.trace import Event
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import Run, RunOptions
from minidist.train.trainer import run

CONFIG = TrainConfig(layers=3, heads=4, width=16, context=32, global_batch=4, steps=2)
VOCABULARY = 256  # bytes


def model_flops(result: Run) -> int:
    """Of one step, over all ranks."""
    return (
        sum(Utilization.of_rank([1.0], rank.step_flops, 1.0).model_flops for rank in result.ranks) // result.steps_here
    )


def closed_form(config: TrainConfig) -> int:
    """PaLM's estimate of a step, with the parameters that multiply activations: those of the blocks, and the head.

    The head's weight is the embedding's, which as an embedding takes no product; biases, LayerNorms and the positions
    take none either.
    """
    parameters = config.layers * 12 * config.width**2 + VOCABULARY * config.width
    per_token = palm_flops_per_token(parameters, config.layers, config.width, config.context)
    return config.tokens_per_step * per_token


def test_the_closed_form_counts_masked_scores_and_tiles_above_the_diagonal_are_skipped(ranks):
    """With 4 x 4 tiles 10 of 16 are computed. Backward computes scores again, which are half of forward's products."""
    config = replace(CONFIG, attention="tiled", attention_tile=8)
    scores = 12 * config.layers * config.width * config.context * config.tokens_per_step
    result = run(ranks(1), config, Layout())
    assert model_flops(result) == closed_form(config) - scores * 6 // 16
    assert result.ranks[0].step_flops["recompute"] == config.steps * scores * 10 // 16 // 3 // 2


def test_the_count_is_the_closed_form_in_every_layout(ranks):
    for text in (
        "dp=1",
        "dp=2",
        "tp=2",
        "tp=2,sp=1",
        "pp=2",
        "zero=3,dp=2",
        "recompute=full",
        "dp=2,recompute=selective",
    ):
        layout = Layout.parse(text)
        result = run(ranks(layout.world_size), CONFIG, layout)
        assert model_flops(result) == closed_form(CONFIG), text
        own = [Utilization.of_rank(rank.step_seconds, rank.step_flops, 1e9) for rank in result.ranks]
        whole = Utilization.of_run(own)
        assert whole.mfu > 0 and (whole.hfu > whole.mfu if layout.recompute != "none" else whole.hfu == whole.mfu), text
        if layout.recompute == "full":  # the blocks' forward once more: all but the head
            head = 6 * VOCABULARY * CONFIG.width * CONFIG.tokens_per_step
            assert whole.hardware_flops - whole.model_flops == CONFIG.steps * (closed_form(CONFIG) - head) // 3


def test_steps_that_are_computed_again_to_check_them_do_not_count(ranks):
    result = run(ranks(1), CONFIG, Layout(), RunOptions(check_replicas=1, check_by="replay"))
    assert model_flops(result) == closed_form(CONFIG)
    assert sum(result.ranks[0].flops.values()) == 2 * CONFIG.steps * closed_form(CONFIG)


def test_utilization_by_hand():
    """Two ranks with a peak of 100 FLOP/s each. One takes 2 and 3 seconds for its steps, the other is done earlier."""
    slow = Utilization.of_rank([2.0, 3.0], {"forward": 50, "backward": 100, "recompute": 50}, 100.0)
    fast = Utilization.of_rank([1.0, 3.0], {"forward": 40, "backward": 60}, 100.0)
    assert (slow.speed, slow.mfu, slow.hfu) == (30.0, 0.3, 0.4)
    assert (fast.speed, fast.mfu, fast.hfu) == (25.0, 0.25, 0.25)
    whole = Utilization.of_run([slow, fast])
    assert (whole.seconds, whole.speed, whole.mfu, whole.hfu) == (5.0, 50.0, 0.25, 0.3)
    assert whole.as_dict()["mfu"] == 0.25 and whole.as_dict()["model_flops"] == 250


def test_nothing_is_divided_by_zero():
    for used in Utilization.of_rank([], {}, 5.0), Utilization.of_rank([1.0], {"forward": 8}, 0.0):
        assert used.mfu == used.hfu == Utilization.of_run([used]).mfu == 0
    assert set(shares([], 0.0).values()) == {0.0}


def test_waiting_for_a_core_is_taken_from_all_computing():
    step = dict.fromkeys(breakdown.KINDS, 0.0) | {"products": 4.0, "rest": 2.0, "optimizer": 2.0, "waiting": 2.0}
    found = shares([step], 4.0)
    assert found == {
        "products": 0.2, "elementwise": 0.0, "optimizer": 0.1, "communication": 0.0, "waiting": 0.2, NO_CORE: 0.4,
        "rest": 0.1,
    }  # fmt: skip
    assert shares([step, step], 4.0)["products"] == pytest.approx(0.3)
    assert shares([step], 100.0)[NO_CORE] == 0.8  # never more than it computed
    assert shares([step], -0.1)[NO_CORE] == 0.0


def test_only_the_traced_steps_waits_for_a_core_count():
    log = [Event("step 7", "step", 0, 1_000_000_000)]
    assert shares_of_time([log], [[9.0, 9.0, 0.25]])[0] == dict.fromkeys(KINDS, 0.0) | {NO_CORE: 0.25, "rest": 0.75}


def test_shares_of_a_real_run_add_up(ranks):
    """More steps than are traced, more ranks than cores."""
    result = run(ranks(4), replace(CONFIG, steps=4, layers=2), Layout.parse("dp=2,pp=2"), RunOptions(trace=True))
    found = shares_of_time([rank.log for rank in result.ranks], [rank.seconds_without_core for rank in result.ranks])
    for time in found:
        assert tuple(time) == KINDS and sum(time.values()) == pytest.approx(1) and min(time.values()) >= 0


def test_a_step_that_overflowed_counts(ranks):
    """A loss scale so large that no step updates anything: the products were computed all the same."""
    config = replace(CONFIG, precision="fp16", loss_scale=2.0**40)
    result = run(ranks(1), config, Layout(), RunOptions(trace=True))
    assert result.ranks[0].skipped_steps == config.steps and model_flops(result) == closed_form(config)
    (time,) = shares_of_time([result.ranks[0].log], [result.ranks[0].seconds_without_core])
    assert sum(time.values()) == pytest.approx(1)
