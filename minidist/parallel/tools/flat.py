"""Several arrays side by side in one flat array: what is sent as one message, or held as one buffer."""

from collections.abc import Sequence
from math import prod

from minidist.backend import xp


def views_of(flat, shapes: Sequence[tuple[int, ...]]) -> list:
    """Parts of a flat array, one after another, in these shapes."""
    found, start = [], 0
    for shape in shapes:
        found.append(flat[start : start + prod(shape)].reshape(shape))
        start += prod(shape)
    return found


def flattened(arrays: Sequence, dtype=xp.float32):
    """The arrays' elements, one after another, in a new array; of this dtype if there are no arrays."""
    return xp.concatenate([xp.empty(0, dtype), *(array.reshape(-1) for array in arrays)])


def unflatten(flat, arrays: Sequence) -> None:
    """Write the elements of ``flat`` into the arrays, one after another."""
    for array, view in zip(arrays, views_of(flat, [array.shape for array in arrays]), strict=True):
        array[...] = view
