"""Data parallelism: how much of the all-reduces a rank's own backward hides, and what a dropped one causes."""

from functools import partial

from minidist.analysis.steps import step_length, traced_step
from minidist.nn.gpt import GPT
from minidist.parallel.data import fill_buckets
from minidist.show.demos.data_parallel import scene
from minidist.show.demos.data_parallel.bug import DROPPED_BUCKET, drops_a_bucket
from minidist.show.demos.data_parallel.run import BUCKETS, config_of, layouts_of
from minidist.show.demos.shared.runs import diverges, fastest, warm_ranks
from minidist.show.player.animation import Animation


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Train a model of width ``size`` on so many ranks, in three ways and with one bucket dropped.

    Raises:
        ValueError: for a width that shows nothing or takes too long.
    """
    config = config_of(ranks, size, seed)
    parameters = GPT(config.model).parameters()[::-1]  # in the order of backward
    elements = sum(parameter.size for parameter in parameters)
    layouts = layouts_of(ranks, elements)
    layout = layouts["overlapped"]
    dropped = fill_buckets(parameters, elements / BUCKETS)[DROPPED_BUCKET - 1]
    with warm_ranks() as warm:
        runs = {name: fastest(warm, config, layout) for name, layout in layouts.items()}
        proofs = {name: warm.prove(config, run) for name, run in runs.items()}
        broken = fastest(warm, config, layout, drops_a_bucket)
        verdict = diverges(warm.first_difference(config, broken, drops_a_bucket))
    longest = max(step_length(traced_step([rank.log for rank in run.ranks])) for run in (*runs.values(), broken))
    of_run = partial(scene.of_run, elements=elements, longest=longest)
    others = f" and {len(dropped) - 1} more" if len(dropped) > 1 else ""
    return Animation(
        "dp",
        "Data parallelism: all-reduces under backward",
        tuple(of_run(name, run, proof=proofs[name]) for name, run in runs.items()),
        of_run("broken", broken, proof=verdict),
        f"bucket {DROPPED_BUCKET} is never sent ({dropped[0].name}{others})",
        [rank.log for rank in runs["overlapped"].ranks],
    )
