"""Training runs with one parameter server: three ways to wait for a straggler."""

from collections.abc import Callable
from math import ceil

from minidist.parallel.loosened.arrivals import NOISE
from minidist.show.demos.parameter_server.watched import train_watched
from minidist.show.demos.shared.runs import WarmRanks
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import Run
from minidist.verify.comparison import ONE_PROCESS, agrees

LEAST, MOST = 2, 6  # how many times as long as the others' the last worker's steps may take
STALENESS = 2  # steps that a worker may be ahead of the slowest
SEEDS = 3  # runs of each kind, each with other weights, samples and noise
SYNCHRONOUS_STEPS = 15  # steps that are taken until the clock stops
LONG = 1 + NOISE / 2  # average time of a step, relative to its time without noise
KINDS = "synchronous", "asynchronous", "bounded"  # names of scenes


def config_of(workers: int, seed: int, steps: int) -> TrainConfig:
    """Return the config of a small model; each worker has one micro-batch of 4 samples in a step."""
    return TrainConfig(
        layers=1,
        heads=2,
        width=32,
        context=32,
        global_batch=4 * workers,
        micro_batch=4,
        steps=steps,
        lr=4.5e-3,
        warmup=4,
        lr_schedule="constant",  # so that runs of different lengths compare
        seed=seed,
    )


def layout_of(kind: str, workers: int, slower: int) -> Layout:
    """Return the layout of a kind of run; its last worker takes ``slower`` times as long for a step as the others."""
    arrivals = "+".join(["1"] * (workers - 1) + [str(slower)])
    if kind == "asynchronous":
        return Layout(dp=workers, sync="async", arrivals=arrivals)
    staleness = STALENESS if kind == "bounded" else 0
    return Layout(dp=workers, sync="server", staleness=staleness, arrivals=arrivals)


def seconds_of(slower: int) -> float:
    """Simulated seconds for which all runs are watched."""
    return SYNCHRONOUS_STEPS * LONG * slower


def steps_of(layout: Layout, slower: int) -> int:
    """Number of steps of a run: enough that no worker runs out of them while it is watched."""
    each = 1 if layout.sync == "async" else slower
    return ceil(seconds_of(slower) / (each * (1 + 0.4 * NOISE))) + layout.staleness


def train(
    warm: WarmRanks, kind: str, workers: int, slower: int, seed: int, rank_function: Callable = train_watched
) -> Run:
    """Train a run of one kind with one server."""
    layout = layout_of(kind, workers, slower)
    config = config_of(workers, seed, steps_of(layout, slower))
    return warm.train(config, layout, rank_function, trace=kind == "synchronous", digests=False)


def prove(warm: WarmRanks, run: Run) -> str:
    """Check that a synchronous run of ``train`` has the bits of one process; return a sentence that says so.

    Raises:
        RuntimeError: if it does not.
    """
    if not agrees(warm.train(run.config, ONE_PROCESS, train_watched, digests=False), run):
        raise RuntimeError(f"{run.layout} does not match the single-process run: this is a bug in minidist")
    return f"The run matches the single-process run bit for bit (SHA-256 {run.fingerprint[:8]})."
