"""What an operation saves for backward, and how it waits: as it is, in 16 bits, as a leaf, or not at all.

``ctx.save_for_backward`` collects arrays while forward runs. Once forward has returned, ``Saved.store`` handles each:

- A leaf among the arguments is kept as the leaf, not as its array: backward gets what the leaf holds then. So a
  parameter may be resharded after forward and unsharded again, as ZeRO's stage 3 does.
- Under a 16-bit policy float32 arrays are packed, and what two operations save is packed once.
- Under ``saving``, someone else decides. Recomputation makes operations forget this way (recompute.py).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from minidist import ledger
from minidist.backend import address
from minidist.nn.precision.policy import Packed, Policy, repeats
from minidist.products import multiplies_codes

Known = Sequence[tuple]  # pairs of a tensor and the array that an operation got of it, or made for it
_on_save: "Callable[[Saved, Known], None] | None" = None


@contextmanager
def saving(on_save: "Callable[[Saved, Known], None]") -> Iterator[None]:
    """Within it, ``on_save(saved, known)`` is called in place of ``saved.store(known)``.

    (PyTorch's ``saved_tensors_hooks`` see single tensors instead.)
    """
    global _on_save
    before, _on_save = _on_save, on_save
    try:
        yield
    finally:
        _on_save = before


class Saved:
    """What one call of an operation has saved.

    Args:
        operation: its name.
        arrays: to be stored as the policy says. None and numbers among them stay what they are.
        exact: arrays that are stored as they are.
        policy: the precision in force.
    """

    def __init__(self, operation: str, arrays: tuple, exact: tuple, policy: Policy) -> None:
        self.operation, self.policy = operation, policy
        self.entries, self.exact = arrays, exact
        self.again: Callable[[], None] | None = None  # recomputes and refills what was forgotten here

    def keep(self, shape: tuple[int, ...], known: Known) -> None:
        """The operation is over, with an output of this shape: store what it saved, unless someone else decides."""
        self.shape = shape
        (_on_save or Saved.store)(self, known)

    def store(self, known: Known) -> None:
        """Put everything into the form in which it waits, and enter it into the memory ledger.

        Args:
            known: the tensors among the operation's arguments and its output, and their arrays.
        """
        self.entries = tuple(self._stored(entry, known) for entry in self.entries)
        for entry in (*self.entries, *self.exact):
            enter(entry)

    def _stored(self, array, known: Known):
        if not is_array(array) and not isinstance(array, Packed):
            return array
        for tensor, itself in known:
            if array is itself and tensor.grad_fn is None:
                return Leaf(tensor, self.policy)
            if self.policy.packs(array) and shows_all_of(array, itself):
                return tensor.pack(self.policy).reshape(array.shape)
        return self.policy.pack(array) if self.policy.packs(array) else array

    def forget(self, again: Callable[[], None]) -> None:
        """Keep nothing. When backward asks for it, ``again()`` has another one hand over the same."""
        self.entries, self.exact, self.again = (), (), again

    def hand_over(self, other: "Saved") -> None:
        """Give what is stored here to one that forgot it."""
        other.entries, other.exact, other.again = self.entries, self.exact, None

    def arrays(self) -> tuple:
        """The arrays, and behind them the exact ones."""
        if self.again is not None:
            self.again()
        return (*map(load, self.entries), *self.exact)

    def factors(self) -> tuple:
        """The saved arrays, as ``Policy.matmul`` takes them."""
        if self.again is not None:
            self.again()
        return (*map(load_factor, self.entries), *self.exact)


class Leaf:
    """A leaf tensor, kept by reference: backward reads the value that it has by then, as the policy takes it."""

    def __init__(self, tensor, policy: Policy) -> None:
        self.tensor, self.policy = tensor, policy

    def array(self):
        return self.tensor.cast(self.policy)

    def factor(self):
        return self.tensor.factor(self.policy)


def enter(entry) -> None:
    """Enter what waits for backward into the memory ledger: arrays, packed or not."""
    array = entry.codes if isinstance(entry, Packed) else entry
    if is_array(array):
        ledger.hold("activations", array)


def load(entry):
    """What an entry stands for: the array of one that is packed or a leaf; others stand for themselves."""
    return entry.array() if isinstance(entry, Packed | Leaf) else entry


def load_factor(entry):
    """What an entry stands for, as ``Policy.matmul`` takes it."""
    if isinstance(entry, Leaf):
        return entry.factor()
    return entry if isinstance(entry, Packed) and multiplies_codes() else load(entry)


def is_array(value) -> bool:
    """Whether it is an array, and not a number, of NumPy's kind or Python's."""
    return hasattr(value, "nbytes") and not isinstance(value, np.generic)


def shows_all_of(array, other) -> bool:
    """Whether an array is the other one, or that one reshaped."""
    same = (array.size, array.dtype, address(array)) == (other.size, other.dtype, address(other))
    return same and all((a[0] if repeats(a) else a).flags.c_contiguous for a in (array, other))
