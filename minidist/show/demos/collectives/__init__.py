"""Collectives: which rank's contributions each chunk holds after each step, and the bytes sent next to the formula."""

from collections.abc import Callable

import numpy as np

from minidist.show.demos.collectives import run, scene, training
from minidist.show.demos.collectives.kinds import Kind, programs_for
from minidist.show.demos.shared.runs import warm_ranks
from minidist.show.player.animation import Animation


def animation(kind: Kind, ranks: int, size: int, seed: int) -> Animation:
    """Run the collective without and with the bug, on ``ranks`` ranks, with ``size`` numbers in each chunk."""
    size *= ranks  # from here on: numbers in each array
    with warm_ranks() as warm:

        def recorded(program: Callable):
            return run.recorded(kind, program, warm, ranks, size, seed)

        runs = {name: recorded(program) for name, program in programs_for(kind, ranks).items()}
        bad = {name: recorded(kind.broken[name])[0] for name in runs}
        right = kind.ends(np.stack([run.numbers_of(rank, size, seed) for rank in range(ranks)]))
        for name, (steps, _) in runs.items():
            if not scene.same(steps[-1].numbers, right).all():
                raise RuntimeError(f"{kind.name}, {name}, does not match one process: this is a bug in minidist")
        consequence, harm = "", None
        if kind.trains_on is not None:
            consequence = training.consequence(kind.trains_on, warm, ranks, seed)
            harm = training.harm(kind.trains_on, warm, ranks, seed)
    defined = ~np.isnan(np.stack([[chunk[-1] for chunk in np.array_split(flat, ranks)] for flat in right]))
    first = next(iter(runs))
    scenes, broken = [], []

    def add(name: str, in_numbers: bool = False) -> None:
        """The scene of an algorithm, and the same one with the bug."""
        good = runs[name][0]
        trained = name == first and not in_numbers
        told = scene.details(kind, bad[name], good, right) + (f" {consequence}" if trained and consequence else "")
        scenes.append(scene.of_steps(kind, name, good, good, defined, in_numbers))
        harms = harm if trained else None
        broken.append(scene.broken(kind, name, bad[name], good, defined, told, harms, in_numbers))

    add(first)
    if kind.adds:
        add(first, in_numbers=True)
    for name in list(runs)[1:]:
        add(name)
    return Animation(
        kind.name, kind.title, tuple(scenes), broken[0], kind.bug, runs[first][1], also_broken=tuple(broken[1:])
    )
