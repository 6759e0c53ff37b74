"""Runs that are interrupted and resumed in another layout: they, too, must end with the bits of one process.

There are as many interruptions as triples (layout before, layout after, step). As in the matrix, a small set of them is
run, in which every setting of a layout before meets every setting of a layout after, and every step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from minidist.comm.runtime.clusters import WarmClusters, preload
from minidist.comm.runtime.sweep import scratch_folder
from minidist.train.checkpoint.commit import name_of
from minidist.train.checkpoint.saver import Saving
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import Run, RunOptions
from minidist.train.trainer import run
from minidist.verify.comparison import ONE_PROCESS, agrees
from minidist.verify.matrix import Combination, covering


@dataclass(frozen=True)
class Interruption:
    """Run that stops after ``step`` steps and is resumed in another layout."""

    before: Layout
    after: Layout
    step: int

    @property
    def settings(self) -> dict[str, object]:
        """Settings that meet in the run: those of both layouts, and the step."""
        found: dict[str, object] = {"step": self.step}
        for when, layout in (("before", self.before), ("after", self.after)):
            found |= {f"{when} {key}": value for key, value in Combination("fp32", layout).settings.items()}
        return found


def covering_interruptions(layouts: Sequence[Layout], steps: int) -> list[Interruption]:
    """Return interruptions in which every two settings meet, and every layout is left and entered at least once.

    The interruptions come after the first step, half way, and before the last step.

    Args:
        steps: number of steps of the whole run, 2 or more.
    """
    when = sorted({1, steps // 2, steps - 1})
    every = [Interruption(*triple) for triple in product(layouts, layouts, when) if triple[0] != triple[1]]
    chosen = [every[i] for i in covering([interruption.settings for interruption in every])]
    left = [layout for layout in layouts if layout not in {interruption.before for interruption in chosen}]
    entered = [layout for layout in layouts if layout not in {interruption.after for interruption in chosen}]
    chosen += [Interruption(layout, layouts[layout == layouts[0]], when[-1]) for layout in left]
    return chosen + [Interruption(layouts[layout == layouts[0]], layout, when[0]) for layout in entered]


def run_interrupted(
    interruptions: Sequence[Interruption], config: TrainConfig, on_start: Callable[[str], None]
) -> Iterator[tuple[Interruption | None, Run, bool]]:
    """Run one process, then each layout up to the last step at which it is left, then the runs resumed from there.

    Yields:
        None, the run of one process and True; then each interruption, the resumed run, and whether that ended with the
        fingerprint of one process, on all ranks.
    """
    preload("minidist.train.trainer")
    with WarmClusters() as clusters, scratch_folder() as scratch:
        on_start("one process")
        reference = run(clusters(1), config, ONE_PROCESS)
        yield None, reference, True
        for number, before in enumerate(dict.fromkeys(interruption.before for interruption in interruptions)):
            mine = [interruption for interruption in interruptions if interruption.before == before]
            on_start(f"{before}, to be left")
            folder = Path(scratch, str(number))
            stop = max(interruption.step for interruption in mine) - 1
            options = RunOptions(saving=Saving(str(folder), every=1, keep=0), stop_after=stop)
            run(clusters(before.world_size), config, before, options)
            for interruption in mine:
                on_start(f"{before}, after step {interruption.step} {interruption.after}")
                resume = RunOptions(resume=str(folder / name_of(interruption.step)))
                result = run(clusters(interruption.after.world_size), config, interruption.after, resume)
                yield interruption, result, agrees(reference, result)
