"""One weight in a real training run, bit by bit: its float32 master, and the 16 bits that all ranks compute with.

The weight is a gain of the first block's norm. Gains begin at 1, so the distance to the next 16-bit number is known.
ZeRO's stage 1 trains it on rank 0 and sends it to the other ranks in 16 bits.
"""

from dataclasses import replace

from minidist.show.demos.bf16 import scene
from minidist.show.demos.bf16.bug import BUG, train_without_masters
from minidist.show.demos.bf16.run import STEPS, config_of, most_changed, train_recording, weight_of
from minidist.show.demos.shared.runs import diverges, warm_ranks
from minidist.show.player.animation import Animation
from minidist.train.layout import Layout


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Train a model of width ``size`` on so many ranks in bf16, in fp16, and in bf16 without master weights."""
    config, layout = config_of(ranks, size, seed), Layout(dp=ranks, zero=1)
    fp16 = replace(config, precision="fp16", loss_scale=1024.0)
    with warm_ranks() as warm:
        right, finer = (warm.train(one, layout, train_recording, trace=True) for one in (config, fp16))
        proofs = warm.prove(config, right), warm.prove(fp16, finer)
        bad = warm.train(config, layout, train_without_masters, trace=True)
        verdict = diverges(warm.first_difference(config, bad, train_without_masters))
    index = most_changed(right)
    weight, fine, lost = (weight_of(run, index) for run in (right, finer, bad))
    ends = f"This weight ends at {lost.number(STEPS):g} instead of {weight.number(STEPS):g}."
    scenes = (
        scene.of_weight("bf16", weight, index, ranks, proofs[0]),
        scene.of_weight("fp16", fine, index, ranks, proofs[1]),
    )
    broken = scene.of_weight("broken bf16", lost, index, ranks, ends, weight, verdict)
    title = "Mixed precision: a master weight, and the 16 bits that are stored and sent"
    return Animation("bf16", title, scenes, broken, BUG, [rank.log for rank in right.ranks])
