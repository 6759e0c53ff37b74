"""Documents of different lengths in one batch: packs, the tiles that they skip, and the weight of one target.

The documents come from documents.jsonl, the packings and tiles from the library, and the runs are real. In the broken
run each rank divides its loss by its own number of targets.
"""

from dataclasses import replace

from minidist.show.demos.documents import story
from minidist.show.demos.documents.run import (
    BUG,
    KINDS,
    PER_SIDE,
    PROVED,
    SEEDS,
    Counted,
    Curves,
    Grid,
    Packed,
    check_alone,
    config_of,
    train_counting,
    train_locally,
)
from minidist.show.demos.shared.runs import warm_ranks
from minidist.show.stage.animation import Animation
from minidist.train.layout import Layout

MOST = 128  # places in a sample


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Pack documents into samples of ``size`` places, and train on ``ranks`` ranks, with global and with local counts.

    Raises:
        ValueError: if the size is not a multiple of ``PER_SIDE``, or is below ``2 * PER_SIDE``.
    """
    if size % PER_SIDE or size < 2 * PER_SIDE:
        raise ValueError(f"size, the places, must be a multiple of {PER_SIDE} from {2 * PER_SIDE} on, got {size}")
    packed = [Packed(kind, size) for kind in KINDS]
    fullest = packed[KINDS.index("first-fit")]
    number = max(range(len(fullest.samples)), key=fullest.variety)
    layout, configs = Layout(dp=ranks), [config_of(ranks, size, seed + more) for more in range(SEEDS)]
    short = replace(configs[0], steps=PROVED)
    with warm_ranks() as warm:
        proved, proof = warm.train_proved(short, layout, train_counting)
        _, harm = warm.train_broken(short, layout, train_locally)
        right, broken = (
            [warm.train(config, layout, train, digests=False) for config in configs]
            for train in (train_counting, train_locally)
        )
    step, curves = Counted.most_uneven(right[0]), (Curves.of(right), Curves.of(broken))
    stories = (
        story.packs(packed),
        story.tiles(fullest, number, Grid.of(fullest.samples, number), check_alone(fullest.samples, number, seed)),
        story.one_step(step, details=proof),
        story.one_step(step, BUG, harm),
        story.losses(*curves, details=proof),
        story.losses(*curves, BUG, harm),
    )
    logs = [rank.log for rank in proved.ranks]
    return Animation("documents", "Documents: packs, skipped tiles, and one mean", stories, logs)
