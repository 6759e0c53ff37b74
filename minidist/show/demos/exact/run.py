"""One sum in three orders, and a product whose rows have their bits compared, alone and in a batch.

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
        bits: bits of the grid in a window of 24 bits, in place of 53.
        rounded: the numbers on the grid, (n,) float32.
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
        """Return the sum after each number; every addition rounds to float32."""
        return np.add.accumulate(values[order])

    def ends(self, values: np.ndarray) -> list[float]:
        """Return the sum in each order."""
        return [float(self.running(values, order)[-1]) for order in self.orders]


def candidates(count: int, seed: int) -> Iterator[Sums]:
    """Yield random numbers whose float sum is different in each order.

    The smallest number comes second, after the largest, so that the first addition visibly loses bits.

    Raises:
        RuntimeError: if a sum on the grid is not exact.
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
    """Return random factors (BATCH, TERMS) and (TERMS, WIDTH), float64: a float32 result would hide most changes."""
    random = np.random.default_rng(seed)
    return random.standard_normal((BATCH, TERMS)), random.standard_normal((TERMS, WIDTH))


def compared(multiply: str, seed: int) -> np.ndarray:
    """Return where a row multiplied alone has other bits than in the batch: (BATCH, WIDTH) bool.

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
    """Check that the product on grids has the bits of Python's exact sum; return a sentence that says so.

    Args:
        differ: where a row alone differs, from ``compared``.

    Raises:
        RuntimeError: if it has not, or if a row alone differs.
    """
    x, w = map(from_host, factors(seed))
    bits = exact.bits_of(TERMS, factors=2)
    rows, columns = (to_host(exact.on_grid(factor, bits, axis)) for factor, axis in ((x, -1), (w, -2)))
    expected = [[fsum(a * b for a, b in zip(row, column, strict=True)) for column in columns.T] for row in rows]
    if differ.any() or (to_host(exact.matmul_each(x, w)) != np.array(expected)).any():
        raise RuntimeError("a product on the grid is not exact: this is a bug in minidist")
    return f"All {BATCH * WIDTH} numbers match Python's exact sum, math.fsum."


BUG = "the grid leaves the sum no room to grow"


def bits_without_room(count: int, factors: int = 1) -> int:
    """Return the bits of each factor that ``exact.bits_of`` would allow if only one product had to fit 53 bits."""
    return 53 // factors
