"""Ring attention with one bug: in backward, a rank computes with its own keys and values, not with those that arrive.

Diffusers had it (huggingface/diffusers, issue 14265): backward read the keys and values that forward had saved, which
are those of the rank itself. All shapes fit, and the loss of the first step is right.
"""

from functools import partial

from minidist.parallel.tools.passing_attention import ring_backward, ring_forward
from minidist.show.demos.context_parallel.run import train_watched

BUG = "in backward, a rank computes with its own keys and values instead of those that have arrived"


def stale_backward(keys_values, group, visit):
    """``ring_backward``; what travels is right, but nobody looks at it."""
    return ring_backward(keys_values, group, lambda owner, _: visit(owner, keys_values))


train_stale = partial(train_watched, passes=(ring_forward, stale_backward))
