"""Expert parallelism: tokens travel to the ranks that have their experts, and come home.

A real training step records which experts each token chose, and the experts' gradients. Two longer runs show the load
of the experts without and with a balance loss. In the broken run, an expert's gradient is divided by the number of its
own rank's micro-batches.
"""

from minidist.show.demos.expert_parallel import balance, balance_scene, lecture, scene
from minidist.show.demos.expert_parallel.bug import BUG, train_too_large
from minidist.show.demos.expert_parallel.run import config_of, layout_of, step_of, train_watched
from minidist.show.demos.shared.runs import diverges, warm_ranks
from minidist.show.player.animation import Animation
from minidist.verify.comparison import ONE_PROCESS

MOST = 4  # tokens on a rank


def animation(ranks: int, size: int, seed: int) -> Animation:
    """A step on so many ranks with ``size`` tokens on each, and a longer run without and with a balance loss."""
    config, layout = config_of(ranks, size, seed), layout_of(ranks)
    with warm_ranks() as warm:
        reference = step_of(warm.train(config, ONE_PROCESS, train_watched, trace=True))
        run = warm.train(config, layout, train_watched, trace=True)
        proof = warm.prove(config, run)
        bad = warm.train(config, layout, train_too_large, trace=True)
        proof_of_harm = diverges(warm.first_difference(config, bad, train_too_large))
        loads, wrong_loads = balance.loads_of(warm, ranks, seed)
    step, wrong = step_of(run), step_of(bad)
    scenes = (
        lecture.routes(scene.of_step(step, reference, scene.verdict(step, proof)), step),
        lecture.balance(balance_scene.scene_of(loads), next(iter(loads.values()))),
    )
    broken = scene.of_step(wrong, reference, scene.harm(wrong, reference, proof_of_harm), broken=True)
    broken = lecture.broken(broken, ranks)
    unbalanced = lecture.broken_balance(balance_scene.scene_of(wrong_loads, loads), ranks)
    title = "Expert parallelism: tokens travel to their experts and come home"
    return Animation("ep", title, scenes, broken, BUG, [rank.log for rank in run.ranks], (unbalanced,))
