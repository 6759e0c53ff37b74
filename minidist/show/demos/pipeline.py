"""Pipelines: five schedules of the same work, each as it is planned and as it ran, and their bubbles.

The plan is in slots, where a forward takes one, a backward two and messages nothing. The run is the last step of a
real one, with this machine's times. In the broken one a rank takes two micro-batches' activations for each other's.
"""

from fractions import Fraction
from math import ceil
from unittest import mock

from minidist.parallel.pipeline import Pipeline
from minidist.parallel.tools.schedules import Action
from minidist.show.demos.pipeline_scene import Kind, scene
from minidist.show.demos.runs import fastest, told, warm_ranks
from minidist.show.player.animation import Animation
from minidist.train.config import TrainConfig
from minidist.train.trainer import train_rank

MOST_MICRO_BATCHES = 16  # cells narrower than a character show nothing
SWAPPED = {0: 1, 1: 0}  # micro-batches; no rank waits for a backward before it has sent both


KINDS = (
    Kind("naive", "naive", "(p−1)/p", lambda p, m: Fraction(p - 1, p)),
    Kind("GPipe", "gpipe", "(p−1)/(m+p−1)", lambda p, m: Fraction(p - 1, m + p - 1)),
    Kind("1F1B", "1f1b", "(p−1)/(m+p−1)", lambda p, m: Fraction(p - 1, m + p - 1)),
    Kind("interleaved", "interleaved", "(p−1)/(2m+p−1)", lambda p, m: Fraction(p - 1, 2 * m + p - 1), virtual=2),
    Kind("ZB-H1", "zb-h1", "(p−1)/(3m+p−1)", lambda p, m: Fraction(p - 1, 3 * m + p - 1)),
)
BROKEN = KINDS[2]


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Run a step in each schedule, with ``size`` micro-batches, or what makes whole rounds of all ranks."""
    micro_batches = ceil(size / ranks) * ranks  # interleaved 1F1B needs it; the others take as many, to be compared
    if micro_batches > MOST_MICRO_BATCHES:
        raise ValueError(
            f"size, the micro-batches of a step, may be at most {MOST_MICRO_BATCHES // ranks * ranks} with {ranks} "
            f"ranks, in whole rounds of them, or cells are too narrow to be read, but is {size}"
        )
    config = _config(ranks, micro_batches, seed)
    with warm_ranks() as warm:
        proofs, runs = {}, {}
        for kind in KINDS:
            runs[kind.name] = fastest(warm, config, kind.layout(ranks), digests=False)
            proofs[kind.name] = warm.prove(config, runs[kind.name])
        bad = warm.train(config, BROKEN.layout(ranks), _activations_swapped, trace=True)
        place = warm.parting(config, bad, _activations_swapped)
    rounded = "" if micro_batches == size else f", {size} rounded up to whole rounds of {ranks} ranks"
    scenes = tuple(scene(kind, runs[kind.name], proofs[kind.name], rounded) for kind in KINDS)
    return Animation(
        "pp",
        "Pipelines: the layers on different ranks, micro-batches one behind the other",
        scenes,
        scene(BROKEN, bad, told(place), rounded, {Action(1, "F", i): other for i, other in SWAPPED.items()}),
        "rank 1 takes the activations of micro-batch 1 for those of 0, and 0's for 1's",
        [rank.log for rank in runs[KINDS[0].name].ranks],
    )


# ── the runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _config(ranks: int, micro_batches: int, seed: int) -> TrainConfig:
    """A model with two layers for each rank; where there are few, so large that computing takes longer than sending."""
    few = ranks <= 4
    micro_batch = 2 if ranks == 2 else 1
    return TrainConfig(
        layers=2 * ranks,
        width=64 if few else 32,
        context=64 if few else 32,
        micro_batch=micro_batch,
        global_batch=micro_batches * micro_batch,
        steps=2 if few else 1,
        seed=seed,
    )


def _activations_swapped(world, config, layout, options):
    """Stage 1 asks for micro-batch 1's activations where it needs 0's, and the other way round: no shape tells."""
    tag = Pipeline.tag

    def swapped(self, stage, i, way):
        mine = self.group.rank == 1 and way == "forward" and stage == 0
        return tag(self, stage, SWAPPED.get(i, i) if mine else i, way)

    with mock.patch.object(Pipeline, "tag", swapped):
        return train_rank(world, config, layout, options)
