"""Clusters: the same step on one node, on two, behind a congested uplink, and with tensor parallelism across nodes.

Real ranks take one training step and record what they compute and send. The simulator (analysis/replay.py) replays it
on H100s with other links in between. In the broken run, each tensor-parallel group lies across the nodes.
"""

from minidist.plan.cluster.topologies import topology_of
from minidist.show.demos.cluster import lecture
from minidist.show.demos.cluster.bug import BUG, across
from minidist.show.demos.cluster.run import ACROSS, config_of, layout_of, step_on, steps_of
from minidist.show.demos.cluster.scene import Story
from minidist.show.demos.cluster.verdict import harm, verdict
from minidist.show.demos.shared.runs import warm_ranks
from minidist.show.demos.shared.widths import check_width
from minidist.show.player.animation import Animation

LEAST, MOST = 128, 512  # widths: of a smaller model the latencies are most, and a larger one takes long
RANKS = (4, 8)


def animation(ranks: int, size: int, seed: int) -> Animation:
    """A step of ``ranks`` ranks, of a model of width ``size``."""
    if ranks not in RANKS:
        raise ValueError(f"the demonstration cluster shows {' or '.join(map(str, RANKS))} ranks, not {ranks}")
    check_width(size, LEAST, MOST)
    if size % 4:
        raise ValueError(f"size, the model's width, must be a multiple of its 4 heads, got {size}")
    config, layout = config_of(size, seed), layout_of(ranks)
    with warm_ranks() as warm:
        run = warm.train(config, layout, trace=True, digests=False)
        proof = warm.prove(config, run)
    logs = [rank.log for rank in run.ranks]
    steps = steps_of(logs, layout)
    bad = {
        step.name: step_on(ACROSS, logs, step.spec, across(topology_of(step.spec), layout), layout)
        for step in steps[1:]  # in one node, all places are equal
    }
    story = Story(steps, bad)
    scenes = tuple(
        lecture.of_step(story.of_step(number, verdict(steps, number, proof)), steps, number)
        for number in range(len(steps))
    )
    *others, broken = (
        lecture.broken(story.of_bug(number, harm(step, bad[step.name], proof)), step, bad[step.name])
        for number, step in enumerate(steps[1:], 1)
    )
    title = "Clusters: one step, and the links that it needs"
    return Animation("cluster", title, scenes, broken, BUG, steps[0].replayed.logs, tuple(others))
