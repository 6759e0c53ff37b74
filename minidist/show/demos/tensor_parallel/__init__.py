"""Tensor and sequence parallelism: collectives inside forward and backward, for which compute has to wait."""

from collections.abc import Callable

from minidist.analysis.steps import step_length
from minidist.show.demos.shared.runs import diverges, fastest, warm_ranks
from minidist.show.demos.tensor_parallel import bug, scene
from minidist.show.demos.tensor_parallel.run import config_of
from minidist.show.player.animation import Animation
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout


def tp(ranks: int, size: int, seed: int) -> Animation:
    """Train a model at least ``size`` wide, split over so many ranks; then with one of its all-reduces skipped.

    Raises:
        ValueError: for a width that shows nothing or takes too long.
    """
    return _animation(
        "tp",
        "Tensor parallelism: two all-reduces per block in each pass",
        {"tp": Layout(tp=ranks)},
        config_of(ranks, size, seed),
        bug.drops_g,
        f"in forward, {bug.WITHOUT_G} is not summed over the ranks",
    )


def sp(ranks: int, size: int, seed: int) -> Animation:
    """The same with tokens split where tensor parallelism splits nothing, and without; then with a sum skipped.

    Raises:
        ValueError: as ``tp``.
    """
    return _animation(
        "sp",
        "Sequence parallelism: as many bytes or fewer, and less activation memory",
        {"tp + sp": Layout(tp=ranks, sp=1), "tp": Layout(tp=ranks)},
        config_of(ranks, size, seed),
        bug.drops_gains,
        "the gradients of LayerNorm's gains are not summed over the ranks' tokens",
    )


def _animation(
    name: str, title: str, layouts: dict[str, Layout], config: TrainConfig, drops: Callable, what: str
) -> Animation:
    layout = next(iter(layouts.values()))
    with warm_ranks() as warm:
        runs = {one: fastest(warm, config, chosen) for one, chosen in layouts.items()}
        proofs = {one: warm.prove(config, run) for one, run in runs.items()}
        broken = fastest(warm, config, layout, drops)
        verdict = diverges(warm.first_difference(config, broken, drops))
    longest = max(step_length(scene.step_of(run)) for run in (*runs.values(), broken))
    scenes = tuple(scene.of_run(one, run, longest, proofs[one]) for one, run in runs.items())
    logs = [rank.log for rank in next(iter(runs.values())).ranks]
    return Animation(name, title, scenes, scene.of_run("broken", broken, longest, verdict), what, logs)
