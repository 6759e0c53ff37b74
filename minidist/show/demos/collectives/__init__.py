"""Collectives: whose terms each column holds as they travel, and the arrays that a GPU sends."""

from minidist.show.demos.collectives import run, story, training
from minidist.show.demos.collectives.kinds import Kind
from minidist.show.demos.shared.runs import warm_ranks
from minidist.show.stage.animation import Animation


def animation(kind: Kind, ranks: int, size: int, seed: int) -> Animation:
    """Run the collective's algorithms without and with the bug, and train with it."""
    stories, logs = [], []
    with warm_ranks() as warm:
        for name, how in kind.algorithms.items():
            if name == "halving-doubling" and ranks.bit_count() != 1:
                continue  # it works on equal chunks for a power of two of ranks alone
            with warm(ranks) as cluster:
                right, log = run.recorded(kind.begins, how.program, cluster)
                wrong, _ = run.recorded(kind.begins, how.broken, cluster)
            logs = logs or log
            stories += [story.tell(kind, name, right, right), story.tell(kind, name, wrong, right, broken=True)]
        if kind.trains_on is not None:
            harm = training.harm(kind.trains_on, warm, ranks, seed)
            stories += [story.training(kind, harm, broken) for broken in (False, True)]
    return Animation(kind.name, kind.title, tuple(stories), logs)
