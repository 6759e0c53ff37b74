"""Tiled attention, the idea of FlashAttention: which tile is in the fast memory, and what crosses to the slow one.

Attention runs on a memory that counts accesses (nn/attention/slow_memory.py), in one process: causal and tile by tile,
tile by tile without a mask, and in the standard form, whose scores lie in the slow memory. In the broken run, the
earlier sums are not rescaled when a tile with a larger maximum is merged.
"""

from minidist.show.demos.flash.run import BUG, MODEL, merge_without_rescaling, run_of, train_without_rescaling
from minidist.show.demos.flash.story import tell
from minidist.show.demos.shared.runs import warm_ranks
from minidist.show.stage.animation import Animation
from minidist.verify.comparison import ONE_PROCESS

LEAST, MOST = 12, 512  # tokens: with fewer, it may be that no tile raises a maximum, and the bug does nothing


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Run attention over ``size`` tokens in each form; ``ranks`` is 1."""
    if size < LEAST:
        raise ValueError(f"size, the tokens, must be from {LEAST} to {MOST}, got {size}")
    causal, full, plain = (run_of(kind, size, seed) for kind in ("causal", "no mask", "standard"))
    pairs = [(run_of(right.kind, size, seed, merge_without_rescaling), right) for right in (causal, full)]
    if any(bad.output.tobytes() == right.output.tobytes() for bad, right in pairs):
        raise RuntimeError("the injected bug changes no bit of the output: choose another size or seed")
    with warm_ranks() as warm:
        trained = warm.train(MODEL, ONE_PROCESS, train_without_rescaling)
        harm = f"Training with this bug diverges: it {warm.first_difference(MODEL, trained, train_without_rescaling)}."
    stories = [tell(causal, plain), tell(full, plain), tell(plain, causal)]
    stories += [tell(bad, plain, right, BUG, harm) for bad, right in pairs]
    return Animation("flash", "Tiled attention: scores never leave the fast memory", tuple(stories), [causal.log])
