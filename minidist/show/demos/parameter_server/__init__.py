"""Parameter servers: what it means not to wait, in versions of the weights and in the staleness of gradients.

Real workers and servers train a small model. Who comes when is simulated, so that every recording is the same; the
weights, gradients and losses are real, and digests prove with which version each gradient was computed. In the broken
runs the server applies and counts a gradient again that comes twice.

    watched.py    the rank function, and what it brings back
    recorded.py   a run on the simulated clock, from the server's log
    picture.py, scene.py    the lanes of workers and server: three scenes
    evidence.py   staleness counted, and the loss over time, for several seeds
    shards.py     two servers
"""

from minidist.show.demos.parameter_server import evidence, lecture, scene, shards, verdict
from minidist.show.demos.parameter_server.bug import BUG, train_with_copies, with_copies
from minidist.show.demos.parameter_server.recorded import Recorded
from minidist.show.demos.parameter_server.run import (
    KINDS,
    LEAST,
    MOST,
    SEEDS,
    prove,
    seconds_of,
    train,
    train_with_servers,
)
from minidist.show.demos.parameter_server.shards import Shards
from minidist.show.demos.shared.runs import warm_ranks
from minidist.show.player.animation import Animation


def animation(ranks: int, size: int, seed: int) -> Animation:
    """A server and ``ranks - 1`` workers, of which the last takes ``size`` times as long for a step as the others."""
    if size < LEAST:
        raise ValueError(
            f"size, how many times slower the last worker is, must be from {LEAST} to {MOST}, got {size}: none lags"
        )
    workers, seconds = ranks - 1, seconds_of(size)
    with warm_ranks() as warm:
        runs = {kind: [train(warm, kind, workers, size, seed + number) for number in range(SEEDS)] for kind in KINDS}
        proof = prove(warm, runs["synchronous"][0])
        broken = {kind: train(warm, kind, workers, size, seed, train_with_copies) for kind in KINDS[1:]}
        one, two = (train_with_servers(warm, servers, workers, size, seed) for servers in (1, 2))
    right = {kind: [Recorded.of(run) for run in each] for kind, each in runs.items()}
    with with_copies():
        wrong = {kind: Recorded.of(run) for kind, run in broken.items()}
    shared = Shards.of(two)
    scenes = [
        lecture.OF_KIND[kind](scene.of_run(kind, run, size, verdict.of_kind(kind, run, seconds, proof)), run)
        for kind, (run, *_) in right.items()
    ]
    scenes.append(lecture.evidence(evidence.scene_of(right, seconds, verdict.of_evidence(right)), right))
    scenes.append(lecture.shards(shards.scene_of(shared, verdict.of_shards(shared, one, two)), shared))
    asynchronous, bounded = (
        lecture.broken(scene.of_run(kind, run, size, verdict.of_bug(kind, run, right[kind][0], seconds), True), run)
        for kind, run in wrong.items()
    )
    title = "Parameter servers: workers that do not wait, and gradients that are stale"
    logs = [rank.log for rank in runs["synchronous"][0].ranks]
    return Animation("async", title, tuple(scenes), bounded, BUG, logs, (asynchronous,))
