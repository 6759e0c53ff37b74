"""``cupy.ElementwiseKernel``: C for one element, compiled for the host by the system's C++ compiler, and run on all.

The C is the one that a GPU would run. ``tanh``, of one number for each element, is NumPy's, so that a kernel may be
held against lines of NumPy to the last bit: the kernel runs once to write down these numbers, and again with their
``tanh``. Subnormal numbers are zeros, as with CuPy's ``-ftz=true``. Without a compiler no kernel can run.
"""

import ctypes
import os
import shutil
import subprocess
import tempfile
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cupy.arrays import unwrap, wrap
from cupy.traffic import launched

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
FOLDER = Path(__file__).parent / "__pycache__"  # what is compiled here is found again by the next process
TYPES = {"bool": "bool", "float32": "float", "float64": "double"}
TYPES |= {f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)}
SOURCE = """
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#ifdef __SSE__
#include <xmmintrin.h>
#else
static unsigned int _mm_getcsr() { return 0; }
static void _mm_setcsr(unsigned int) {}
#endif
using namespace std;
#define __device__ static inline
static inline unsigned int __float_as_uint(float value) { unsigned int bits; memcpy(&bits, &value, 4); return bits; }
static inline float __uint_as_float(unsigned int bits) { float value; memcpy(&value, &bits, 4); return value; }
static void *tanhs;
static bool known;
template <class N> static inline N numpys_tanh(N value, long long i) {
    N *number = (N *)tanhs + i;
    return known ? *number : (*number = value);
}
#define tanh(value) numpys_tanh(value, i)
struct Indexer { long long count; long long size() const { return count; } };
%s
%s
extern "C" void run(void **arrays, long long count, void *tanhs_, bool known_) {
    tanhs = tanhs_, known = known_;
    Indexer _ind = {count};
    unsigned int mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040);
    for (long long i = 0; i < count; ++i) {
%s
        {
%s;
        }
    }
    _mm_setcsr(mode);
}
"""


class Parameter(NamedTuple):
    """``raw T x``: the name of a type, or a capital letter for one; a name; whether it is raw."""

    type: str
    name: str
    raw: bool


def parameters(text: str) -> list[Parameter]:
    return [Parameter(*one.split()[-2:], one.split()[0] == "raw") for one in text.split(",") if one]


class ElementwiseKernel:
    """Kernel like CuPy's: called with the inputs, or with the inputs and the outputs."""

    def __init__(self, in_params, out_params, operation, name="kernel", reduce_dims=True, preamble="",
                 no_return=False, return_tuple=False, options=()) -> None:  # fmt: skip
        self.inputs, self.outputs = map(parameters, (in_params, out_params))
        if "i" in [one.name for one in self.inputs + self.outputs]:
            raise ValueError("Can not use 'i' as a parameter name")
        if "--fmad=false" not in options:
            raise ValueError("without --fmad=false a GPU rounds a * b + c once, and NumPy twice")
        self.operation, self.name, self.preamble = operation, name, preamble

    def __call__(self, *arguments, size=None):
        given = unwrap(arguments)
        types = self._types(given)
        outputs = given[len(self.inputs) :]
        inputs = [  # numbers as CuPy passes them: converted to the parameter's type
            (one if isinstance(one, np.ndarray) else np.asarray(one).astype(types[parameter.type]), parameter.raw)
            for one, parameter in zip(given, self.inputs, strict=False)
        ]
        shapes = [one.shape for one, raw in inputs if not raw] + [one.shape for one in outputs]
        if (size is None) != bool(shapes or self.outputs):
            raise ValueError(f"{self.name}: size is for kernels whose arrays are all raw")
        shape = (size,) if size is not None else outputs[0].shape if outputs else np.broadcast_shapes(*shapes)
        if np.broadcast_shapes(shape, *shapes) != shape:
            raise ValueError(f"{self.name}: out shape is mismatched")
        results = outputs or [np.empty(shape, types[one.type]) for one in self.outputs]
        laid_out = [np.ascontiguousarray(one if raw else np.broadcast_to(one, shape)) for one, raw in inputs]
        written = [np.ascontiguousarray(one) for one in results]  # read, too
        self._run([*laid_out, *written], types, int(np.prod(shape)))
        for result, one in zip(results, written, strict=True):
            if result is not one:
                result[...] = one
        launched(self.name)
        found = arguments[len(self.inputs) :] or tuple(map(wrap, results))
        return found[0] if len(found) == 1 else found

    def _types(self, given: tuple) -> dict[str, np.dtype]:
        """Return each type's dtype: that of the arrays, which must fit."""
        if len(given) not in (len(self.inputs), len(self.inputs) + len(self.outputs)):
            raise TypeError(f"Wrong number of arguments for {self.name!r}")
        types = {name: np.dtype(name) for name in TYPES}
        for parameter, one in zip(self.inputs + self.outputs, given, strict=False):
            if isinstance(one, np.ndarray):
                if types.setdefault(parameter.type, one.dtype) != one.dtype:
                    told = f"{parameter.name} is {one.dtype}, not {types[parameter.type]}"
                    raise TypeError(f"{self.name}: Type is mismatched. {told}")
            elif parameter in self.outputs or parameter.raw:
                raise TypeError(f"{self.name}: {parameter.name} must be an array")
        return types

    def _run(self, arrays: list[np.ndarray], types: dict[str, np.dtype], count: int) -> None:
        letters = [f"typedef {TYPES[types[name].name]} {name};" for name in sorted(types.keys() - TYPES)]
        lines = []
        for place, parameter in enumerate(self.inputs + self.outputs):
            kind = ("const " if parameter in self.inputs else "") + TYPES[types[parameter.type].name]
            pointer = f"(({kind} *)arrays[{place}])"
            how = f"*{parameter.name} = {pointer}" if parameter.raw else f"&{parameter.name} = {pointer}[i]"
            lines.append(f"{kind} {how};")
        kernel = _compiled(self.name, SOURCE % ("\n".join(letters), self.preamble, "\n".join(lines), self.operation))
        pointers = (ctypes.c_void_p * len(arrays))(*(one.ctypes.data for one in arrays))
        numbers = np.empty(count, arrays[-1].dtype)
        if "tanh(" in self.operation:
            kernel(pointers, count, numbers.ctypes.data, False)
            np.tanh(numbers, out=numbers)
        kernel(pointers, count, numbers.ctypes.data, True)


DOT = "T x, T y", "T out", "x * y", "a + b", "out = a", "0"


def ReductionKernel(*code: str, options: tuple = ()):
    """The one that the library has: dot products of rows."""
    if code[:-1] != DOT or options != ("--fmad=false",):
        raise NotImplementedError(f"the stand-in for CuPy cannot run the kernel {code}")

    def dots(a, b, axis=None):
        if a.dtype != b.dtype or axis != -1:
            raise TypeError(f"two arrays of one dtype, and the last axis, not {a.dtype}, {b.dtype}, {axis}")
        launched(code[-1])
        return wrap(np.einsum("...n,...n->...", unwrap(a), unwrap(b)))

    return dots


@cache
def _compiled(name: str, source: str):
    """The function ``run`` of this source."""
    library = FOLDER / f"{name}-{sha256(source.encode()).hexdigest()[:16]}.so"
    if not library.exists():
        FOLDER.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            part = Path(folder) / "kernel.so"
            command = [COMPILER, "-x", "c++", "-", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-o", str(part)]
            subprocess.run(command, input=source, text=True, check=True, timeout=120)
            os.replace(part, library)  # whole, although several ranks may compile it at once
    run = ctypes.CDLL(str(library)).run
    run.restype, run.argtypes = None, [ctypes.c_void_p, ctypes.c_longlong, ctypes.c_void_p, ctypes.c_bool]
    return run
