"""Sentences of stories against what is counted by hand, where they were wrong: odd sizes, singulars, reasons."""

from types import SimpleNamespace

import numpy as np
import pytest
from recorded import recorded

from minidist.ledger import KINDS as MEMORY
from minidist.nn.loss import IGNORED
from minidist.parallel.tools.schedule_check import bubble
from minidist.show.demos.bf16 import story as bf16
from minidist.show.demos.collectives import kinds
from minidist.show.demos.compress import story as compress
from minidist.show.demos.compress.curves import METHODS, STEPS, Curves
from minidist.show.demos.compress.run import Message
from minidist.show.demos.documents import story as documents
from minidist.show.demos.documents.run import Counted
from minidist.show.demos.exact import story as exact
from minidist.show.demos.exact.run import candidates
from minidist.show.demos.expert_parallel import story as experts
from minidist.show.demos.expert_parallel.run import Gradients, Routed, Step
from minidist.show.demos.flash import story as flash
from minidist.show.demos.flash.run import run_of
from minidist.show.demos.pipeline import story as pipeline
from minidist.show.demos.pipeline.bug import BUG, slots_with_bug
from minidist.show.demos.pipeline.kinds import KINDS, end_of
from minidist.show.demos.shared.memory_log import Change, MemoryLog
from minidist.show.demos.zero import story as zero
from minidist.show.stage.story import Story


def answer(story: Story) -> str:
    """The reason of the first question's answer."""
    return next(beat.asks.reason for beat in story.beats if beat.asks)


def test_a_step_of_each_collective_is_told_as_it_is():
    tree, ring, swap = (kind.algorithms[name] for kind, name in (
        (kinds.BROADCAST, "tree"), (kinds.ALL_GATHER, "ring"), (kinds.ALL_TO_ALL, "pairwise")
    ))  # fmt: skip
    assert tree.says(3, 5) == "GPUs that have the array pass it on: now 5 of 5 have it."
    assert [ring.says(step, 4) for step in (1, 2)] == [
        "Every GPU passes on its own chunk.", "Every GPU passes on the chunk that it got last."
    ]  # fmt: skip
    assert [swap.says(step, 4).split("GPU ")[-1] for step in (1, 2)] == ["1 place on.", "2 places on."]


def test_the_size_of_a_collective_is_that_of_its_messages():
    bytes_sent = [recorded("broadcast", 2, size).animation.find().beats[-1].facts["bytes sent"] for size in (1, 5)]
    assert bytes_sent == ["8, with 1 float32 in each chunk", "40, with 5 float32 in each chunk"]


@pytest.mark.parametrize("ranks", [2, 8])
def test_the_first_of_a_race_is_the_one_that_leaves_the_fewest_idle_or_is_not_called_so(ranks):
    for story in pipeline.plans(ranks, 8).variants:
        assert story.beats[1].says == "ZB-H1 is done first." and "fewest GPUs idle" in answer(story)
        assert story.beats[2].says.startswith("GPipe and 1F1B take ")  # both are last
    slow = {kind.name: kind.slots(ranks, ranks) for kind in KINDS}
    slow["naive"] = [[type(one)(one.action, one.start / 9, one.end / 9) for one in row] for row in slow["naive"]]
    story = pipeline.race(slow, "ms", "", "measured")
    assert story.beats[1].says == "naive is done first." and "fewest" not in answer(story)


def test_a_schedule_that_cuts_backward_in_two_has_a_colour_for_each_part():
    kinds = [one.name for one in KINDS]
    rows = [kind.slots(2, 2) for kind in KINDS]
    keys = [pipeline.plan(kind, 2, 2, "", row, end_of(row)).shown_key for kind, row in zip(KINDS, rows, strict=True)]
    assert all("backward" in key and len(key) == 3 for key in keys[:-1]) and kinds[-1] == "ZB-H1"
    assert {*keys[-1]} >= {"backward of inputs", "backward of weights"}


@pytest.mark.parametrize("kind", KINDS[1:], ids=lambda kind: kind.name)
def test_the_idle_share_of_a_broken_schedule_is_its_own(kind):
    right, broken = kind.slots(2, 2), slots_with_bug(kind, 2, 2)
    story = pipeline.plan(kind, 2, 2, "", broken, max(map(end_of, (right, broken))), BUG)
    assert bubble(broken) > bubble(right)
    assert story.beats[-1].says.endswith(f"; {bubble(broken):.0%} of the time was idle.")
    assert story.beats[-1].facts["idle"] == f"{bubble(broken):.1%}, and {bubble(right):.1%} without the bug"
    bars = [mark.now for mark in story.marks if mark.thing.startswith("micro-batch")]
    assert max(now["x"] + now["w"] for now in bars) <= 870  # the shelf begins behind them
    naive = KINDS[0].slots(2, 2)
    one = pipeline.plan(KINDS[0], 2, 2, "", naive, end_of(naive))
    assert one.beats[-1].facts["GPU 0 stores at most"] == "1 micro-batch"


def test_experts_without_a_token_have_no_wrong_gradient():
    chosen = [Routed(np.array([[1, 2]]), np.ones((1, 2)))] * 3
    one, bad = (Step(chosen, 3, 4, Gradients([], [0.0, by, 2 * by], [0, by, by]), 1.0, "") for by in (1, 3))
    story = experts.routes("routes", bad, one, "too large")
    assert story.verdict == "Wrong: the gradients of 2 of 3 experts."
    assert story.beats[-1].says == "The experts' gradients are 3 times as large as those of one process."
    assert story.beats[0].says == "Every token has chosen 2 of 3 experts; each GPU has one."


def test_one_target_is_one_target():
    tokens = np.full((2, 4), 65, np.uint8)
    story = documents.one_step(Counted(tokens, np.where([[0, 0, 0, 1], [1] * 4], 65, IGNORED), np.ones(2)))
    words = [mark.still.get("text") for mark in story.marks]
    assert "1 target" in words and "4 targets" in words


def test_tiles_that_cross_more_than_all_scores_at_once_are_explained_so():
    few, many = (
        flash.tell(run_of("no mask", length, 0), run_of("standard", length, 0)) for length in (12, 48)
    )  # fmt: skip
    assert "each row of tiles reads all keys and values again" in answer(few)
    assert "writes all scores to the slow memory" in answer(many)
    assert "Q, K, V, O and one number per row" in many.beats[-1].says  # the sums of a row, which backward needs
    standard = flash.tell(run_of("standard", 48, 0), run_of("no mask", 48, 0))
    assert standard.beats[0].says.endswith("one row at a time.")


def test_peaks_that_are_equal_are_not_called_other_and_the_lowest_is_named():
    """Width 4 on two ranks: stage 1 has the peak of the replicated run, and stage 3 is above stage 2."""
    logs = [
        MemoryLog([Change(time, dict.fromkeys(MEMORY, 0) | {"activations": peak}) for time in (1, 2)], [])
        for peak in (121_680, 121_680, 103_280, 103_520)
    ]
    story = zero.steps(logs, 121_680, "")
    assert story.beats[-1].says == "The same bits in all four. Stage 2 has the lowest peak."
    asked = story.beats[0].asks
    assert asked.choices[asked.answer] == "stage 2" and asked.reason.endswith("more than stage 3 saves.")


def test_an_addition_that_loses_no_bit_is_not_said_to_round():
    """Only the first one is chosen so that it does."""
    found = next(candidates(4, 0))
    sums = found.running(found.terms, found.orders[0]).tolist()
    exactly = [one + float(term) == after for one, term, after in zip(sums, found.terms[1:], sums[1:], strict=False)]
    assert not exactly[0] and any(exactly)
    assert exact.three_orders(found).beats[1].says.endswith("this addition rounds.")


def test_one_bit_sends_every_sign_and_loses_sizes():
    values = np.arange(1.0, 9)
    message = Message(values, np.zeros(8), np.ones(8), values - 1)
    run = SimpleNamespace(drawn=[message] * 8, moved=lambda: 8, balances=lambda: (8, 8))
    right, bad = (compress.columns("1 bit", run, run, 9, bug) for bug in ("", "lost"))
    assert answer(right) == answer(bad) == "Every number sends its sign in every step."
    assert "sent + lost = what was to be sent" in bad.beats[-1].facts and "waits" not in bad.shown_key
    assert bad.beats[-1].says == "Every sign is sent. The distance from the common size is lost."


def test_a_run_below_full_gradients_is_not_above_them():
    full = np.full((1, STEPS), 3.0)
    lower = {name: full - 0.25 for name in METHODS}
    story = compress.losses(Curves(full, lower, lower, dict.fromkeys(METHODS, 0.1)))
    assert story.beats[-1].says == "top-k 0.1% ends 0.25 below full gradients."


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_a_ball_that_jumps_without_a_master_is_not_explained_by_one_that_stays(name):
    animation = recorded("bf16").animation
    right, broken = animation.find(name), animation.find(name, broken=True)
    asked = broken.beats[0].asks
    stays = asked.choices[asked.answer] == "in none of them"
    assert stays == (name == "bf16") == asked.reason.startswith("An update of less than half a rung is rounded away")
    assert right.shown_key["float32 master"] == bf16.MASTER and "float32 master" not in broken.shown_key
    assert len(broken.shown_key) == 2
