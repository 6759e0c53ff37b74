"""The proof: train the same model in every layout, compare fingerprints, and find the first difference of two runs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from minidist.comm.runtime.clusters import new_cluster, preload
from minidist.comm.runtime.launch import Cluster
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RankResult, Run, RunOptions
from minidist.train.rules import why_it_differs
from minidist.train.trainer import run
from minidist.verify.ulps import in_words, ulps_between

ONE_PROCESS = Layout()


def _parsed(layouts: str) -> list[Layout]:
    return [Layout.parse(text) for text in layouts.split()]


# ``minidist verify`` tries these if none are named; all fit its usual model of two layers. They have every axis, every
# way to sync gradients, every algorithm, stage, schedule and mode of recomputation at least once.
DEFAULT_LAYOUTS = _parsed("""
    dp=2,sync=naive,algorithm=naive  dp=3,sync=bucketed,bucket_mb=0.01,algorithm=direct
    dp=4,algorithm=ring  dp=4,algorithm=two_shot  dp=4,algorithm=halving_doubling
    dp=7,algorithm=tree,bucket_mb=0.05  dp=7,algorithm=double_tree  dp=4,node_size=2,algorithm=hierarchical
    zero=1,dp=4  zero=2,dp=3  zero=3,dp=2,prefetch=1  zero=3,dp=4,shard=2,reshard_after_forward=0,node_size=2
    tp=2  tp=2,sp=1,recompute=selective
    pp=2  pp=2,schedule=naive  pp=2,schedule=gpipe  pp=2,schedule=zb-h1,recompute=full
    pp=2,schedule=interleaved,dp=2,zero=1  pp=2,dp=2,tp=2,zero=1
    cp=2,cp_kind=zigzag,tp=2  cp=2,dp=2,zero=3
    dp=2,ep=2  dp=4,ep=2,zero=2,recompute=full
    dp=3,compress=topk:1,bucket_mb=0.01  dp=3,sync=server,servers=2
""")

# ``--all`` adds these: more ranks, and more combinations of settings.
MORE_LAYOUTS = _parsed("""
    dp=2  dp=4  dp=8,bucket_mb=0.02  dp=2,sync=naive  dp=3,sync=bucketed,bucket_mb=0.01
    dp=4,algorithm=naive  dp=4,algorithm=tree  dp=4,algorithm=direct  dp=8,node_size=4,algorithm=hierarchical
    dp=6,node_size=2  dp=4,node_size=2,zero=2,algorithm=hierarchical  dp=2,tp=2,node_size=2
    zero=3,dp=4  tp=4  tp=2,sp=1  dp=2,tp=2  zero=1,dp=2,tp=2,sp=1  zero=2,dp=2,tp=2,sp=1  zero=3,dp=2,tp=2
    pp=2,schedule=zb-h1  pp=2,dp=2,zero=1  pp=2,dp=2,zero=1,recompute=full  recompute=full  recompute=selective
    cp=2  cp=4  cp=2,cp_kind=all-gather,pp=2  cp=2,cp_kind=ulysses,tp=2,sp=1  cp=2,cp_kind=balanced
    dp=4,ep=4  dp=2,ep=2,tp=2,sp=1  dp=2,ep=2,pp=2,schedule=zb-h1  dp=5,ep=5  dp=2,ep=2,cp=2
    dp=2,compress=powersgd:64  dp=2,sync=server
""")

# Fingerprints of the usual runs with exact products, the same on every machine: README prints the first.
PUBLISHED = {
    TrainConfig(products="exact", steps=20): "5c2eef9c926f0be5a8250d582eb06cbe8842ee6eaafdd9ce5fdf67eec8220cb2",
    TrainConfig(
        products="exact", steps=5, sequence_chunks=4
    ): "fdae973cc84462be34f8307ffbf4d1b6e1fd061f72a8b9fd5ef3cf4b12b0bffb",
    TrainConfig(
        products="exact", steps=5, experts=8
    ): "409626f9071e3a2951f8c82b37541bb02b6f7d38ddc1cf964a30e119a079286d",
}


def published(run: Run) -> str | None:
    """Return the fingerprint that this run has on every machine; None if none is published."""
    return PUBLISHED.get(replace(run.config, backend="numpy"))


@dataclass(frozen=True)
class Difference:
    """The first place at which a run diverges from another."""

    step: int
    name: str  # a parameter, an optimizer state, or "loss"
    index: tuple[int, ...]
    expected: np.floating
    found: np.floating
    ulps: int
    elements: int  # number of the array's elements that differ
    shape: tuple[int, ...]

    @property
    def place(self) -> str:
        """The element that differs, such as ``blocks.0.mlp.fc.weight[0, 3, 5]``."""
        return self.name + (str(list(self.index)) if self.index else "")

    @property
    def count(self) -> str:
        return f"{self.elements:,} of its {prod(self.shape):,} elements differ"

    @property
    def numbers(self) -> str:
        """The two numbers, with their dtypes if those differ."""
        expected, found = self.expected, self.found
        same = expected.dtype == found.dtype
        return f"expected {expected!s}, got {found!s}" if same else f"expected {expected!r}, got {found!r}"

    def lines(self) -> list[str]:
        """Return four short lines: when, where, how far, how much."""
        return [
            f"first differs after step {self.step}",
            f"in {self.place}",
            f"{self.numbers}: {in_words(self.ulps)} apart",
            self.count,
        ]

    def __str__(self) -> str:
        return (
            f"first differs after step {self.step}, in {self.place} ({self.numbers}, {in_words(self.ulps)} apart); "
            f"{self.count}"
        )


def verify(
    layouts: Sequence[Layout],
    config: TrainConfig,
    on_step: Callable[[Layout, int], None] | None = None,
    rank_function: Callable | None = None,
) -> Iterator[Run]:
    """Train once in one process, then once in each layout, and yield each run as it ends.

    ``rank_function`` runs in place of ``train_rank`` in all but the first run: tests inject a bug with it.

    Raises:
        ValueError: if a layout does not fit the run or is not meant to have these bits, before anything is trained.
    """
    for layout in layouts:
        check_exact(config, layout)
    preload("minidist.train.trainer")
    for number, layout in enumerate([ONE_PROCESS, *layouts]):
        report = None if on_step is None else (lambda step, loss, layout=layout: on_step(layout, step))
        with new_cluster(layout.world_size) as cluster:
            options = RunOptions(step_digests=True, progress=on_step is not None)
            yield run(cluster, config, layout, options, report, rank_function if number else None)


def check_exact(config: TrainConfig, layout: Layout) -> None:
    """Raise ValueError if a layout does not fit the run, or is not meant to have the bits of one process."""
    config.check(layout)
    if why := why_it_differs(config, layout):
        raise ValueError(f"layout {layout} is not meant to have the bits of one process: {why}")


def agrees(reference: Run, candidate: Run) -> bool:
    """Return whether every rank of the candidate has the reference's fingerprint. (Each has the whole state here.)"""
    return all(rank.fingerprint == reference.fingerprint for rank in candidate.ranks)


def first_difference(
    reference: Run,
    candidate: Run,
    rank_function: Callable | None = None,
    ranks: Callable[[int], AbstractContextManager[Cluster]] = new_cluster,
    init_from: str | None = None,
) -> Difference | None:
    """Return the first difference of two runs that disagree; both run again up to the first step that differs.

    None if they agree this time: then a run is not reproducible, as with a race between ranks. ``ranks(n)`` returns the
    n ranks to run on, by default new ones. ``init_from`` is the option of that name, for both runs.

    Raises:
        ValueError: if the shapes of an array differ.
    """
    steps = [_first_step_that_differs(reference.ranks[0], rank) for rank in candidate.ranks]
    if all(step is None for step in steps):
        return None
    step, number = min((step, number) for number, step in enumerate(steps) if step is not None)
    options = RunOptions(stop_after=step, init_from=init_from)
    again = []
    for layout, function in ((reference.layout, None), (candidate.layout, rank_function)):
        with ranks(layout.world_size) as cluster:
            again.append(run(cluster, reference.config, layout, options, rank_function=function))
    expected, found = again[0].ranks[0], again[1].ranks[number]
    arrays = expected.arrays.items()
    pairs = [(name, one, other) for name, one in arrays for other in _unstacked(found.arrays[name], one.shape)]
    pairs.append(("loss", np.array(expected.losses[step]), np.array(found.losses[step])))
    for name, one, other in pairs:
        if other.shape != one.shape:  # a learner's function returned it
            raise ValueError(f"{name} has shape {other.shape} after step {step}, where {one.shape} is expected")
        differs = bits(one) != bits(other) if one.dtype == other.dtype else np.ones(one.shape, bool)
        if differs.any():
            index = tuple(int(i) for i in np.argwhere(differs)[0])
            wide = np.result_type(one, other)  # it may have returned another dtype, too
            distance = abs(int(ulps_between(one[index].astype(wide), other[index].astype(wide))))
            return Difference(step, name, index, one[index], other[index], distance, int(differs.sum()), one.shape)
    return None


def _unstacked(array: np.ndarray, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Return the array alone or, if it is a stack of the arrays of ranks that stepped apart, each of them."""
    return list(array) if array.ndim > len(shape) and array.shape[1:] == shape else [array]


def _first_step_that_differs(expected: RankResult, found: RankResult) -> int | None:
    pairs = [zip(bits(np.array(rank.losses)), rank.step_digests, strict=True) for rank in (expected, found)]
    return next((step for step, (one, other) in enumerate(zip(*pairs, strict=True)) if one != other), None)


def bits(array: np.ndarray) -> np.ndarray:
    """Return each element's bits as an unsigned integer, in the array's shape: -0.0 is not 0.0, a NaN equals itself."""
    return array.view(f"u{array.itemsize}")
