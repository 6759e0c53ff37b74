"""How evenly a run's experts were loaded, from the counts that it brings back."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ExpertLoad:
    """Counts of a run's steps, as ``RankResult.expert_counts`` has them.

    Attributes:
        tokens: that chose each expert, integers (steps, L, E).
        dropped: choices that found no room, integers (steps, L).
        visits: different nodes that a token's experts are on, over all tokens, integers (steps, L).
    """

    tokens: np.ndarray
    dropped: np.ndarray
    visits: np.ndarray

    @classmethod
    def of(cls, counts: Sequence[np.ndarray]) -> "ExpertLoad":
        stacked = np.stack(counts)  # (steps, L, E + 2)
        return cls(stacked[..., :-2], stacked[..., -2], stacked[..., -1])

    @property
    def imbalance(self) -> np.ndarray:
        """The tokens of the busiest expert, in units of the mean: (steps, L). 1 is even, E is collapse."""
        return self.tokens.max(axis=-1) / self.tokens.mean(axis=-1)

    def by_rank(self, ranks: int) -> np.ndarray:
        """The tokens of each rank's experts, if so many ranks share them evenly: (steps, L, ranks).

        These are the rows that a rank computes where all data-parallel ranks exchange tokens (ep = dp) and none is
        dropped.
        """
        steps, layers, experts = self.tokens.shape
        return self.tokens.reshape(steps, layers, ranks, experts // ranks).sum(axis=-1)
