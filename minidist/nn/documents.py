"""Several documents in one sample, none of which sees another.

Under a causal mask a token sees itself and the tokens before it. In a pack of documents it sees only those from the
first token of its own document on. These are still an interval, so one number per token describes the whole mask, which
is block-diagonal and causal; and a tile of scores in which no query sees a key need not be computed (FlashAttention's
``cu_seqlens``, FlexAttention's document mask).
"""

from dataclasses import dataclass

import numpy as np

from minidist.overrides import overridable


@dataclass(frozen=True, eq=False)
class Documents:
    """Boundaries of the documents in a micro-batch of B samples of T tokens.

    Attributes:
        first: integers (B, T) in host memory: the place in the sample of the first token that each token sees.
        positions: integers (B, T), each token's position in its document; None to count from the start of the sample.
        places: B T before padding is cut off, by which every micro-batch divides its loss; 0 for B T as it is.
    """

    first: np.ndarray
    positions: np.ndarray | None = None
    places: int = 0

    def at(self, tokens: slice) -> int | np.ndarray:
        """Return the position of the first of some consecutive tokens or, where documents restart, of each, (B, t)."""
        return tokens.start if self.positions is None else self.positions[:, tokens]


@overridable
def hidden_keys(first: np.ndarray, queries: slice, keys: slice) -> np.ndarray:
    """Return the mask of the keys that some queries do not see: bool (B, keys, queries).

    Args:
        first: integers (B, T), see ``Documents``.
        queries, keys: consecutive places in the sample.
    """
    query, key = np.arange(queries.start, queries.stop), np.arange(keys.start, keys.stop)[:, None]
    return (key > query) | (key < first[:, None, queries])


@overridable
def any_key_seen(first: np.ndarray, queries: slice, keys: slice) -> bool:
    """Return whether any query sees a key, in any of the samples. Arguments: see ``hidden_keys``."""
    return keys.start < queries.stop and keys.stop > first[:, queries].min(initial=queries.stop)
