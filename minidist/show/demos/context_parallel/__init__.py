"""Context parallelism: keys and values go round a ring of ranks, and each rank computes the tiles that it needs.

A real training step of one layer records which tile pairs each rank computes in each hop. Contiguous chunks leave early
ranks idle; zigzag gives each rank an early and a late chunk. Time is counted in pairs of zigzag's chunks, so that
this machine's timing does not matter. A third run exchanges heads for tokens instead (Ulysses). In the broken runs, a
rank computes with its own keys and values; in one of them, it does so in backward only.
"""

import numpy as np

from minidist.show.demos.context_parallel import heads_run, story
from minidist.show.demos.context_parallel.run import (
    BACKWARD,
    BUG,
    CHUNKS,
    FORWARD,
    Pass,
    config_of,
    nbytes_of,
    passes_of,
    train_stale,
    train_stale_backward,
    train_watched,
)
from minidist.show.demos.shared.runs import WarmRanks, warm_ranks
from minidist.show.stage.animation import Animation
from minidist.show.stage.story import Story
from minidist.train.layout import Layout

MOST = 64  # tokens in a chunk


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Train a step with each way to place the chunks, on ``ranks`` ranks, with ``size`` tokens in a chunk of zigzag."""
    configs = {kind: config_of(kind, ranks, size, seed) for kind in CHUNKS}
    with warm_ranks() as warm:
        right, wrong = {}, {}
        for kind, config in configs.items():
            layout = Layout(cp=ranks, cp_kind=kind)
            right[kind] = warm.train_proved(config, layout, train_watched)
            wrong[kind] = warm.train_broken(config, layout, train_stale)
        stale, harm = warm.train_broken(configs["ring"], Layout(cp=ranks), train_stale_backward)
        by_heads = _by_heads(warm, ranks, size, seed)
    passes = {kind: passes_of(run) for kind, (run, _) in right.items()}
    longest = max(both[FORWARD].end(-1) for both in passes.values())
    stories = []
    for kind, both in passes.items():
        stories.append(story.ring(kind, both[FORWARD], longest, details=right[kind][1]))
        bad, found = wrong[kind]
        losses = f"The loss of the step is {bad.losses[0]:.6f} instead of {right[kind][0].losses[0]:.6f}. "
        stories.append(story.ring(kind, passes_of(bad)[FORWARD], longest, BUG, losses + found))
    good, bad = passes["ring"][BACKWARD], passes_of(stale)[BACKWARD]
    stories.append(story.backward(good, good, set(), details=right["ring"][1]))
    stories.append(story.backward(bad, good, wrong_visits(bad, good), f"in backward, {BUG}", harm))
    title = "Context parallelism: keys and values go round a ring of GPUs"
    return Animation("cp", title, (*stories, *by_heads), [rank.log for rank in right["ring"][0].ranks])


def wrong_visits(run: Pass, right: Pass) -> set[tuple[int, int]]:
    """Return each (hop, rank) whose terms for the gradients differ from those of the run without the bug."""
    return {
        (hop, rank)
        for hop, (visits, others) in enumerate(zip(run.visits, right.visits, strict=True))
        for rank, (visit, other) in enumerate(zip(visits, others, strict=True))
        if not np.array_equal(visit.gradients, other.gradients)
    }


def _by_heads(warm: WarmRanks, ranks: int, size: int, seed: int) -> tuple[Story, Story]:
    """Return the story of Ulysses, and the same with the bug."""
    config, layout = heads_run.config_of(ranks, size, seed), Layout(cp=ranks, cp_kind="ulysses")
    run, proof = warm.train_proved(config, layout, heads_run.train_heads)
    bad, harm = warm.train_broken(config, layout, heads_run.train_stale_heads)
    right, wrong = heads_run.exchanges_of(run), heads_run.exchanges_of(bad)
    ring_bytes = nbytes_of(config, ranks, FORWARD)
    return story.ulysses(right, right, ring_bytes, "", proof), story.ulysses(wrong, right, ring_bytes, BUG, harm)
