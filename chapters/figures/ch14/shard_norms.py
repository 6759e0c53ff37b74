"""An injected bug: LAMB's norms are those of a rank's own shard, not those of the full matrix."""

import minidist as md
from minidist.nn.optim.lamb import trust_ratios
from minidist.overrides import override


def own_ratios(weights, updates, sizes, *joins) -> dict[str, float]:
    """Return |w| / |u| of each matrix's shard: nothing is joined with what other ranks hold."""
    return trust_ratios.__wrapped__(weights, updates, sizes)


def train(*arguments):
    """Run ``md.train_rank`` with the bug and the same arguments."""
    override({"trust_ratios": own_ratios})
    try:
        return md.train_rank(*arguments)
    finally:
        override({})
