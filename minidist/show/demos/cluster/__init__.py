"""Clusters: the same step on two nodes, behind a congested uplink, on one, and with tensor parallelism across nodes.

Real ranks take one training step and record what they compute and send. The simulator (analysis/replay.py) replays it
on H100s with other links in between. In the broken run, each tensor-parallel group lies across the nodes.
"""

from minidist.plan.cluster.topologies import topology_of
from minidist.show.demos.cluster.run import BUG, across, config_of, layout_of, step_on, steps_of
from minidist.show.demos.cluster.story import tell
from minidist.show.demos.shared.runs import check_width, warm_ranks
from minidist.show.stage.animation import Animation

LEAST, MOST = 128, 512  # widths: latencies dominate a smaller model, and a larger one takes long
RANKS = (4, 8)


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Train one step of a model of width ``size`` on ``ranks`` ranks, and replay it on each cluster."""
    if ranks not in RANKS:
        raise ValueError(f"the demonstration cluster shows {' or '.join(map(str, RANKS))} ranks, not {ranks}")
    check_width(size, LEAST, MOST)
    if size % 4:
        raise ValueError(f"size, the model's width, must be a multiple of its 4 heads, got {size}")
    config, layout = config_of(size, seed), layout_of(ranks)
    with warm_ranks() as warm:
        run, proof = warm.train_proved(config, layout, digests=False)
    logs = [rank.log for rank in run.ranks]
    steps = steps_of(logs, layout)
    bad = [step_on(step.name, logs, step.spec, across(topology_of(step.spec), layout), layout) for step in steps[1:]]
    for right, wrong in zip(steps[1:], bad, strict=True):  # within one node, placement does not matter
        if wrong.seconds <= right.seconds:
            raise RuntimeError("with tensor parallelism across nodes the step is not longer: choose another size")
    longest = {step.name: step.seconds for step in (*steps, *bad)}  # a scene and its broken run share a clock
    stories = [tell(steps, step, longest[step.name], details=proof) for step in (*steps[1:], steps[0])]
    stories += [tell(steps, step, longest[step.name], BUG, proof) for step in bad]
    return Animation(
        "cluster", "Clusters: one step, and the links that it needs", tuple(stories), steps[0].replayed.logs
    )
