"""Writes down what the installed CuPy offers: ``python tests/gpu/standin/record.py`` rewrites cupy/signatures.json.

CuPy can be imported without a GPU. Its own signatures decide what the stand-in accepts.
"""

import inspect
import json
import re
import sys
from pathlib import Path

FILE = Path(__file__).parent / "cupy" / "signatures.json"

# what the library and its tests use; a name that is missing can be added
FUNCTIONS = """
    all arange argsort array asarray ascontiguousarray bincount broadcast_to concatenate copy copyto cumsum empty
    empty_like eye flatnonzero full matmul max min ones packbits partition shape sort split stack sum
    take_along_axis tril unpackbits where zeros zeros_like
"""
METHODS = """
    all any argmax argmin astype clip copy cumsum dot fill flatten get item max mean min nonzero prod put
    ravel repeat reshape round sort squeeze sum swapaxes take tolist transpose view
"""


def recorded(cupy) -> dict:
    """The version, the parameters of each function and method as text, and the names of all ufuncs, as text."""
    return {
        "version": cupy.__version__,
        "functions": {name: parameters(getattr(cupy, name)) for name in FUNCTIONS.split()},
        "methods": {name: parameters(getattr(cupy.ndarray, name)) for name in METHODS.split()},
        "ufuncs": " ".join(sorted(name for name in dir(cupy) if isinstance(getattr(cupy, name), cupy.ufunc))),
    }


def parameters(function) -> str:
    """``a, axis=None, out=None``: without annotations. Cython's methods tell theirs in the first line of their doc."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        line = re.match(r"_ndarray_base\.\w+\((.*)\)", function.__doc__.splitlines()[0].partition(" ->")[0])
        return re.sub(r"\b(Py_ssize_t|_ndarray_base|int) (?=\w)", "", line[1])
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    text = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    return text[1:-1].replace("<class 'float'>", "float")


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))  # or the stand-in would be found
    import cupy

    FILE.write_text(json.dumps(recorded(cupy), indent=1) + "\n", encoding="utf-8")
