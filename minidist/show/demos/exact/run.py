"""Three orders of one sum, and a product of a batch and of its rows alone, whose bits are compared.

The bug: the grid's step is so small that the sum of several numbers outgrows the window.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import fsum

import numpy as np

from minidist import trace
from minidist.backend import from_host, to_host, xp
from minidist.nn import exact

WINDOW = 24  # bits of a float32
BATCH, TERMS, WIDTH = 16, 512, 16  # rows, numbers in a sum, and columns of the product
DRAWS = 10_000


@dataclass(frozen=True)
class Sums:
    """Numbers, and their sums in three orders: as they come, backwards, and the smallest first.

    Args:
        terms: (n,) float32, positive.
        bits: how many the grid has in a window of 24 bits in place of 53.
        rounded: (n,) float32, the numbers on the grid.
    """

    terms: np.ndarray
    bits: int
    rounded: np.ndarray

    @classmethod
    def of(cls, terms: np.ndarray) -> "Sums":
        bits = exact.bits_of(len(terms)) - 53 + WINDOW
        return cls(terms, bits, to_host(exact.on_grid(from_host(terms), bits, -1)).astype(np.float32))

    @property
    def orders(self) -> tuple[np.ndarray, ...]:
        natural = np.arange(len(self.terms))
        return natural, natural[::-1], np.argsort(self.terms)

    def running(self, values: np.ndarray, order: np.ndarray) -> np.ndarray:
        """The sum after each number: every addition is one of float32."""
        return np.add.accumulate(values[order])

    def ends(self, values: np.ndarray) -> list[float]:
        """The sum in each order."""
        return [float(self.running(values, order)[-1]) for order in self.orders]


def candidates(count: int, seed: int) -> Iterator[Sums]:
    """Yield random numbers that have another float sum in each order.

    The smallest follows the largest, so that the first addition loses bits that are seen.

    Raises:
        RuntimeError: if the sums on the grid are not the exact one.
    """
    random = np.random.default_rng(seed)
    for _ in range(DRAWS):
        least, *others, most = np.sort(2.0 ** random.uniform(-3, 2, count))
        sums = Sums.of(np.array([most, least, *random.permutation(others)], np.float32))
        if len({*sums.ends(sums.terms)}) == 3 and fsum(sums.terms[:2]) != float(sums.terms[:2].sum()):
            with trace.span("sums on the grid", "compute"):
                ends = sums.ends(sums.rounded)
            if {*ends} != {fsum(sums.rounded)}:
                raise RuntimeError("a sum on the grid is not exact: this is a bug in minidist")
            yield sums


def factors(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(BATCH, TERMS) and (TERMS, WIDTH) float64: with float32's result, the last rounding would hide most."""
    random = np.random.default_rng(seed)
    return random.standard_normal((BATCH, TERMS)), random.standard_normal((TERMS, WIDTH))


def compared(multiply: str, seed: int) -> np.ndarray:
    """Where a row alone has other bits than in the batch: (BATCH, WIDTH) bool.

    Args:
        multiply: "matmul" of NumPy or CuPy, which is the machine's BLAS, or "matmul_each" of nn/exact.py.
    """
    product = {"matmul": xp.matmul, "matmul_each": exact.matmul_each}[multiply]
    x, w = map(from_host, factors(seed))
    with trace.span(f"{multiply}: the batch", "compute"):
        batch = product(x, w)
    with trace.span(f"{multiply}: each row alone", "compute"):
        alone = xp.concatenate([product(row[None], w) for row in x])
    return to_host(batch != alone)


def check_rows(differ: np.ndarray, seed: int) -> str:
    """A sentence that says that Python's exact sum gives the product that rows have on grids.

    Raises:
        RuntimeError: if they do not.
    """
    x, w = map(from_host, factors(seed))
    bits = exact.bits_of(TERMS, factors=2)
    rows, columns = (to_host(exact.on_grid(factor, bits, axis)) for factor, axis in ((x, -1), (w, -2)))
    expected = [[fsum(a * b for a, b in zip(row, column, strict=True)) for column in columns.T] for row in rows]
    if differ.any() or (to_host(exact.matmul_each(x, w)) != np.array(expected)).any():
        raise RuntimeError("a product on the grid is not exact: this is a bug in minidist")
    return f"All {BATCH * WIDTH} numbers are those of Python's exact sum, math.fsum."


BUG = "the grid leaves the sum no room to grow"


def bits_without_room(count: int, factors: int = 1) -> int:
    """``exact.bits_of``, as if one product were summed."""
    return 53 // factors
