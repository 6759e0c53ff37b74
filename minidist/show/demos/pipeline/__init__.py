"""Pipelines: five schedules of the same work, each as planned and as it ran, and their bubbles.

The plan is in slots: a forward takes one, a backward two, and messages none. The run is the last step of a real one, in
this machine's time. In the broken run, a rank swaps the activations of two micro-batches.
"""

from math import ceil

from minidist.show.demos.pipeline import scene
from minidist.show.demos.pipeline.bug import BUG, MISTAKEN, activations_swapped
from minidist.show.demos.pipeline.kinds import BROKEN, KINDS
from minidist.show.demos.pipeline.run import MOST_MICRO_BATCHES, config_of
from minidist.show.demos.shared.runs import diverges, fastest, warm_ranks
from minidist.show.player.animation import Animation


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Run a step in each schedule, with ``size`` micro-batches, rounded up to a multiple of the ranks."""
    micro_batches = ceil(size / ranks) * ranks  # interleaved 1F1B needs a multiple; the others take the same number
    if micro_batches > MOST_MICRO_BATCHES:
        raise ValueError(
            f"size, the micro-batches of a step, must be at most {MOST_MICRO_BATCHES // ranks * ranks} with {ranks} "
            f"ranks (a multiple of them, with cells wide enough to read), got {size}"
        )
    config = config_of(ranks, micro_batches, seed)
    with warm_ranks() as warm:
        proofs, runs = {}, {}
        for kind in KINDS:
            runs[kind.name] = fastest(warm, config, kind.layout(ranks), digests=False)
            proofs[kind.name] = warm.prove(config, runs[kind.name])
        bad = warm.train(config, BROKEN.layout(ranks), activations_swapped, trace=True)
        verdict = diverges(warm.first_difference(config, bad, activations_swapped))
    rounded = "" if micro_batches == size else f", {size} rounded up to a multiple of {ranks} ranks"
    scenes = tuple(scene.of_run(kind, runs[kind.name], proofs[kind.name], rounded) for kind in KINDS)
    broken = scene.of_run(BROKEN, bad, verdict, rounded, MISTAKEN)
    title = "Pipelines: layers on different ranks, one micro-batch behind the other"
    return Animation("pp", title, scenes, broken, BUG, [rank.log for rank in runs[KINDS[0].name].ranks])
