"""Recomputation: activations during a step that keeps everything, drops attention's core, or drops whole blocks."""

from minidist.show.demos.recompute import scene
from minidist.show.demos.recompute.bug import BUG, train_redrawn
from minidist.show.demos.recompute.run import config_of, layouts_of
from minidist.show.demos.shared.memory_log import last_steps, train_logging_memory
from minidist.show.demos.shared.runs import diverges, warm_ranks
from minidist.show.player.animation import Animation


def animation(ranks: int, size: int, seed: int) -> Animation:
    """A step in each mode, on ``ranks`` ranks, of a model of width ``size``."""
    config, layouts = config_of(ranks, size, seed), layouts_of(ranks)
    with warm_ranks() as warm:
        runs = [warm.train(config, layout, train_logging_memory, trace=True) for layout in layouts]
        proofs = [warm.prove(config, run) for run in runs]
        bad = [
            warm.train(config, layout, train_redrawn, trace=True) for layout in layouts if layout.recompute != "none"
        ]
        details = [diverges(warm.first_difference(config, run, train_redrawn)) for run in bad]
    most = int(1.03 * max(last_steps(rank.log).highest() for run in runs for rank in run.ranks))
    scenes = tuple(scene.of_run(run, most, proof) for run, proof in zip(runs, proofs, strict=True))
    *others, broken = (scene.of_run(run, most, text, bug=True) for run, text in zip(bad, details, strict=True))
    title = "Recomputation: less memory for more compute"
    return Animation("recompute", title, scenes, broken, BUG, [rank.log for rank in runs[0].ranks], tuple(others))
