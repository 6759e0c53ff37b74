"""One weight in a real training run, bit by bit: its float32 master, and the 16 bits that all ranks compute with.

The weight is a gain of the first block's norm. Gains begin at 1, so the distance to the next 16-bit number is known.
ZeRO's stage 1 trains it on rank 0 and sends it to the other ranks in 16 bits.
"""

from dataclasses import replace

from minidist.show.demos.bf16.run import BUG, config_of, most_changed, train_recording, train_without_masters, weight_of
from minidist.show.demos.bf16.story import ladder
from minidist.show.demos.shared.runs import warm_ranks
from minidist.show.stage.animation import Animation
from minidist.train.layout import Layout


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Train a model of width ``size`` on ``ranks`` ranks in bf16 and in fp16, with master weights and without."""
    config, layout = config_of(ranks, size, seed), Layout(dp=ranks, zero=1)
    stories, index, logs = [], None, []
    with warm_ranks() as warm:
        for name, one in (("bf16", config), ("fp16", replace(config, precision="fp16", loss_scale=1024.0))):
            run, proof = warm.train_proved(one, layout, train_recording)
            bad, harm = warm.train_broken(one, layout, train_without_masters)
            index = most_changed(run) if index is None else index
            right, lost = weight_of(run, index), weight_of(bad, index)
            stories += [ladder(name, right, lost, "", proof), ladder(name, right, lost, BUG, harm)]
            logs = logs or [rank.log for rank in run.ranks]
    title = "Mixed precision: a master weight, and the 16 bits that are stored and sent"
    return Animation("bf16", title, tuple(stories), logs)
