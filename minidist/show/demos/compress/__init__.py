"""Compressed gradients: what is sent, what stays behind, and that nothing is lost.

Real training sends one parameter's gradient by top-k and in one bit, number by number; real ranks approximate a
gradient by two thin factors; and longer runs show the loss. In the broken runs there is no error feedback.
"""

import numpy as np

from minidist.parallel.compression.hook import read_method
from minidist.show.demos.compress import curves, curves_scene, factors, lecture, ledger, low_rank, scene, verdict
from minidist.show.demos.compress.bug import BUG, train_forgetting
from minidist.show.demos.compress.kinds import ONE_BIT, SHARE, TOP_K
from minidist.show.demos.compress.run import MOST, Recorded, config_of, record
from minidist.show.demos.compress.scene import Kind
from minidist.show.demos.shared.runs import WarmRanks, warm_ranks
from minidist.show.player.animation import Animation
from minidist.show.player.scene import Scene

__all__ = ["MOST", "animation"]


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Train a model of width ``size`` on ``ranks`` ranks, and draw ``size`` numbers of a gradient."""
    config = config_of(ranks, size, seed)
    with warm_ranks() as warm:
        pairs = [
            [record(warm, config, ranks, method, *function) for function in ((), (train_forgetting,))]
            for method in (f"topk:{SHARE}", "onebit")
        ]
        low, losses = _low_rank(warm, pairs[0][0], seed), curves.curves_of(warm, seed)
    sparse, signs = pairs
    number = scene.followed(*sparse)
    shown = (
        _bars(TOP_K, *sparse, number),
        _ledgers(*sparse, number),
        _bars(ONE_BIT, *signs, number),
        low,
        _losses(losses),
    )
    right, broken = zip(*shown, strict=True)
    title = "Compressed gradients: what is sent, and what stays behind"
    return Animation("compress", title, right, broken[0], BUG, [rank.log for rank in sparse[0].run.ranks], broken[1:])


def _bars(kind: Kind, right: Recorded, broken: Recorded, number: int) -> tuple[Scene, Scene]:
    """One parameter of rank 0 in each step, with feedback and without."""
    most = max(float(np.abs(message.corrected).max()) for one in (right, broken) for message in one.drawn)
    values = right.drawn[0].sent
    nbytes = read_method(right.method).message_bytes(values.size, values.itemsize)
    if kind is TOP_K:
        outcomes = verdict.sparse(right, nbytes), verdict.broken_sparse(broken, number)
    else:
        outcomes = verdict.signs(right, nbytes), verdict.broken_signs(right, broken)
    fine = scene.scene(kind, right, number, most, nbytes, outcomes[0], verdict.books(right))
    bad = scene.scene(kind, broken, number, most, nbytes, outcomes[1], verdict.TORCH, lost=True)
    if kind is TOP_K:
        return lecture.top_k(fine, right, number), lecture.broken_top_k(bad, broken)
    return lecture.one_bit(fine), lecture.broken_one_bit(bad)


def _ledgers(right: Recorded, broken: Recorded, number: int) -> tuple[Scene, Scene]:
    """One number of that parameter."""
    most = max(ledger.highest(one, number) for one in (right, broken))
    fine = ledger.scene(right, number, most, verdict.account(right, number), verdict.books(right))
    bad = ledger.scene(broken, number, most, verdict.broken_account(broken, number), verdict.TORCH, lost=True)
    return lecture.ledger(fine, right, number), lecture.broken_ledger(bad, number)


def _low_rank(warm: WarmRanks, recorded: Recorded, seed: int) -> tuple[Scene, Scene]:
    """The gradients of the last recorded step, with warm start and without."""
    matrices = factors.gradients_of(recorded)
    right, broken = (factors.approximate(warm, matrices, seed, refilled) for refilled in (False, True))
    factors.check_harm(right, broken)
    fine = low_rank.scene(right, verdict.low_rank(right))
    bad = low_rank.scene(broken, verdict.broken_low_rank(right, broken), right)
    return lecture.low_rank(fine, right), lecture.broken_low_rank(bad)


def _losses(shown: curves.Curves) -> tuple[Scene, Scene]:
    """Longer runs, with feedback and without."""
    measured = verdict.how_measured(shown)
    fine = curves_scene.scene(shown, verdict.losses(shown), measured)
    bad = curves_scene.scene(shown, verdict.broken_losses(shown), measured, broken=True)
    return lecture.losses(fine, shown), lecture.broken_losses(bad, shown)
