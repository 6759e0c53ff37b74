"""Tensor and sequence parallelism: an MLP's matrices and attention's heads cut over two GPUs, and a real step."""

from collections.abc import Callable

from minidist.analysis.steps import step_length, traced_step
from minidist.show.demos.shared.on_gpus import GIGABYTES, LINK, replays
from minidist.show.demos.shared.runs import WarmRanks, check_width, fastest, on_cores, warm_ranks
from minidist.show.demos.tensor_parallel import attention, bug, mlp, story
from minidist.show.stage.animation import Animation
from minidist.show.stage.story import Story, with_dial
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout

NO_G, NO_GAINS = (
    "in forward, g does not sum over the GPUs",
    "the gradients of LayerNorm's gains are not summed over the GPUs' tokens",
)


def tp(ranks: int, size: int, seed: int) -> Animation:
    """Cut an MLP and attention; train a model at least ``size`` wide, split over ``ranks`` ranks, and skip a sum.

    Raises:
        ValueError: for a width that shows nothing or takes too long.
    """
    config = config_of(ranks, size, seed)
    with warm_ranks() as warm:
        stories = [_mlp(warm, seed), _mlp(warm, seed, broken=True), _heads(warm, seed), _heads(warm, seed, broken=True)]
        steps, logs = _steps(warm, config, Layout(tp=ranks), bug.drops_g, NO_G)
    return Animation("tp", "Tensor parallelism: two all-reduces per block in each pass", (*stories, *steps), logs)


def sp(ranks: int, size: int, seed: int) -> Animation:
    """Split tokens where tensor parallelism splits nothing; train, and skip the sum of LayerNorm's gain gradients.

    Raises:
        ValueError: for a width that shows nothing or takes too long.
    """
    config = config_of(ranks, size, seed)
    with warm_ranks() as warm:
        cut = _mlp(warm, seed, sequence=True)
        steps, logs = _steps(warm, config, Layout(tp=ranks, sp=1), bug.drops_gains, NO_GAINS)
    title = "Sequence parallelism: as many bytes or fewer, and less activation memory"
    return Animation("sp", title, (cut, *steps), logs)


def config_of(ranks: int, size: int, seed: int) -> TrainConfig:
    """Return the config of a model whose heads and tokens can be divided by the number of ranks."""
    check_width(size, 8, 512)
    width = _multiple(ranks, size)
    return TrainConfig(
        layers=2,
        heads=next(heads for heads in (2 * ranks, ranks) if width % heads == 0),
        width=width,
        context=_multiple(ranks, 64),
        global_batch=8,
        micro_batch=8,
        steps=3,
        seed=seed,
        clip=100.0,  # so high that a wrong gradient changes no other parameter
    )


def _multiple(of: int, least: int) -> int:
    return -(-least // of) * of


def _mlp(warm: WarmRanks, seed: int, sequence: bool = False, broken: bool = False) -> Story:
    """Run the MLP on two ranks and return its story.

    Raises:
        RuntimeError: if the parts do not join to the bits of one process, or the bug does no harm.
    """
    numbers = mlp.numbers_of(seed)
    one, ranks = mlp.whole(warm, numbers), mlp.split(warm, numbers, sequence, broken)
    if mlp.matches(ranks, one) == broken:
        raise RuntimeError("the ranks' parts do not match one process, or the bug changes no bit: a bug in minidist")
    return story.tokens(ranks, one) if sequence else story.mlp(ranks, one, NO_G if broken else "")


def _heads(warm: WarmRanks, seed: int, broken: bool = False) -> Story:
    """Run attention on two ranks and return its story. Errors: see ``_mlp``."""
    numbers = attention.numbers_of(seed)
    one, ranks = attention.whole(warm, numbers), attention.split(warm, numbers, broken)
    if attention.matches(ranks, one) == broken:
        raise RuntimeError("attention by heads does not match one process, or the bug changes no bit")
    return story.heads(ranks, one, NO_G if broken else "")


def _steps(warm: WarmRanks, config: TrainConfig, layout: Layout, drops: Callable, what: str):
    """Return the stories of a real step, on GPUs and as measured, right and with a sum skipped; and the ranks' logs."""
    run, broken = fastest(warm, config, layout), fastest(warm, config, layout, drops)
    proof, found = warm.prove(config, run), warm.harm(config, broken, drops)
    sides = replays(run), replays(broken)
    axes = [max(step_length(traced_step(logs)) for logs in both) for both in zip(*sides, strict=True)]
    names = ["step"] * len(GIGABYTES) + ["measured"]
    told = ["One step of GPU 0. All others do the same on their part of the weights."] * len(GIGABYTES)
    told.append(f"The same step, run by {layout.tp} ranks on {on_cores()} of this machine.")
    stories = []
    for one, side, details, bug_ in ((run, sides[0], proof, ""), (broken, sides[1], found, what)):
        *variants, here = [
            story.step(name, one, logs, axis, words, bug_, details)
            for name, logs, axis, words in zip(names, side, axes, told, strict=True)
        ]
        stories += [with_dial(LINK, variants), here]
    return stories, [rank.log for rank in run.ranks]
