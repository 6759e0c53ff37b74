"""Small integers for an MLP, so that an audience can follow every product and every sum in its head.

The MLP is y = GELU(x A) B with x = x_hat * gain. Its hidden values are all at least 6 away from zero, where float32 has
GELU(h) = h or 0, so that everything stays an integer; and the right results are short. x_hat stands for tokens that a
LayerNorm has normalised.
"""

from dataclasses import dataclass

import numpy as np

TOKENS, WIDTH, UNITS = 4, 3, 2  # T, C, and the hidden units of one head
TRIES = 100  # for the rest, once x and A are drawn
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
        for _ in range(TRIES):
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
    """Whether no sum over the ranks is trivial, and results are short: two characters in forward, later three."""
    x = x_hat * gain
    before = x @ a  # (H, T, UNITS)
    hidden = np.maximum(before, 0)
    partial = hidden @ b  # (H, T, C)
    if (np.abs(before) < FAR).any() or _trivial(partial) or not _fit(hidden, partial, partial.sum(0), most=20):
        return False
    d_hidden = (error @ b.transpose(0, 2, 1)) * (before > 0)
    d_partial = d_hidden @ a.transpose(0, 2, 1)  # (H, T, C)
    d_x = d_partial.sum(0)
    d_gain = d_x * x_hat  # (T, C): a rank has some of the tokens
    if _trivial(d_partial) or not _fit(d_partial, d_x, hidden.transpose(0, 2, 1) @ error, least=-99):
        return False
    halves = [half.sum(0) for half in np.split(d_gain, 2)]
    return _fit(x.T @ d_hidden, *halves, sum(halves), gain - sum(halves), *(gain - half for half in halves), least=-99)


def _trivial(terms: np.ndarray) -> bool:  # (H, T, C)
    """Whether the sum in the top left corner, which is written out, has a zero, or a third of the terms are zeros."""
    return (terms[:, 0, 0] == 0).any() or (terms == 0).mean() > 1 / 3


def _fit(*arrays: np.ndarray, least: int = -9, most: int = 99) -> bool:
    return all(array.min() >= least and array.max() <= most for array in arrays)
