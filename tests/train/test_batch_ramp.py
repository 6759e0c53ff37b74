"""A batch that grows: the sizes of Megatron-LM's rule, the same bits in every layout, and what cannot be."""

from dataclasses import replace

import pytest

from minidist.cli import main as cli
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.ramp import Ramp, read_ramp
from minidist.train.trainer import run
from minidist.verify.comparison import agrees
from minidist.verify.interruption import Interruption, run_interrupted

CONFIG = TrainConfig(
    layers=4, heads=2, width=8, context=8, global_batch=8, micro_batch=1, steps=6, warmup=1, rampup_batch_size="4,2,20"
)


@pytest.mark.parametrize(
    ("text", "full", "micro_batch"),
    [
        ("12,12,120", 48, 2),
        ("1,1,7", 9, 1),
        ("1,1,2", 9, 1),
        ("3,3,0", 6, 3),
        ("256,128,50000", 1024, 4),
        ("2,6,100", 8, 2),
    ],
)
def test_the_batch_grows_as_megatron_s(text, full, micro_batch):
    """Megatron-LM's rule, from the samples consumed: start + int(consumed / (samples / increments)) increment."""
    start, increment, samples = map(int, text.split(","))
    ramp, consumed = read_ramp(text, full, micro_batch), 0
    for step in range(400):
        each = samples / ((full - start) / increment)
        size = full if consumed >= samples else start + int(consumed / each) * increment
        assert ramp.batch_at(step) == size <= full, step
        assert size in ramp.sizes
        consumed += size
    assert size == full


def test_tokens_follow_the_ramp():
    assert [CONFIG.batch_at(step) for step in range(6)] == [4, 4, 4, 6, 6, 8]
    assert CONFIG.tokens_of(range(6)) == 32 * 8 and CONFIG.tokens_of(range(5, 6)) == 8 * 8
    assert replace(CONFIG, rampup_batch_size="").tokens_of(range(6)) == 6 * 8 * 8


LAYOUTS = (
    "dp=2", "dp=3,zero=2", "dp=4,zero=3,prefetch=1", "tp=2,dp=2,zero=1", "pp=2,schedule=gpipe",
    "pp=2,virtual=2", "pp=3,schedule=zb-h1", "dp=2,pp=2,zero=3",
)  # fmt: skip


@pytest.mark.parametrize(
    "text", [*LAYOUTS[1:7:4], *(pytest.param(t, marks=pytest.mark.long) for t in (*LAYOUTS[::2], LAYOUTS[3]))]
)
def test_every_layout_has_the_bits_of_one_process(ranks, text):
    """Numbers of micro-batches that change, with ranks that do not divide them, and schedules made anew."""
    layout = Layout.parse(text)
    assert agrees(run(ranks(1), CONFIG, Layout()), run(ranks(layout.world_size), CONFIG, layout))


def test_experts_meet_in_every_micro_batch(ranks):
    config = replace(CONFIG, layers=1, experts=4, expert_hidden=8, steps=4)
    assert agrees(run(ranks(1), config, Layout()), run(ranks(4), config, Layout(dp=4, ep=2)))


@pytest.mark.long
def test_a_run_goes_on_in_the_middle_of_the_ramp():
    interruptions = [Interruption(Layout(dp=3), Layout(pp=2), 2), Interruption(Layout(pp=2), Layout(dp=2, zero=2), 4)]
    results = list(run_interrupted(interruptions, CONFIG, lambda _: None))
    assert len(results) == 3 and all(same for _, _, same in results)


def test_it_is_another_run_than_without(ranks):
    plain = run(ranks(1), replace(CONFIG, rampup_batch_size=""), Layout())
    assert plain.fingerprint != run(ranks(1), CONFIG, Layout()).fingerprint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4,2", "write START,INCREMENT,SAMPLES in whole numbers, such as 16,8,480"),
        ("4,x,3", "write START,INCREMENT,SAMPLES"),
        ("3,2,20", "the start must be a multiple of micro_batch 2: choose 4"),
        ("4,1,20", "the increment must be a multiple of micro_batch 2: choose 2"),
        ("0,2,20", "the start must be a multiple of micro_batch 2: choose 2"),
        ("24,2,20", "grows to global_batch 24, and must start below it"),
        (
            "4,6,20",
            "from 4 to global_batch 24 are 20 samples, which steps of 6 do not divide: choose an increment of 4",
        ),
        ("4,2,-1", "must not be negative"),
    ],
)
def test_ramps_that_cannot_be(text, message, capsys):
    assert cli.main(["train", "--global-batch", "24", f"--rampup-batch-size={text}"]) == 2
    assert message in capsys.readouterr().err


def test_layouts_must_fit_every_size(capsys):
    ramp = ["--global-batch", "24", "--rampup-batch-size", "4,4,20"]
    assert cli.main(["train", *ramp, "--dp", "5"]) == 2
    assert "rampup_batch_size 4,4,20 has steps of 4: dp=5 needs at least 5 micro-batches" in capsys.readouterr().err
    assert cli.main(["train", *ramp, "--dp", "2", "--rebalance"]) == 2
    assert "leave one of the two out" in capsys.readouterr().err


def test_a_full_batch_ends_the_ramp():
    assert Ramp(2, 2, 0, 8).batch_at(0) == 8  # over no samples


def test_a_ramp_over_billions_of_samples_is_found_at_once():
    ramp = Ramp(2, 2, 3 * 10**9, 8)  # 10^9 samples at each of 2, 4 and 6
    steps = [0, 5 * 10**8 - 1, 5 * 10**8, 75 * 10**7 - 1, 75 * 10**7, 10**12]
    assert [ramp.batch_at(step) for step in steps] == [2, 2, 4, 4, 6, 8]
