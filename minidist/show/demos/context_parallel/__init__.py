"""Context parallelism: keys and values go round a ring of ranks, and each rank computes the tiles that it needs.

A real training step of one layer records which tile pairs each rank computes in each hop. Contiguous chunks leave early
ranks idle; zigzag gives each rank an early and a late chunk. Time is counted in pairs of zigzag's chunks, so that
this machine's timing does not matter. A third run exchanges heads for tokens instead (Ulysses), and a longer sequence
is replayed on the cluster's clock. In the broken runs, a rank computes with its own keys and values; in backward's,
forward is right.
"""

from collections.abc import Callable

from minidist.show.demos.context_parallel import as_gpus, backward, forward, heads, heads_run, lecture
from minidist.show.demos.context_parallel.bug import BUG, train_stale, train_stale_backward, train_stale_heads
from minidist.show.demos.context_parallel.run import (
    BACKWARD,
    CHUNKS,
    FORWARD,
    config_of,
    nbytes_of,
    passes_of,
    train_watched,
)
from minidist.show.demos.shared.runs import WarmRanks, diverges, warm_ranks
from minidist.show.player.animation import Animation
from minidist.show.player.scene import Scene
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import Run

MOST = 64  # tokens in a chunk


def animation(ranks: int, size: int, seed: int) -> Animation:
    """A step with both ways to place the chunks, on ``ranks`` ranks, with ``size`` tokens in each chunk of zigzag."""
    configs = {kind: config_of(kind, ranks, size, seed) for kind in CHUNKS}
    with warm_ranks() as warm:
        runs, proofs, bad, harms = {}, {}, {}, {}
        for kind, config in configs.items():
            layout = Layout(cp=ranks, cp_kind=kind)
            runs[kind], proofs[kind] = _proved(warm, config, layout, train_watched)
            bad[kind], harms[kind] = _broken(warm, config, layout, train_stale)
        stale, harm_of_stale = _broken(warm, configs["ring"], Layout(cp=ranks), train_stale_backward)
        by_heads = _by_heads(warm, ranks, size, seed)
        longer, longer_stale = (as_gpus.train(warm, ranks, seed, each) for each in (train_watched, train_stale))
    passes = {kind: passes_of(run) for kind, run in runs.items()}
    forwards = {kind: both[FORWARD] for kind, both in passes.items()}
    ends = {kind: one.end(-1) for kind, one in forwards.items()}
    scenes, broken = [], []
    for kind, right in forwards.items():
        one = forward.scene_of(kind, right, forwards, forward.verdict(right, proofs[kind]))
        scenes.append(lecture.of_kind(kind, one, right, ends))
        wrong = passes_of(bad[kind])[FORWARD]
        harm = forward.harm(wrong, bad[kind].losses[0], runs[kind].losses[0], harms[kind])
        name = "broken" if kind == "ring" else f"broken {kind}"
        one = forward.scene_of(kind, wrong, forwards, harm, name=name, twin=kind)
        broken.append(lecture.of_wrong_keys(one))
    right, wrong = passes["ring"][BACKWARD], passes_of(stale)[BACKWARD]
    done = f"Every gradient is home after {ranks} hops. {proofs['ring']}"
    one = backward.scene_of("backward", right, right, runs["ring"].losses[0], done)
    scenes.append(lecture.of_backward(one, ranks))
    harm = backward.harm(wrong, right, harm_of_stale)
    one = backward.scene_of("broken backward", wrong, right, stale.losses[0], harm, twin="backward")
    broken.append(lecture.of_wrong_gradients(one))
    scenes.append(by_heads[0])
    broken.append(by_heads[1])
    clock = max(ends.values())
    scenes.append(as_gpus.scene_of(as_gpus.NAME, longer, clock))
    broken.append(as_gpus.scene_of("broken on GPUs", longer_stale, clock, twin=as_gpus.NAME))
    title = "Context parallelism: keys and values go round a ring of ranks"
    logs = [rank.log for rank in runs["ring"].ranks]
    return Animation("cp", title, tuple(scenes), broken[0], BUG, logs, tuple(broken[1:]))


def _by_heads(warm: WarmRanks, ranks: int, size: int, seed: int) -> tuple[Scene, Scene]:
    """The scene of Ulysses, and the same with the bug."""
    config, layout = heads_run.config_of(ranks, size, seed), Layout(cp=ranks, cp_kind="ulysses")
    run, proof = _proved(warm, config, layout, heads_run.train_heads)
    bad, harm = _broken(warm, config, layout, train_stale_heads)
    right, wrong = heads_run.exchanges_of(run), heads_run.exchanges_of(bad)
    ring_bytes = nbytes_of(config, ranks, FORWARD)
    verdict = f"Two all-to-alls instead of {ranks - 1} hops. {proof}"
    one = heads.scene_of(heads.NAME, right, right, ring_bytes, verdict)
    harm = heads.harm(wrong, right, harm)
    other = heads.scene_of(f"broken {heads.NAME}", wrong, right, ring_bytes, harm, twin=heads.NAME)
    return lecture.of_heads(one, ranks), lecture.of_wrong_keys(other)


def _proved(warm: WarmRanks, config: TrainConfig, layout: Layout, function: Callable) -> tuple[Run, str]:
    run = warm.train(config, layout, function, trace=True)
    return run, warm.prove(config, run)


def _broken(warm: WarmRanks, config: TrainConfig, layout: Layout, function: Callable) -> tuple[Run, str]:
    run = warm.train(config, layout, function, trace=True)
    return run, diverges(warm.first_difference(config, run, function))
