"""A strict stand-in for CuPy, for tests on machines without a GPU.

Its arrays are NumPy's inside and refuse every implicit step to NumPy and back, as CuPy's do, and some that CuPy allows.
It has the functions and methods in signatures.json, with exactly the arguments that CuPy takes there; other names are
missing. It counts what crosses between host and device (traffic.py). It computes with NumPy, so results have NumPy's
bits, except that ``add.at`` adds in another order, subnormal float32 numbers are 0, and fused kernels run their own C.
"""

from types import SimpleNamespace

import numpy as np

from cupy import cuda
from cupy.arrays import SIGNATURES, ndarray
from cupy.elementwise import ElementwiseKernel, ReductionKernel
from cupy.functions import FUNCTIONS, TYPES, ufunc
from cupy.traffic import crossings, launches, products

__version__ = SIGNATURES["version"]
inf, nan, pi, e, newaxis, dtype, bool_ = np.inf, np.nan, np.pi, np.e, None, np.dtype, np.bool_
globals().update(TYPES)
globals().update(FUNCTIONS)
_core = cuda.core()


def get_default_memory_pool() -> SimpleNamespace:
    return SimpleNamespace(free_all_blocks=lambda: None)  # there is no memory


__all__ = [
    "ElementwiseKernel", "ReductionKernel", "crossings", "cuda", "get_default_memory_pool", "launches", "ndarray",
    "products", "ufunc",
]  # fmt: skip
