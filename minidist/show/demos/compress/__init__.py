"""Compressed gradients: what is sent, what stays behind, and that nothing is lost.

Real training sends one parameter's gradient by top-k and in one bit, number by number; real ranks approximate a
gradient by two thin factors; and longer runs show the loss. In the broken runs there is no error feedback.
"""

from minidist.parallel.compression.hook import read_method
from minidist.show.demos.compress import curves, factors, story
from minidist.show.demos.compress.run import BUG, COLD, MOST, Recorded, config_of, record, train_forgetting
from minidist.show.demos.shared.runs import check_harm, warm_ranks
from minidist.show.stage.animation import Animation

__all__ = ["MOST", "animation"]
SHARE = 0.125  # of the numbers in a bucket, for top-k


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Train a model of width ``size`` on ``ranks`` ranks, and draw ``size`` numbers of a gradient."""
    config = config_of(ranks, size, seed)
    with warm_ranks() as warm:
        pairs = {
            name: [record(warm, config, ranks, method, *function) for function in ((), (train_forgetting,))]
            for name, method in (("top-k", f"topk:{SHARE}"), ("1 bit", "onebit"))
        }
        matrices = factors.gradients_of(pairs["top-k"][0])
        right, cold = (factors.approximate(warm, matrices, seed, refilled) for refilled in (False, True))
        longer = curves.curves_of(warm, seed)
    factors.check_harm(right, cold)
    stories = []
    for name, (fine, bad) in pairs.items():
        check_harm(fine.run, bad.run)
        values = fine.drawn[0].sent
        nbytes = int(read_method(fine.method).bytes_sent([values.shape], 2, values.itemsize))  # to one other rank
        stories += [
            story.columns(name, fine, fine, nbytes, "", _books(fine)),
            story.columns(name, bad, fine, nbytes, BUG),
        ]
    stories += [story.low_rank(right, right), story.low_rank(cold, right, COLD)]
    stories += [story.losses(longer), story.losses(longer, BUG)]
    title = "Compressed gradients: what is sent, and what stays behind"
    return Animation("compress", title, tuple(stories), [rank.log for rank in pairs["top-k"][0].run.ranks])


def _books(shown: Recorded) -> str:
    """Check that sent + new residual is gradient + old residual everywhere, and return a sentence that says so.

    Raises:
        RuntimeError: if it is not.
    """
    balanced, total = shown.balances()
    if balanced != total:
        raise RuntimeError(f"{total - balanced} of {total} numbers do not add up: this is a bug in minidist")
    return (
        f"Sent + new residual is gradient + old residual to the last bit, in all {total:,} numbers of all parameters, "
        "GPUs and steps."
    )
