"""Recomputation: activations during a step that keeps everything, drops attention's core, or drops whole blocks."""

from minidist.nn.recompute import MODES
from minidist.show.demos.recompute.run import BUG, config_of, train_redrawn
from minidist.show.demos.recompute.story import mountains
from minidist.show.demos.shared.memory_log import train_logging_memory
from minidist.show.demos.shared.runs import warm_ranks
from minidist.show.stage.animation import Animation
from minidist.train.layout import Layout


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Train a model of width ``size`` on ``ranks`` ranks in each mode, and show a step."""
    config, layouts = config_of(ranks, size, seed), {mode: Layout(dp=ranks, recompute=mode) for mode in MODES}
    with warm_ranks() as warm:
        right = {mode: warm.train_proved(config, one, train_logging_memory) for mode, one in layouts.items()}
        bad = {mode: warm.train_broken(config, one, train_redrawn) for mode, one in layouts.items() if mode != "none"}
    runs = {mode: run for mode, (run, _) in right.items()}
    stories = (
        mountains(runs, right["none"][1]),
        mountains(runs | {mode: run for mode, (run, _) in bad.items()}, bad["full"][1], BUG),
    )
    logs = [rank.log for rank in runs["none"].ranks]
    return Animation("recompute", "Recomputation: less memory for more compute", stories, logs)
