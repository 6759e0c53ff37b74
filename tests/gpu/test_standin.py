"""The stand-in for CuPy is as strict as CuPy, or stricter, and takes the arguments that CuPy takes."""

import json
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from minidist.course.answers import ROOT

HERE = ROOT / "tests" / "gpu" / "standin"
LIMIT = 300  # seconds


@pytest.mark.parametrize(
    "implicit",
    [
        lambda cp, x: np.asarray(x),
        lambda cp, x: np.exp(x),
        lambda cp, x: np.sum(x),
        lambda cp, x: np.add(x, x),
        lambda cp, x: memoryview(x),
        lambda cp, x: x + np.ones(3),
        lambda cp, x: np.ones(3) + x,
        lambda cp, x: x.__iadd__(np.ones(3)),
        lambda cp, x: cp.add(x, np.ones(3)),
        lambda cp, x: cp.exp(x, out=np.ones(3)),
        lambda cp, x: cp.stack([x, np.ones(3)]),
        lambda cp, x: cp.where(x > 0, x, np.ones(3)),
        lambda cp, x: x[np.array([0])],
        lambda cp, x: x[[0, 1]],
        lambda cp, x: x.__setitem__(slice(None), np.ones(3)),
        lambda cp, x: cp.asarray(["text"]),
    ],
)
def test_what_would_cross_unnoticed_is_refused(standin, implicit):
    with pytest.raises(TypeError):
        implicit(standin, standin.asarray(np.arange(3.0)))


@pytest.mark.parametrize(
    "unknown",
    [
        lambda cp, x: x.max(initial=0),
        lambda cp, x: cp.sum(x, where=x > 0),
        lambda cp, x: cp.exp(x, where=x > 0),
        lambda cp, x: cp.zeros(3, like=x),
        lambda cp, x: x.astype("f4", subok=True, device="cpu"),
    ],
)
def test_arguments_that_cupy_lacks_are_refused(standin, unknown):
    with pytest.raises(TypeError, match=r"argument|cupy's"):
        unknown(standin, standin.asarray(np.arange(3.0)))


def test_names_that_cupy_lacks_are_missing(standin):
    for name in ("errstate", "float128", "str_", "vectorize", "add_docstring"):
        assert not hasattr(standin, name), name
    assert not hasattr(standin.empty(3).flags, "writeable")


def test_every_stop_is_counted(standin):
    x = standin.asarray(np.arange(3.0))
    assert float(x[1]) == 1 and bool(x.any()) and x.sum().item() == 3
    x.get()
    x[x > 0]
    x[x > 0] = 5  # CuPy counts the elements here, too
    x.set(np.ones(3))
    assert {kind: count for (kind, _), count in standin.crossings.items()} == {
        "to device": 2,
        "scalar": 3,
        "to host": 1,
        "size": 2,
    }


def test_numbers_are_arrays_without_axes_and_elements_are_views(standin):
    x = standin.zeros(3, "f4")
    for number in (x.sum(), x.max(), x[0], standin.sum(x), x[0] + 1, np.float32(2) * x[0]):
        assert isinstance(number, standin.ndarray) and number.shape == () and number.dtype == np.float32
    x[0] += 5
    element = x[1]
    element += 7
    assert x.tolist() == [5, 7, 0]


def test_add_at_has_an_order_of_its_own(standin):
    """As atomic additions have: a sum that depends on the order shows."""
    target, values = standin.zeros(1, "f4"), np.array([1, 1e8, -1e8], "f4")
    standin.add.at(target, standin.asarray([0, 0, 0]), standin.asarray(values))
    expected = np.zeros(1, "f4")
    np.add.at(expected, [0, 0, 0], values)
    assert target.tolist() != expected.tolist()


@pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed")
def test_cupy_takes_these_arguments():
    """CuPy can be imported without a GPU."""
    code = (
        "import json, sys; sys.path.append(sys.argv[1]); import cupy, record; print(json.dumps(record.recorded(cupy)))"
    )
    command = [sys.executable, "-c", code, str(HERE)]
    recorded = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT).stdout)
    ours = json.loads((HERE / "cupy" / "signatures.json").read_text(encoding="utf-8"))
    if recorded["version"].split(".")[0] != ours["version"].split(".")[0]:
        pytest.skip(f"CuPy {recorded['version']} is installed; the signatures are those of {ours['version']}")
    assert recorded | {"version": None} == ours | {"version": None}
