"""Pipelines: five schedules of the same work, as planned and as measured, and what each rank stores.

The plan is in slots: a forward takes one, a backward two, and messages none. In the broken runs a rank swaps the
activations of two micro-batches; with this bug the naive schedule deadlocks.
"""

from math import ceil

from minidist.analysis.steps import slots_of
from minidist.show.demos.pipeline import story
from minidist.show.demos.pipeline.bug import BUG, activations_swapped, deadlock, slots_with_bug
from minidist.show.demos.pipeline.kinds import KINDS, NAIVE, config_of, end_of
from minidist.show.demos.shared.runs import fastest, on_cores, warm_ranks
from minidist.show.stage.animation import Animation

SAME = "Every bit matches one process."
RANKS = 4  # default, even on few cores: the plan is shown first
MOST_MICRO_BATCHES = 32


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Run a step in each schedule, with ``size`` micro-batches, rounded up to a multiple of the ranks."""
    micro_batches = ceil(size / ranks) * ranks  # interleaved 1F1B needs a multiple; the others take the same number
    if micro_batches > MOST_MICRO_BATCHES:
        most = MOST_MICRO_BATCHES // ranks * ranks
        raise ValueError(f"size, the micro-batches of a step, must be at most {most} with {ranks} ranks, got {size}")
    config = config_of(ranks, micro_batches, seed)
    stories, runs = [story.plans(ranks, micro_batches)], {}
    with warm_ranks() as warm:
        for kind in KINDS:
            runs[kind.name] = fastest(warm, config, kind.layout(ranks), digests=False)
            rows = kind.slots(ranks, micro_batches)
            proof = warm.prove(config, runs[kind.name])
            bad = slots_with_bug(kind, ranks, micro_batches)
            longest = max(end_of(rows), end_of(bad))
            stories.append(story.plan(kind, ranks, micro_batches, SAME, rows, longest, details=proof))
            if kind is NAIVE:
                verdict, details = "Deadlock.", deadlock(warm, config, kind.layout(ranks))
            else:
                wrong, details = warm.train_broken(config, kind.layout(ranks), activations_swapped)
                right = warm.reference(config).losses[0]
                verdict = f"The loss is {wrong.losses[0]:.6f}; {right:.6f} is right."
            stories.append(story.plan(kind, ranks, micro_batches, verdict, bad, longest, BUG, details))
    measured = {name: slots_of([rank.log for rank in run.ranks]) for name, run in runs.items()}
    milliseconds = {
        name: [[type(slot)(slot.action, 1e3 * slot.start, 1e3 * slot.end) for slot in row] for row in rows]
        for name, rows in measured.items()
    }
    told = f"Measured here: {ranks} processes on {on_cores()}."
    stories.append(story.race(milliseconds, "ms", told, "measured"))
    title = "Pipelines: layers on different GPUs, one micro-batch after another"
    return Animation("pp", title, tuple(stories), [rank.log for rank in runs[NAIVE.name].ranks])
