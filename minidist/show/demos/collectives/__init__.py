"""Collectives: whose terms each column holds as they travel, and the arrays that a GPU sends."""

from collections.abc import Sequence

import numpy as np

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
                continue  # on equal chunks, it works only for a power of two of ranks
            with warm(ranks) as cluster:
                right, log = run.recorded(kind.begins, how.program, cluster)
                wrong, _ = run.recorded(kind.begins, how.broken, cluster)
            logs = logs or log
            if _wrong(kind, right) or not _wrong(kind, wrong):
                raise RuntimeError(
                    f"{name} does not end on the right terms, or its bug does no harm: a bug in minidist"
                )
            stories += [
                story.tell(kind, name, right, right, size),
                story.tell(kind, name, wrong, right, size, broken=True),
            ]
        if kind.trains_on is not None:
            harm = training.harm(kind.trains_on, warm, ranks, seed)
            stories += [story.training(kind, harm, broken) for broken in (False, True)]
    return Animation(kind.name, kind.title, tuple(stories), logs)


def _wrong(kind: Kind, steps: Sequence[run.Step]) -> int:
    """Count the chunks of the result that do not end on the terms that one process would put there."""
    terms, count = steps[-1].terms, 0
    ranks = len(terms)
    for rank, chunk in np.ndindex(ranks, ranks):
        if kind.result(rank, chunk, ranks):
            expected = np.zeros_like(terms[rank, chunk])
            for term in kind.ends(rank, chunk, ranks):
                expected[term] = 1
            count += bool((terms[rank, chunk] != expected).any())
    return count
