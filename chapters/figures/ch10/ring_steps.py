"""A ring, step by step: whose keys each rank has, how much it computes with them, and how long it is idle."""

from collections.abc import Mapping

import numpy as np

from minidist.show.figures.subplots import subplots
from minidist.show.palette import ink_on, of_rank

IDLE = "#ECECEC"


def efficiency(work: np.ndarray) -> float:
    """Return the share of time in which ranks compute, if all wait for the slowest in each step of (ranks, steps)."""
    return float(work.mean(axis=0).sum() / work.max(axis=0).sum())


def count_in_a_run(cluster, kind: str) -> np.ndarray:
    """Train for one step, and count the pairs of chunks that each rank computes in each step of the ring's forward.

    Args:
        cluster: N ranks, an md.Cluster.
        kind: "ring", N chunks, or "zigzag", 2N chunks.

    Returns:
        (ranks, steps) integers.
    """
    from minidist import Layout, RunOptions, run
    from minidist.show.demos.context_parallel.run import config_of, passes_of, train_watched

    ranks = cluster.world_size
    config, layout = config_of(kind, ranks, size=8, seed=0), Layout(cp=ranks, cp_kind=kind)
    result = run(cluster, config, layout, RunOptions(trace=True), rank_function=train_watched)
    return np.array([[len(visit.pairs) for visit in hop] for hop in passes_of(result)["forward"].visits]).T


def draw(rings: Mapping[str, np.ndarray]):
    """Return a matplotlib Figure: a panel for each ring, a row for each rank, time to the right.

    Args:
        rings: title -> the tile pairs that each rank computes in each step, (ranks, steps). In step s, rank r has the
            keys and values of rank r - s. A step takes as long as its slowest rank, and time has one scale in all
            panels.
    """
    ranks = max(len(work) for work in rings.values())
    last = max(work.max(axis=0).sum() for work in rings.values())
    figure, grid = subplots(11, (0.65 + 0.33 * ranks) * len(rings), len(rings), 1)
    for axes, (title, work) in zip(grid, rings.items(), strict=True):
        ends = np.cumsum(work.max(axis=0))
        for step, (end, longest) in enumerate(zip(ends, work.max(axis=0), strict=True)):
            start = end - longest
            for rank, pairs in enumerate(work[:, step]):
                owner = (rank - step) % len(work)
                axes.barh(rank, longest, 0.72, start, color=IDLE)
                if pairs:
                    axes.barh(rank, pairs, 0.72, start, color=of_rank(owner))
                text, ink = (f"keys of rank {owner}", ink_on(of_rank(owner))) if pairs else ("idle", "#707070")
                axes.text(start + (pairs or longest) / 2, rank, text, ha="center", va="center", fontsize=8, color=ink)
            axes.axvline(start, color="white", linewidth=2)
        axes.set_title(f"{title}: {efficiency(work):.1%} busy", fontsize=10, loc="left")
        axes.set_yticks(range(len(work)), [f"rank {rank}" for rank in range(len(work))], fontsize=9)
        axes.set_xticks(ends - work.max(axis=0) / 2, [f"step {step}" for step in range(len(ends))], fontsize=9)
        axes.set(xlim=(0, last), ylim=(len(work) - 0.5, -0.5))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return figure
