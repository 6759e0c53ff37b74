"""Pipelines: five schedules of the same work, as planned, as GPUs would run them, and as measured.

The plan is in slots: a forward takes one, a backward two, and messages none. All schedules share its axis. Beside its
lane stands what a rank stores. The runs are the last step of real ones: once on the cluster's clock, and once in this
machine's time. In the broken runs, a rank swaps the activations of two micro-batches; the
naive schedule deadlocks then.
"""

from math import ceil

from minidist.show.demos.pipeline import compared, compared_bug, gpus, scene
from minidist.show.demos.pipeline.bug import BUG, activations_swapped, deadlock
from minidist.show.demos.pipeline.kinds import BROKEN, KINDS, NAIVE, SWAPPABLE
from minidist.show.demos.pipeline.run import MOST_MICRO_BATCHES, config_of
from minidist.show.demos.shared.runs import diverges, fastest, warm_ranks
from minidist.show.player.animation import Animation

RANKS = 4  # by default, on few cores too: the plan is what is shown first


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Run a step in each schedule, with ``size`` micro-batches, rounded up to a multiple of the ranks."""
    micro_batches = ceil(size / ranks) * ranks  # interleaved 1F1B needs a multiple; the others take the same number
    if micro_batches > MOST_MICRO_BATCHES:
        raise ValueError(
            f"size, the micro-batches of a step, must be at most {MOST_MICRO_BATCHES // ranks * ranks} with {ranks} "
            f"ranks (a multiple of them, with cells wide enough to read), got {size}"
        )
    config = config_of(ranks, micro_batches, seed)
    rounded = "" if micro_batches == size else f", {size} rounded up to a multiple of {ranks} ranks"
    with warm_ranks() as warm:
        proofs, runs, broken = {}, {}, {}
        for kind in KINDS:
            runs[kind.name] = fastest(warm, config, kind.layout(ranks), digests=False)
            proofs[kind.name] = warm.prove(config, runs[kind.name])
        for kind in SWAPPABLE:
            bad = warm.train(config, kind.layout(ranks), activations_swapped)
            losses = warm.reference(config).losses[0], bad.losses[0]
            difference = diverges(warm.first_difference(config, bad, activations_swapped))
            broken[kind.name] = scene.with_bug(kind, ranks, micro_batches, losses, difference)
        waits = deadlock(warm, config, NAIVE.layout(ranks))
        broken[NAIVE.name] = scene.deadlocked(NAIVE, ranks, micro_batches, waits)
    clock = BROKEN.length(ranks, micro_batches)
    scenes = (
        *(scene.of_plan(kind, ranks, micro_batches, proofs[kind.name], rounded) for kind in KINDS),
        compared.as_planned(ranks, micro_batches),
        gpus.as_gpus_would(runs, clock),
        compared.as_measured(runs, clock),
    )
    title = "Pipelines: layers on different ranks, one micro-batch behind the other"
    logs = [rank.log for rank in runs[NAIVE.name].ranks]
    main = broken.pop(BROKEN.name)
    overview = compared_bug.with_bug(scenes[len(KINDS)], ranks, micro_batches)
    return Animation("pp", title, scenes, main, BUG, logs, (*broken.values(), overview))
