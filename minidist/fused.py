"""Fused kernels: several lines of NumPy that become one kernel on a GPU.

Each line of NumPy is a pass over memory. On a GPU it is also a kernel launch, some microseconds of the host's time
however small the array, and arithmetic waits for memory: ten lines take ten times as long as one. So the lines that a
training step runs most often are written twice, side by side: in NumPy, and in C for a single element. With CuPy the C
runs, for all elements in one pass (``cupy.ElementwiseKernel``).

Both have the same bits, but for ``tanh``, of which every library has its own, and for subnormal numbers, which CuPy's
kernels take for 0 (``-ftz=true``, cupy/cuda/compiler.py). They take the same steps, or others that are exact, and
``--fmad=false`` keeps the compiler from joining ``a * b + c`` into one operation that rounds once instead of twice.
Division and square root are rounded correctly on both sides: that is NVRTC's default (``--prec-div``, ``--prec-sqrt``).
"""

from collections.abc import Callable
from functools import cache, wraps

from minidist.backend import xp

OPTIONS = ("--fmad=false",)  # of NVIDIA's runtime compiler, NVRTC


def fused(inputs: str, outputs: str, operation: str, preamble: str = "") -> Callable:
    """Decorate elementwise lines of NumPy with the same lines in C, which run in their place on a GPU.

    The function takes the inputs and returns the outputs as new arrays; the lines in NumPy may overwrite the first
    input, to save a pass over memory, so nobody uses it afterwards. Or it takes the outputs too, after the inputs, and
    overwrites them, having read them if it likes.

    Args:
        inputs, outputs: the parameters in C, ``"T x, float64 scale"``. A type is NumPy's name of it, or a capital
            letter for one that the arrays decide. Inputs broadcast; a Python number is converted to its type.
        operation: what C does with one element of each.
        preamble: C functions that it calls.
    """

    def decorate(function: Callable) -> Callable:
        in_c = inputs, outputs, operation, function.__name__, preamble

        @wraps(function)
        def call(*arguments):
            return function(*arguments) if xp.name == "numpy" else _kernel(xp.module, *in_c)(*arguments)

        call.in_c = in_c  # for whoever wants to compile it
        return call

    return decorate


# CuPy compiles a kernel when it first meets a dtype, and remembers that in the kernel. The module is an argument, so
# that no kernel of a stand-in is taken for CuPy's.
@cache
def _kernel(cupy, inputs: str, outputs: str, operation: str, name: str, preamble: str):
    return cupy.ElementwiseKernel(inputs, outputs, operation, name, preamble=preamble, options=OPTIONS)
