"""Small integers for an MLP, so that an audience can follow every product and every sum in its head.

The MLP is y = GELU(x A) B with x = x_hat * gain. Its hidden values are all at least 6 away from zero, where float32 has
GELU(h) = h or 0, so that everything stays an integer. x_hat stands for tokens that a LayerNorm has normalised.
"""

from dataclasses import dataclass

import numpy as np

TOKENS, WIDTH, UNITS = 4, 3, 2  # T, C, and the hidden units of one head
ROOM = 3  # characters for a number in the picture
FAR = 6  # from zero: from here on GELU is exact


@dataclass(frozen=True)
class Numbers:
    """The MLP of one process, in float32; H heads have UNITS hidden units each.

    Args:
        x_hat: (T, C)
        gain: (C,)
        a: (H, C, UNITS), the columns of A head by head.
        b: (H, UNITS, C), the rows of B head by head.
        target: (T, C); the loss is half the squared distance of y from it, so its gradient is y - target.
    """

    x_hat: np.ndarray
    gain: np.ndarray
    a: np.ndarray
    b: np.ndarray
    target: np.ndarray


def numbers_of(heads: int, seed: int) -> Numbers:
    """The first numbers drawn of which every intermediate result fits into the picture."""
    random = np.random.default_rng((seed, heads))
    while True:
        x_hat, gain = random.integers(-1, 3, (TOKENS, WIDTH)), random.permutation([1, 1, 2])
        a = np.stack([_columns(random, x_hat * gain) for _ in range(heads)])
        b = random.integers(-1, 2, (heads, UNITS, WIDTH))
        error = random.integers(-1, 2, (TOKENS, WIDTH))
        if _all_fit(x_hat, gain, a, b, error):
            hidden = np.maximum((x_hat * gain) @ a, 0)
            target = (hidden @ b).sum(0) - error
            return Numbers(*(array.astype(np.float32) for array in (x_hat, gain, a, b, target)))


def _columns(random: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """(C, UNITS), with hidden values that are all far from zero: positive and negative ones in each column."""
    drawn = random.integers(-6, 7, (2000, WIDTH))
    hidden = x @ drawn.T  # (T, 2000)
    good = (np.abs(hidden) >= FAR).all(0) & (hidden > 0).any(0) & (hidden < 0).any(0)
    return drawn[good][:UNITS].T if good.sum() >= UNITS else np.zeros((WIDTH, UNITS), int)


def _all_fit(x_hat, gain, a, b, error) -> bool:
    """Whether the columns differ, no sum over the ranks is trivial, and all numbers are short."""
    x = x_hat * gain
    before = x @ a  # (H, T, UNITS)
    hidden = np.maximum(before, 0)
    partial = hidden @ b  # (H, T, C)
    d_hidden = (error @ b.transpose(0, 2, 1)) * (before > 0)
    d_partial = d_hidden @ a.transpose(0, 2, 1)  # (H, T, C)
    d_x = d_partial.sum(0)
    d_gain = d_x * x_hat
    results = [before, partial, partial.sum(0), d_hidden, d_partial, d_x, hidden.transpose(0, 2, 1) @ error]
    results += [x.T @ d_hidden, d_gain.sum(0), gain - d_gain.sum(0)]
    trivial = (np.abs(before) < FAR).any() or (partial[:, 0, 0] == 0).any() or (d_partial[:, 0, 0] == 0).any()
    return not trivial and all(len(str(number)) <= ROOM for array in results for number in array.flat)
