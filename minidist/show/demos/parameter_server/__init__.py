"""Parameter servers: the effects of not waiting, in versions of the weights and in the staleness of gradients.

Real workers and a server train a small model. The times of arrival are simulated, so that every recording is the same;
the weights, gradients and losses are real, and digests prove which version each gradient was computed with. In the
broken runs, a gradient that arrives twice is applied and counted twice.
"""

from minidist.show.demos.parameter_server import story
from minidist.show.demos.parameter_server.bug import BUG, train_with_copies, with_copies
from minidist.show.demos.parameter_server.recorded import Recorded
from minidist.show.demos.parameter_server.run import KINDS, LEAST, MOST, SEEDS, prove, seconds_of, train
from minidist.show.demos.shared.runs import check_harm, warm_ranks
from minidist.show.stage.animation import Animation

CHECKED = "Every gradient was computed with the bits of the version named here: digests of all weights agree."


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Train with a server and ``ranks - 1`` workers; the last takes ``size`` times as long for a step as the others."""
    if size < LEAST:
        raise ValueError(
            f"size, how many times slower the last worker is, must be from {LEAST} to {MOST}, got {size}: none lags"
        )
    workers = ranks - 1
    with warm_ranks() as warm:
        runs = {kind: [train(warm, kind, workers, size, seed + number) for number in range(SEEDS)] for kind in KINDS}
        proof = prove(warm, runs["synchronous"][0])
        broken = {kind: train(warm, kind, workers, size, seed, train_with_copies) for kind in KINDS[1:]}
    for kind, run in broken.items():
        check_harm(runs[kind][0], run)
    right = {kind: [Recorded.of(run) for run in each] for kind, each in runs.items()}
    with with_copies():
        wrong = {kind: Recorded.of(run) for kind, run in broken.items()}
    details = {kind: f"{proof} {CHECKED}" if kind == "synchronous" else CHECKED for kind in KINDS}
    axes = {kind: max(map(story.axis_of, (each[0], wrong.get(kind, each[0])))) for kind, each in right.items()}
    stories = [story.lanes(kind, each[0], axes[kind], details=details[kind]) for kind, each in right.items()]
    stories += [story.lanes(kind, run, axes[kind], BUG, CHECKED) for kind, run in wrong.items()]
    stories.append(story.evidence(right, seconds_of(size)))
    title = "Parameter servers: workers that do not wait, and stale gradients"
    logs = [rank.log for rank in runs["synchronous"][0].ranks]
    return Animation("async", title, tuple(stories), logs)
