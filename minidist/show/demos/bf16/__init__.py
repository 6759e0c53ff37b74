"""One weight in a real training run, bit by bit: its float32 master, and the 16 bits that all ranks compute with.

The weight is a gain of the first block's norm. Gains begin at 1, so the distance to the next 16-bit number is known.
ZeRO's stage 1 trains it on rank 0 and sends it to the other ranks in 16 bits.
"""

from dataclasses import replace

from minidist.show.demos.bf16 import scene
from minidist.show.demos.bf16.bug import BUG, train_without_masters
from minidist.show.demos.bf16.run import STEPS, Weight, config_of, most_changed, train_recording, weight_of
from minidist.show.demos.shared.runs import diverges, warm_ranks
from minidist.show.player.animation import Animation
from minidist.train.layout import Layout


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Train a model of width ``size`` on ``ranks`` ranks in bf16 and in fp16, with master weights and without."""
    config, layout = config_of(ranks, size, seed), Layout(dp=ranks, zero=1)
    fp16 = replace(config, precision="fp16", loss_scale=1024.0)
    with warm_ranks() as warm:
        right, finer = (warm.train(one, layout, train_recording, trace=True) for one in (config, fp16))
        proofs = warm.prove(config, right), warm.prove(fp16, finer)
        bad = [warm.train(one, layout, train_without_masters, trace=True) for one in (config, fp16)]
        details = [
            diverges(warm.first_difference(one, run, train_without_masters))
            for one, run in zip((config, fp16), bad, strict=True)
        ]
    index, names = most_changed(right), ("bf16", "fp16")
    weights = [weight_of(run, index) for run in (right, finer)]
    lost_weights = [weight_of(run, index) for run in bad]
    scenes = tuple(scene.of_weight(*each, index, ranks, proof)
                   for *each, proof in zip(names, weights, proofs, strict=True))  # fmt: skip
    broken, other = (
        scene.of_weight(f"broken {name}", lost, index, ranks, _ends(lost, weight), weight, text)
        for name, lost, weight, text in zip(names, lost_weights, weights, details, strict=True)
    )
    title = "Mixed precision: a master weight, and the 16 bits that are stored and sent"
    return Animation("bf16", title, scenes, broken, BUG, [rank.log for rank in right.ranks], (other,))


def _ends(lost: Weight, right: Weight) -> str:
    """Where a weight is in the end without a master."""
    return f"This weight ends at {lost.number(STEPS):g} instead of {right.number(STEPS):g}."
