"""Compiles the library's kernels for GPUs, without one: by CuPy's own source for them, and NVIDIA's compiler, NVRTC.

    python tests/gpu/standin/compile.py

It prints a line for each kernel, and fails if one does not compile, or if the compiler has joined a product and a sum,
which would round once where NumPy rounds twice. Needs CuPy and NVRTC with CUDA's headers
(``pip install nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12``).
"""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
DECORATOR = "\n@fused("  # in the files that have kernels
ARCHITECTURES = ("80", "90")  # of an A100 and an H100
NDARRAY, INDEXER = 1, 2  # CuPy's kinds of arguments (cupy/_core/_kernel.pxd)


def kernels():
    """All of the library's fused kernels, each once, and those for many arrays: inputs, outputs, operation, name,
    preamble; and for how many axes each is compiled."""
    from minidist.nn.kernels import IN_C, for_all

    every = fused()
    yield from ((*kernel, axes) for kernel in every for axes in (1, 2))
    for kernel in every:
        inputs, outputs = ([one.split()[-2] for one in named.split(",")] for named in kernel[:2])
        if "raw" not in kernel[0] and {*inputs, *outputs} <= {"T", *IN_C}:  # each input is an array's, or a number
            chars = ["d" if kind == "float64" else "f" for kind in (*inputs, *outputs)]
            yield *for_all(kernel, tuple(chars)), 1
            yield *for_all(kernel, ("",) * len(inputs) + tuple(chars[len(inputs) :])), 1


def fused():
    """All of the library's fused kernels, each once."""
    every = sorted((ROOT / "minidist").rglob("*.py"))
    files = (file for file in every if DECORATOR in file.read_text(encoding="utf-8"))
    modules = (import_module(".".join(file.relative_to(ROOT).with_suffix("").parts)) for file in files)
    return dict.fromkeys(one.in_c for module in modules for one in vars(module).values() if hasattr(one, "in_c"))


def source(cupy, inputs: str, outputs: str, operation: str, name: str, preamble: str, axes: int) -> str:
    """Return what CuPy would compile for arrays: contiguous ones of one axis, or strided ones of several.

    Open types are float32, or that of fp8's codes."""
    from cupy._core import _carray, _kernel

    kernel = cupy.ElementwiseKernel(inputs, outputs, operation, name, preamble=preamble)
    types = [one.split()[-2] for one in f"{inputs},{outputs}".strip(",").split(",")]
    dtypes = tuple(np.dtype({"T": "float32", "C": "uint8"}.get(one, one)) for one in types)
    *_, type_map = kernel._decide_params_type(dtypes[: kernel.nin], dtypes[kernel.nin :])
    arguments = [_kernel._ArgInfo(NDARRAY, cupy.ndarray, dtype, axes, axes == 1, True) for dtype in dtypes]
    arguments.append(_kernel._ArgInfo(INDEXER, _carray.Indexer, None, axes, True, True))
    return _kernel._get_elementwise_kernel_code(tuple(arguments), type_map, kernel.params, operation, name, preamble)


def main() -> None:
    import cupy
    from cupy.cuda import compiler

    from minidist.nn.kernels import OPTIONS

    include = Path(cupy.__file__).parent / "_core" / "include"
    headers = [f"-I{folder}" for folder in (include, *Path(np.__file__).parents[1].glob("nvidia/*/include"))]
    failed = 0
    for *kernel, name, preamble, axes in kernels():
        text = source(cupy, *kernel, name, preamble, axes).replace("tanh(", "(")  # which has multiply-adds of its own
        for architecture in ARCHITECTURES:
            options = *OPTIONS, "-ftz=true", "--std=c++17", *headers, f"-arch=compute_{architecture}"
            program = compiler._NVRTCProgram("#include <cupy/carray.cuh>\n" + text, f"{name}.cu", method="ptx")
            compiled, _ = program.compile(options)
            assembly = compiled.decode() if isinstance(compiled, bytes) else compiled
            joined = assembly.count("fma.")
            print(f"{name}, {axes} axes, compute_{architecture}: {joined} fused multiply-adds")
            failed += joined > 0
    sys.exit(failed)


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))  # or the stand-in would be found
    main()
