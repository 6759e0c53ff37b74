"""The two methods that are shown number by number: top-k and 1 bit."""

import numpy as np

from minidist.show.demos.compress.picture import one_bit_panel, top_k_panel
from minidist.show.demos.compress.run import Message
from minidist.show.demos.compress.scene import Kind

SHARE = 0.125  # of the numbers in a bucket, for top-k


def _largest(message: Message, number: int) -> str:
    chosen = np.flatnonzero(message.sent)
    others = message.sent.size - len(chosen)
    if message.sent[number] and message.before[number]:
        return f"number {number} is among the {len(chosen)} largest at last: gradient and residual are sent as one."
    which = " and ".join(", ".join(map(str, chosen)).rsplit(", ", 1))
    return f"the {len(chosen)} largest sums, of {which}, are sent with their indices; the {others} others stay."


def _signs(message: Message, number: int) -> str:
    scale = np.abs(message.sent).max()
    return f"{message.sent.size} signs and one scale, the mean size {scale:.4f}, are sent; what that misses stays."


TOP_K = Kind("top-k", f"Top-k sends the largest {SHARE:.1%}", _largest, top_k_panel)
ONE_BIT = Kind("1 bit", "1 bit sends signs and one scale", _signs, one_bit_panel)
