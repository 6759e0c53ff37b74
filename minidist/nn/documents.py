"""Several documents in one sample, none of which sees another.

Under a causal mask a token sees the tokens before it, and itself. Of a pack of documents it sees those from the first
token of its own document on. That is an interval still, so one number per token is the whole mask, block-diagonal and
causal; and a tile of scores in which no query sees a key need not be computed (FlashAttention's ``cu_seqlens``,
FlexAttention's document mask).
"""

from dataclasses import dataclass

import numpy as np

from minidist.overrides import overridable


@dataclass(frozen=True, eq=False)
class Documents:
    """Where the documents of a micro-batch are: B samples of T tokens.

    Attributes:
        first: integers (B, T) in host memory: the place in the sample of the first token that each token sees.
        positions: integers (B, T), each token's position in its document; None to count from the sample's begin.
        places: of a micro-batch at its longest, by which all divide their losses; 0 for B T.
    """

    first: np.ndarray
    positions: np.ndarray | None = None
    places: int = 0

    def at(self, tokens: slice) -> int | np.ndarray:
        """The positions of consecutive tokens: the first one's, or where documents restart each one's, (B, t)."""
        return tokens.start if self.positions is None else self.positions[:, tokens]


@overridable
def hidden_keys(first: np.ndarray, queries: slice, keys: slice) -> np.ndarray:
    """Which keys some queries do not see: bool (B, keys, queries).

    Args:
        first: as of ``Documents``.
        queries, keys: consecutive places in the sample.
    """
    query, key = np.arange(queries.start, queries.stop), np.arange(keys.start, keys.stop)[:, None]
    return (key > query) | (key < first[:, None, queries])


@overridable
def any_key_seen(first: np.ndarray, queries: slice, keys: slice) -> bool:
    """Whether a query sees a key, in any of the samples. Arguments as of ``hidden_keys``."""
    return keys.start < queries.stop and keys.stop > first[:, queries].min(initial=queries.stop)
