"""Context parallelism: keys and values go round a ring of ranks, and each rank computes the tiles that it needs.

A real training step of one layer records which tile pairs each rank computes in each hop. Contiguous chunks leave early
ranks idle; zigzag gives each rank an early and a late chunk. Time is counted in pairs of zigzag's chunks, so that
this machine's timing does not matter. In the broken run, backward uses stale keys and values.
"""

from minidist.show.demos.context_parallel import lecture, scene
from minidist.show.demos.context_parallel.bug import BUG, train_stale
from minidist.show.demos.context_parallel.run import BACKWARD, CHUNKS, FORWARD, config_of, passes_of, train_watched
from minidist.show.demos.shared.runs import diverges, warm_ranks
from minidist.show.player.animation import Animation
from minidist.train.layout import Layout

MOST = 64  # tokens in a chunk


def animation(ranks: int, size: int, seed: int) -> Animation:
    """A step with both ways to place the chunks, on so many ranks, with ``size`` tokens in each chunk of zigzag."""
    configs = {kind: config_of(kind, ranks, size, seed) for kind in CHUNKS}
    with warm_ranks() as warm:
        runs = {
            kind: warm.train(config, Layout(cp=ranks, cp_kind=kind), train_watched, trace=True)
            for kind, config in configs.items()
        }
        proofs = {kind: warm.prove(configs[kind], run) for kind, run in runs.items()}
        stale = warm.train(configs["ring"], Layout(cp=ranks), train_stale, trace=True)
        proof_of_harm = diverges(warm.first_difference(configs["ring"], stale, train_stale))
    passes = {kind: passes_of(run) for kind, run in runs.items()}
    scenes = [
        lecture.of_kind(
            kind,
            scene.of_run(kind, passes, configs[kind].context, scene.verdict(passes[kind][FORWARD], proof)),
            passes[kind][FORWARD],
        )
        for kind, proof in proofs.items()
    ]
    bad = passes | {"ring": passes_of(stale)}
    harm = scene.harm(bad["ring"][BACKWARD], passes["ring"][BACKWARD], proof_of_harm)
    broken = lecture.broken(scene.of_run("ring", bad, configs["ring"].context, harm, passes["ring"]))
    title = "Context parallelism: keys and values go round a ring of ranks"
    return Animation("cp", title, tuple(scenes), broken, BUG, [rank.log for rank in runs["ring"].ranks])
