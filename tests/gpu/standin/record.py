"""Writes down what the installed CuPy offers: ``python tests/gpu/standin/record.py`` rewrites cupy/signatures.json.

CuPy can be imported without a GPU. Its own signatures decide what the stand-in accepts.
"""

import inspect
import json
import re
import sys
from pathlib import Path

FILE = Path(__file__).parent / "cupy" / "signatures.json"

# what a program like this one could want; a name that is missing can be added
FUNCTIONS = """
    all allclose any arange argmax argmin argsort array array_equal array_split asarray ascontiguousarray asnumpy
    bincount broadcast_to can_cast clip concatenate copy copyto count_nonzero cumsum diff dot empty empty_like
    expand_dims eye flatnonzero flip full full_like isclose linspace matmul max may_share_memory mean min moveaxis
    nan_to_num ndim nonzero ones ones_like outer packbits partition prod ravel repeat reshape result_type roll
    searchsorted shape shares_memory sort split squeeze stack sum swapaxes take take_along_axis tensordot tile
    transpose tri tril triu unique unpackbits where zeros zeros_like
"""
METHODS = """
    all any argmax argmin argsort astype clip copy cumsum dot fill flatten get item max mean min nonzero prod put ravel
    repeat reshape round set sort squeeze std sum swapaxes take tobytes tolist transpose var view
"""


def recorded(cupy) -> dict:
    """The version, the parameters of each function and method as text, and the names of all ufuncs."""
    return {
        "version": cupy.__version__,
        "functions": {name: parameters(getattr(cupy, name)) for name in FUNCTIONS.split()},
        "methods": {name: parameters(getattr(cupy.ndarray, name)) for name in METHODS.split()},
        "ufuncs": sorted(name for name in dir(cupy) if isinstance(getattr(cupy, name), cupy.ufunc)),
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
