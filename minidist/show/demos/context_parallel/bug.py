"""Attention with one bug: a rank computes with its own keys and values, not with those that have arrived.

Diffusers had it in backward (huggingface/diffusers, issue 14265): backward read the keys and values that forward had
saved, which are those of the rank itself. All shapes fit, and the loss of the first step is right.
"""

from functools import partial

from minidist.parallel.context import ring_backward, ring_forward
from minidist.show.demos.context_parallel.heads_run import train_heads
from minidist.show.demos.context_parallel.run import train_watched

BUG = "a GPU computes with its own keys and values instead of those that have arrived"


def stale_forward(keys_values, group, visit):
    """``ring_forward``; what travels is right, but nobody looks at it."""
    ring_forward(keys_values, group, lambda owner, _: visit(owner, keys_values))


def stale_backward(keys_values, group, visit):
    """``ring_backward``; what travels is right, but nobody looks at it."""
    return ring_backward(keys_values, group, lambda owner, _: visit(owner, keys_values))


def keep_own(qkv, rank: int, ranks: int) -> None:
    """Overwrite the others' keys and values with this rank's, in all tokens of some heads, (H/N, B, T, 3 D)."""
    tokens, width = qkv.shape[2] // ranks, qkv.shape[3] // 3
    mine = qkv[:, :, rank * tokens : (rank + 1) * tokens, width:].copy()
    for chunk in range(ranks):
        qkv[:, :, chunk * tokens : (chunk + 1) * tokens, width:] = mine


train_stale = partial(train_watched, passes=(stale_forward, stale_backward))
train_stale_backward = partial(train_watched, passes=(ring_forward, stale_backward))
train_stale_heads = partial(train_heads, spoil=keep_own)
