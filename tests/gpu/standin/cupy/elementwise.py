"""``cupy.ElementwiseKernel``: C for one element, compiled for the host by the system's C++ compiler, and run on all.

The C is the one that a GPU would run. ``exp`` and ``tanh`` are NumPy's, called back from it, so that a kernel may be
held against lines of NumPy to the last bit; subnormal numbers are zeros, as with CuPy's ``-ftz=true``. Without a
compiler the stand-in cannot run a kernel.
"""

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from hashlib import sha256
from pathlib import Path

import numpy as np

from cupy.arrays import unwrap, wrap
from cupy.traffic import launched

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
FOLDER = Path(__file__).parent / "__pycache__"  # what is compiled here is found again by the next process
TYPES = {
    "bool": "bool", "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned int",
    "uint64": "unsigned long long", "int8": "signed char", "int16": "short", "int32": "int", "int64": "long long",
    "float32": "float", "float64": "double",
}  # fmt: skip


def _callback(name: str, kind, dtype):
    """NumPy's function of one number, callable from C."""
    function = getattr(np, name)
    return ctypes.CFUNCTYPE(kind, kind)(lambda value: function(dtype(value)))


CALLBACKS = [
    _callback(name, kind, dtype)
    for name in ("exp", "tanh")
    for kind, dtype in ((ctypes.c_float, np.float32), (ctypes.c_double, np.float64))
]
SOURCE = """
#include <algorithm>
#include <cmath>
#include <cstring>
#ifdef __SSE__
#include <xmmintrin.h>
static unsigned int flush() { unsigned int mode = _mm_getcsr(); _mm_setcsr(mode | 0x8040); return mode; }
static void restore(unsigned int mode) { _mm_setcsr(mode); }
#else
static unsigned int flush() { return 0; }
static void restore(unsigned int) {}
#endif
using namespace std;
#define __device__ static inline
static inline unsigned int __float_as_uint(float value) { unsigned int bits; memcpy(&bits, &value, 4); return bits; }
static inline float __uint_as_float(unsigned int bits) { float value; memcpy(&value, &bits, 4); return value; }
static float (*exp_of_float)(float), (*tanh_of_float)(float);
static double (*exp_of_double)(double), (*tanh_of_double)(double);
static inline float numpys_exp(float value) { return exp_of_float(value); }
static inline double numpys_exp(double value) { return exp_of_double(value); }
static inline float numpys_tanh(float value) { return tanh_of_float(value); }
static inline double numpys_tanh(double value) { return tanh_of_double(value); }
#define exp numpys_exp
#define tanh numpys_tanh
struct Indexer { long long count; long long size() const { return count; } };
%s
%s
extern "C" void run(void **arrays, long long count, void **functions) {
    exp_of_float = (float (*)(float))functions[0]; exp_of_double = (double (*)(double))functions[1];
    tanh_of_float = (float (*)(float))functions[2]; tanh_of_double = (double (*)(double))functions[3];
    Indexer _ind = {count};
    unsigned int mode = flush();
    for (long long i = 0; i < count; ++i) {
%s
        {
%s;
        }
    }
    restore(mode);
}
"""


class Parameter:
    """``raw T x``: whether it is raw, the name of a type or a capital letter for one, and a name."""

    def __init__(self, text: str) -> None:
        *raw, self.type, self.name = text.split()
        if raw not in ([], ["raw"]):
            raise ValueError(f"{text!r} is no parameter of a kernel")
        self.raw = bool(raw)
        self.open = len(self.type) == 1
        if not self.open and self.type not in TYPES:
            raise TypeError(f"the type of {text!r} is none of {', '.join(TYPES)}, nor a capital letter")


class ElementwiseKernel:
    """As CuPy's: called with the inputs, or with the inputs and the outputs."""

    def __init__(self, in_params, out_params, operation, name="kernel", reduce_dims=True, preamble="",
                 no_return=False, return_tuple=False, options=()) -> None:  # fmt: skip
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ValueError(f'Invalid kernel name: "{name}"')
        self.inputs, self.outputs = ([Parameter(one) for one in text.split(",")] for text in (in_params, out_params))
        if "i" in [one.name for one in self.inputs + self.outputs]:
            raise ValueError("Can not use 'i' as a parameter name")
        if "--fmad=false" not in options:
            raise ValueError("without --fmad=false a GPU rounds a * b + c once, and NumPy twice")
        self.operation, self.name, self.preamble, self.no_return = operation, name, preamble, no_return

    def __call__(self, *arguments):
        if len(arguments) not in (len(self.inputs), len(self.inputs) + len(self.outputs)):
            raise TypeError(f"Wrong number of arguments for {self.name!r}")
        given = [unwrap(one) for one in arguments]
        for parameter, one in zip(self.inputs + self.outputs, given, strict=False):
            if not isinstance(one, np.ndarray) and (parameter in self.outputs or parameter.raw):
                raise TypeError(f"{self.name}: {parameter.name} must be an array")
        types = self._types(given)
        inputs = given[: len(self.inputs)]
        taking = [one for one, parameter in zip(inputs, self.inputs, strict=True) if not parameter.raw]
        outputs = given[len(self.inputs) :]
        shape = outputs[0].shape if outputs else np.broadcast_shapes(*(np.shape(one) for one in taking))
        if outputs and np.broadcast_shapes(shape, *(np.shape(one) for one in taking + outputs)) != shape:
            raise ValueError(f"{self.name}: out shape is mismatched")
        results = outputs or [np.empty(shape, types[one.type]) for one in self.outputs]
        laid_out = [
            np.ascontiguousarray(one if parameter.raw else np.broadcast_to(_as(one, types[parameter.type]), shape))
            for one, parameter in zip(inputs, self.inputs, strict=True)
        ]
        written = [np.ascontiguousarray(one) for one in results]  # read, too
        self._run([*laid_out, *written], types, int(np.prod(shape)))
        for result, one in zip(results, written, strict=True):
            if result is not one:
                result[...] = one
        launched(self.name)
        if self.no_return:
            return None
        found = tuple(arguments[len(self.inputs) :]) or tuple(map(wrap, results))
        return found[0] if len(found) == 1 else found

    def _types(self, given: list) -> dict[str, np.dtype]:
        """What each type is: those of the arrays, which must fit."""
        types = {name: np.dtype(name) for name in TYPES}
        for parameter, one in zip(self.inputs + self.outputs, given, strict=False):
            if isinstance(one, np.ndarray) and types.setdefault(parameter.type, one.dtype) != one.dtype:
                raise TypeError(
                    f"{self.name}: Type is mismatched. {parameter.name} {one.dtype} {types[parameter.type]}"
                )
        missing = {one.type for one in self.inputs + self.outputs} - set(types)
        if missing:
            raise TypeError(f"{self.name}: no array decides the type {missing}")
        return types

    def _run(self, arrays: list[np.ndarray], types: dict[str, np.dtype], count: int) -> None:
        parameters = self.inputs + self.outputs
        letters = [
            f"typedef {TYPES[types[name].name]} {name};" for name in sorted({p.type for p in parameters if p.open})
        ]
        lines = []
        for place, parameter in enumerate(parameters):
            kind = TYPES[types[parameter.type].name]
            const = "const " if parameter in self.inputs else ""
            pointer = f"(({const}{kind} *)arrays[{place}])"
            lines.append(
                f"{const}{kind} *{parameter.name} = {pointer};"
                if parameter.raw
                else f"{const}{kind} &{parameter.name} = {pointer}[i];"
            )
        source = SOURCE % ("\n".join(letters), self.preamble, "\n".join(lines), self.operation)
        functions = [ctypes.cast(one, ctypes.c_void_p) for one in CALLBACKS]
        pointers = [ctypes.c_void_p(one.ctypes.data) for one in arrays]
        _compiled(self.name, source)(
            (ctypes.c_void_p * len(pointers))(*pointers), count, (ctypes.c_void_p * len(functions))(*functions)
        )


def _as(one, dtype: np.dtype):
    """An array as it is; a number as CuPy passes it, converted to the parameter's type."""
    return one if isinstance(one, np.ndarray) else np.asarray(one).astype(dtype)


_loaded: dict[str, object] = {}


def _compiled(name: str, source: str):
    """The function ``run`` of this source."""
    if source not in _loaded:
        if COMPILER is None:
            raise RuntimeError("the stand-in for CuPy needs a C++ compiler to run a kernel")
        library = FOLDER / f"{name}-{sha256(source.encode()).hexdigest()[:16]}.so"
        if not library.exists():
            FOLDER.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
                part = Path(folder) / "kernel.so"
                command = [COMPILER, "-x", "c++", "-", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-o", str(part)]
                subprocess.run(command, input=source, text=True, check=True, timeout=120)
                os.replace(part, library)  # whole, although several ranks may compile it at once
        run = ctypes.CDLL(str(library)).run
        run.restype, run.argtypes = None, [ctypes.c_void_p, ctypes.c_longlong, ctypes.c_void_p]
        _loaded[source] = run
    return _loaded[source]
