"""``cupy.ReductionKernel``, for the one kernel that the library has: dot products of rows."""

import numpy as np

from cupy.arrays import unwrap, wrap
from cupy.traffic import launched

DOT = "T x, T y", "T out", "x * y", "a + b", "out = a", "0"


class ReductionKernel:
    """Takes the code of dot products alone, since it cannot run any other."""

    def __init__(
        self, in_params, out_params, map_expr, reduce_expr, post_map_expr, identity, name="reduce_kernel",
        reduce_type=None, reduce_dims=True, preamble="", options=(),
    ) -> None:  # fmt: skip
        code = in_params, out_params, map_expr, reduce_expr, post_map_expr, identity
        if code != DOT or (reduce_type, preamble, options) != (None, "", ("--fmad=false",)):
            raise NotImplementedError(f"the stand-in for CuPy cannot run the kernel {name}")
        self.name = name

    def __call__(self, a, b, axis=None):
        if a.dtype != b.dtype or axis != -1:
            raise TypeError(
                f"{self.name}: two arrays of one dtype, and the last axis, not {a.dtype}, {b.dtype}, {axis}"
            )
        launched(self.name)
        return wrap(np.einsum("...n,...n->...", unwrap(a), unwrap(b)))
