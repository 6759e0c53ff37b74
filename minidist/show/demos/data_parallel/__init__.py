"""Data parallelism: which all-reduces are hidden by a rank's backward, on simulated GPUs and as measured here.

Three ways to sum the gradients; then the same three with one bucket that is never sent.
"""

from dataclasses import replace

from minidist.nn.gpt import GPT
from minidist.parallel.data import fill_buckets
from minidist.show.demos.data_parallel import story
from minidist.show.demos.data_parallel.run import (
    BUCKETS,
    DROPPED_BUCKET,
    STEPS,
    Step,
    config_of,
    distances,
    drops_a_bucket,
    layouts_of,
    train_broken_keeping_weights,
    train_keeping_weights,
)
from minidist.show.demos.shared.on_gpus import GIGABYTES, LINK, replays
from minidist.show.demos.shared.runs import fastest, on_cores, warm_ranks
from minidist.show.stage.animation import Animation
from minidist.show.stage.story import with_dial
from minidist.verify.comparison import ONE_PROCESS


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Train a model of width ``size`` on ``ranks`` ranks, in three ways, and with one bucket dropped.

    Raises:
        ValueError: if the width shows nothing or takes too long.
    """
    config = config_of(ranks, size, seed)
    parameters = GPT(config.model).parameters()[::-1]  # in the order of backward
    elements = sum(parameter.size for parameter in parameters)
    layouts, longer = layouts_of(ranks, elements), replace(config, steps=STEPS)
    dropped = fill_buckets(parameters, elements / BUCKETS)[DROPPED_BUCKET - 1]
    bug = f"bucket {DROPPED_BUCKET} is never sent ({dropped[0].name} and {len(dropped) - 1} more)"
    with warm_ranks() as warm:
        one = warm.train(longer, ONE_PROCESS, train_keeping_weights, digests=False)
        right = {sync: fastest(warm, config, layout) for sync, layout in layouts.items()}
        broken = {sync: warm.train(config, layout, drops_a_bucket, trace=True) for sync, layout in layouts.items()}
        for run in right.values():
            proof = warm.prove(config, run)
        found = warm.harm(config, broken["overlapped"], drops_a_bucket)
        drifts = [
            distances(warm.train(longer, layouts["overlapped"], train, digests=False), one)
            for train in (train_keeping_weights, train_broken_keeping_weights)
        ]
    ends = {tuple(rank.fingerprint for rank in run.ranks) for run in broken.values()}
    if len(ends) != 1:
        raise RuntimeError("without the sum of a bucket, the ways to sum differ in bits: this is a bug in minidist")
    models, sides = len(set(*ends)), []
    for runs in (right, broken):
        each = zip(*(map(Step.of, replays(run)) for run in runs.values()), strict=True)
        sides.append([dict(zip(runs, steps, strict=True)) for steps in each])
    axes = [max(step.end for side in both for step in side.values()) for both in zip(*sides, strict=True)]
    told = [f"Times for {ranks} GPUs on links of {speed:g} GB/s." for speed in GIGABYTES]
    told.append(f"Times of {ranks} ranks on {on_cores()} of this machine.")
    stories = []
    for steps, details, what in ((sides[0], proof, ""), (sides[1], found, bug)):
        names = ["race"] * len(GIGABYTES) + ["measured"]
        *variants, here = [
            story.race(*one, what, details, models) for one in zip(steps, axes, told, names, strict=True)
        ]
        stories += [with_dial(LINK, variants), here]
    most = 1.05 * float(drifts[1].max())
    stories += [story.weights(drifts[0], most, details=proof), story.weights(drifts[1], most, bug, found)]
    logs = [rank.log for rank in right["overlapped"].ranks]
    return Animation("dp", "Data parallelism: all-reduces under backward", tuple(stories), logs)
