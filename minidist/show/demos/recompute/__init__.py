"""Recomputation: activations during a step that keeps everything, drops attention's core, or drops whole blocks."""

from minidist.show.demos.recompute.bug import BUG, train_redrawn
from minidist.show.demos.recompute.run import config_of, layouts_of
from minidist.show.demos.recompute.story import mountains
from minidist.show.demos.shared.memory_log import train_logging_memory
from minidist.show.demos.shared.runs import diverges, warm_ranks
from minidist.show.stage.animation import Animation


def animation(ranks: int, size: int, seed: int) -> Animation:
    """A step in each mode, on ``ranks`` ranks, of a model of width ``size``."""
    config, layouts = config_of(ranks, size, seed), {layout.recompute: layout for layout in layouts_of(ranks)}
    with warm_ranks() as warm:
        runs = {mode: warm.train(config, layout, train_logging_memory, trace=True) for mode, layout in layouts.items()}
        proofs = [warm.prove(config, run) for run in runs.values()]
        bad = {mode: warm.train(config, layouts[mode], train_redrawn, trace=True) for mode in layouts if mode != "none"}
        found = [diverges(warm.first_difference(config, run, train_redrawn)) for run in bad.values()]
    stories = mountains(runs, proofs[0]), mountains({"none": runs["none"], **bad}, found[-1], BUG)
    logs = [rank.log for rank in runs["none"].ranks]
    return Animation("recompute", "Recomputation: less memory for more compute", stories, logs)
