"""Collectives: which rank's contributions each chunk holds after each step, and the bytes sent next to the formula."""

from collections.abc import Callable

import numpy as np

from minidist.show.demos.collectives import bug, run, scene
from minidist.show.demos.collectives.kinds import Kind, programs_for
from minidist.show.demos.shared.runs import warm_ranks
from minidist.show.player.animation import Animation


def animation(kind: Kind, ranks: int, size: int, seed: int) -> Animation:
    """Run the collective without and with the bug, on so many ranks, with ``size`` numbers in each chunk."""
    size *= ranks  # from here on: numbers in each array
    with warm_ranks() as warm:

        def recorded(program: Callable):
            return run.recorded(kind, program, warm, ranks, size, seed)

        runs = {name: recorded(program) for name, program in programs_for(kind, ranks).items()}
        first = next(iter(kind.programs))
        bad, _ = recorded(kind.broken)
        right = kind.ends(np.stack([run.numbers_of(rank, size, seed) for rank in range(ranks)]))
        for name, (steps, _) in runs.items():
            if not scene.same(steps[-1].numbers, right).all():
                raise RuntimeError(f"{kind.name}, {name}, does not match one process: this is a bug in minidist")
        consequence = bug.consequence(kind.trains_on, warm, ranks, seed)
    scenes = tuple(scene.of_steps(kind, name, steps, name, steps) for name, (steps, _) in runs.items())
    verdict = " ".join(filter(None, (scene.verdict(kind, bad, runs[first][0], right), consequence)))
    broken = scene.of_steps(kind, "broken", bad, first, runs[first][0], verdict)
    return Animation(kind.name, kind.title, scenes, broken, kind.bug, runs[first][1])
