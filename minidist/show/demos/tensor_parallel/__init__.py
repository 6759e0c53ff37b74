"""Tensor and sequence parallelism: an MLP's matrices cut, multiplied and joined, and the lanes of a real step."""

from collections.abc import Callable
from dataclasses import replace

from minidist.analysis.steps import step_length
from minidist.show.demos.shared.runs import WarmRanks, diverges, fastest, warm_ranks
from minidist.show.demos.tensor_parallel import bug
from minidist.show.demos.tensor_parallel.numbers import numbers_of
from minidist.show.demos.tensor_parallel.run import config_of
from minidist.show.demos.tensor_parallel.split import RANKS, matches, split, whole
from minidist.show.player.animation import Animation
from minidist.show.player.scene import Scene
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout

MEASURED, ON_GPUS = "as measured here", "as GPUs would"


def tp(ranks: int, size: int, seed: int) -> Animation:
    """Cut an MLP; train a model at least ``size`` wide, split over ``ranks`` ranks. Then skip one of the all-reduces.

    Raises:
        ValueError: for a width that shows nothing or takes too long.
    """
    return _animation(
        "tp",
        "Tensor parallelism: two all-reduces per block in each pass",
        {MEASURED: Layout(tp=ranks)},
        {"matrices": False},
        config_of(ranks, size, seed),
        ("g", bug.drops_g),
        "in forward, the MLP's g does not sum over the ranks",
        heads=True,
    )


def sp(ranks: int, size: int, seed: int) -> Animation:
    """Show a step with tokens split where tensor parallelism splits nothing, and without; then with a sum skipped.

    Raises:
        ValueError: as ``tp``.
    """
    return _animation(
        "sp",
        "Sequence parallelism: as many bytes or fewer, and less activation memory",
        {MEASURED: Layout(tp=ranks, sp=1), "tp here": Layout(tp=ranks)},
        {"tp + sp": True, "tp": False},
        config_of(ranks, size, seed),
        ("gain", bug.drops_gains),
        "the gradients of LayerNorm's gains are not summed over the ranks' tokens",
    )


def _animation(
    name: str,
    title: str,
    layouts: dict[str, Layout],
    cuts: dict[str, bool],
    config: TrainConfig,
    skipped: tuple[str, Callable],
    what: str,
    heads: bool = False,
) -> Animation:
    """The scenes of cut matrices, then those of the trained layouts.

    Args:
        layouts: scene -> what to train; the first one also with the bug, and on the cluster's clock.
        cuts: scene -> whether its tokens are split; the first one also with the bug.
        skipped: the sum that the bug skips, and the rank function that trains with it.
        heads: whether attention is cut by heads, too.
    """
    which, drops = skipped
    layout = next(iter(layouts.values()))
    with warm_ranks() as warm:
        cut, cut_broken = _cut(warm, cuts, which, config.seed)
        by_heads = attention.scenes(warm, config.seed) if heads else ()
        runs = {one: fastest(warm, config, chosen) for one, chosen in layouts.items()}
        proofs = {one: warm.prove(config, run) for one, run in runs.items()}
        broken = fastest(warm, config, layout, drops)
        verdict = diverges(warm.first_difference(config, broken, drops))
    longest = max(step_length(scene.step_of(run)) for run in (*runs.values(), broken))
    lanes = tuple(scene.of_run(one, run, longest, proofs[one]) for one, run in runs.items())
    first = runs[MEASURED]
    return Animation(
        name,
        title,
        (*cut, *by_heads[:1], *lanes, scene.on_gpus(ON_GPUS, first, proofs[MEASURED])),
        replace(cut_broken, details=verdict),
        what,
        [rank.log for rank in first.ranks],
        (
            *by_heads[1:],
            scene.of_run("broken, measured", broken, longest, verdict, twin=MEASURED),
            scene.on_gpus("broken, on GPUs", broken, verdict, twin=ON_GPUS),
        ),
    )


def _cut(warm: WarmRanks, cuts: dict[str, bool], which: str, seed: int) -> tuple[tuple[Scene, ...], Scene]:
    """The scenes of cut matrices, and the first of them with one sum skipped.

    Raises:
        RuntimeError: if the parts do not join to the bits of one process.
    """
    numbers = numbers_of(RANKS, seed)
    one, gains = whole(warm, numbers), which == "gain"
    scenes, right = [], {}
    for name, sequence in cuts.items():
        ranks = split(warm, numbers, sequence)
        if not matches(ranks, one):
            raise RuntimeError(f"{name}: the ranks' parts do not match one process: this is a bug in minidist")
        verdict = "The parts, joined, have the bits of one process."
        right[name] = ranks
        scenes.append(matrices.scene_of(name, ranks, ranks, one, sequence, gains, "", verdict))
    first, sequence = next(iter(cuts.items()))
    ranks = split(warm, numbers, sequence, which)
    verdict = matrices.damage(ranks, one, which)
    broken = matrices.scene_of("broken", ranks, right[first], one, sequence, gains, which, verdict)
    return tuple(scenes), replace(broken, twin=first)
