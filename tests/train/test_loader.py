"""A loader prepares what a rank would have read: the same bits, and nothing is left of it."""

from dataclasses import replace
from pathlib import Path

import pytest
from choosing import long

from minidist.analysis.breakdown import seconds_by_kind
from minidist.comm import RankFailed
from minidist.train import loader
from minidist.train.config import TrainConfig
from minidist.train.hooks import StepHook
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank
from minidist.verify.comparison import agrees

DOCUMENTS = str(Path(__file__).parents[1] / "verify" / "documents.jsonl")
SMALL = TrainConfig(
    layers=1, heads=2, width=8, context=12, sequence_chunks=2, global_batch=6, micro_batch=1, steps=4, text=DOCUMENTS,
    packing="best-fit",
)  # fmt: skip
RANDOM = replace(SMALL, layers=2, text=None, packing="random", dropout=0.2)
RAMP = replace(SMALL, rampup_batch_size="2,2,8")
EXPERTS = replace(SMALL, experts=4, global_batch=5)  # one rank has an empty micro-batch


def train_and_see_who_is_left(world, *arguments):
    """The rank's result, and whether its loader has ended."""
    started, popen = [], loader.subprocess.Popen

    def noting(*own, **options):
        started.append(popen(*own, **options))
        return started[-1]

    loader.subprocess.Popen = noting
    try:
        result = train_rank(world, *arguments)
    finally:
        loader.subprocess.Popen = popen
    assert [process.poll() for process in started] == [0] * bool(arguments[2].loader)
    return result


@pytest.mark.parametrize(
    ("config", "layout", "ahead"),
    [
        (SMALL, "dp=2", 2),
        long(SMALL, "cp=2,cp_kind=balanced", 1), long(RANDOM, "pp=2", 1), long(RAMP, "dp=2,zero=2", 3),
        long(EXPERTS, "dp=2,ep=2", 9),
    ],
)  # fmt: skip
def test_a_loader_changes_no_bit_and_its_process_ends(ranks, config, layout, ahead):
    layout = Layout.parse(layout)
    options = RunOptions(loader=ahead, trace=True)
    found = run(ranks(layout.world_size), config, layout, options, rank_function=train_and_see_who_is_left)
    assert agrees(run(ranks(1), config, Layout()), found)


def test_what_was_prepared_for_other_micro_batches_is_thrown_away():
    """Micro-batches may be dealt out anew between two steps."""
    made = loader.Loader(replace(SMALL, steps=9), ahead=3)
    try:
        for step, numbers in enumerate(([0, 1], [0, 1], [4], [4, None], [4, None], [5], [5])):
            for one, number in zip(made.batch(step, numbers), numbers, strict=True):
                right = loader.batch_of(loader.corpus_of(SMALL), SMALL, step, number)
                assert (one.tokens == right.tokens).all() and (one.targets == right.targets).all()
                assert one.dropout_rng == right.dropout_rng and len(one.tokens) == (number is not None)
    finally:
        made.end_run()


def test_more_may_be_prepared_than_pipes_hold(ranks):
    config, options = replace(SMALL, steps=5000), RunOptions(loader=5000, stop_after=0)
    assert agrees(*(run(ranks(1), config, Layout(), replace(options, loader=ahead)) for ahead in (0, options.loader)))


def test_the_time_that_a_rank_waits_for_its_loader_shows(ranks):
    (rank,) = run(ranks(1), SMALL, Layout(), RunOptions(loader=1, trace=True)).ranks
    (steps,) = seconds_by_kind([rank.log])
    assert all(step["data"] > 0 for step in steps)


class Change(StepHook):
    """Writes another text before the second step."""

    def begin_run(self, share):
        self.text = Path(share.config.text)

    def begin_step(self, step, last):
        if step == 1:
            self.text.write_bytes(b"another text, longer or shorter" * 20)


def train_while_it_changes(world, *arguments):
    return train_rank(world, *arguments, hooks=[Change()])


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_text_that_changes_during_a_run_is_told_by_name(ranks, tmp_path, ahead):
    text = tmp_path / "text"
    text.write_bytes(bytes(range(256)) * 3)
    config = replace(SMALL, text=str(text), packing="cut")
    with pytest.raises(RankFailed, match=f"{text} has changed while it was read"):
        run(ranks(1), config, Layout(), RunOptions(loader=ahead), rank_function=train_while_it_changes)
