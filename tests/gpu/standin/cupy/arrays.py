"""A device array that is NumPy's inside and lets nobody see it: what crosses to the host must be asked for."""

import json
from collections import deque
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from weakref import WeakValueDictionary, ref

import numpy as np

from cupy import kernel
from cupy.device.devices import Device, current_device
from cupy.device.streams import before_use, get_current_stream
from cupy.traffic import crossing, launched

SIGNATURES = json.loads((Path(__file__).parent / "signatures.json").read_text(encoding="utf-8"))
KINDS = "?bBhHiIlLqQefdFD"  # the dtypes that CuPy has
IMPLICIT = "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array."


class ndarray:
    """An array on a device that does not exist. Its methods take the arguments that CuPy's take, and no others."""

    __slots__ = "__weakref__", "_device", "_memory", "_stream", "base"
    # _memory is NumPy's array, _stream the pointer of the stream of its allocation, base what a view shows, or None
    __hash__ = None

    T = property(lambda self: wrap(self._memory.T))
    data = property(lambda self: pointer(self))
    device = property(lambda self: Device(self._device))

    @property
    def flags(self) -> SimpleNamespace:
        return SimpleNamespace(**{name: getattr(self._memory.flags, name) for name in ("c_contiguous", "f_contiguous")})

    @property
    def _host(self) -> np.ndarray:
        """Return the NumPy array inside, to compute with."""
        before_use(self._memory, self._device)
        return self._memory

    def get(self, stream=None, order="C", out=None, blocking=True) -> np.ndarray:
        crossing("to host")
        with self.device:  # as CuPy does here, but nowhere else
            return np.array(self._host, order=order)

    def fill(self, value) -> None:
        """Zeros of either sign become bytes of 0 in contiguous memory."""
        value = unwrap(value)
        self._host[...] = 0 if self.flags.c_contiguous and value == 0 else value

    # What NumPy would do by itself

    def __reduce__(self):
        raise TypeError("a device array is sent to another process: send cupy.asnumpy of it")

    def __array__(self, *args, **kwargs):
        raise TypeError(IMPLICIT)

    def __array_function__(self, function, *args, **kwargs):
        raise TypeError(f"numpy.{function.__name__} of a device array: use cupy.{function.__name__}")

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        """NumPy asks here when one of its own scalars stands on the left: ``np.float32(2) * array``."""
        if method != "__call__" or kwargs or not any(isinstance(one, np.generic) for one in inputs):
            raise TypeError(f"numpy.{ufunc.__name__} of a device array: use cupy.{ufunc.__name__}")
        return wrap(kernel.launch(ufunc, *map(unwrap, inputs)))

    # Views and indices

    def view(self, dtype=None) -> "ndarray":
        if dtype is not None and self._memory.__array_interface__["data"][0] % np.dtype(dtype).itemsize:
            raise TypeError(f"a kernel that reads {np.dtype(dtype)} at an odd address ends all work on a GPU")
        return wrap(self._memory.view() if dtype is None else self._memory.view(dtype))

    def __len__(self) -> int:
        return len(self._memory)

    def __getitem__(self, index):
        index = _index(index)
        computes = any(isinstance(part, np.ndarray) for part in index)
        if computes:
            launched("getitem")
        return wrap((self._host if computes else self._memory)[index])

    def __setitem__(self, index, value) -> None:
        launched("setitem")
        place = _index(index)
        if isinstance(value, ndarray) or any(isinstance(part, np.ndarray) for part in place):
            self._host[place] = unwrap(value)
        else:
            wrap(self._memory[place]).fill(value)


owners: WeakValueDictionary[int, ndarray] = WeakValueDictionary()  # id of NumPy's array -> the device array with it
asked: deque = deque(maxlen=64)  # references to the arrays whose memory was last asked for its address


def pointer(array: ndarray) -> SimpleNamespace:
    """``array.data``: the address of the first element, and in ``mem`` that of the memory that holds it."""
    memory = array if array.base is None else array.base
    asked.append(ref(memory))
    return SimpleNamespace(ptr=address_of(array), mem=SimpleNamespace(ptr=address_of(memory)))


def address_of(array: ndarray) -> int:
    return array._memory.__array_interface__["data"][0]


def owner_of(start: int, stop: int) -> ndarray | None:
    """The living array that owns these bytes."""
    for array in (reference() for reference in chain(list(asked)[::-1], owners.valuerefs())):
        if array is not None and address_of(array) <= start and stop <= address_of(array) + array._memory.nbytes:
            return array
    return None


def wrap(value):
    """Return NumPy's result as CuPy would: a scalar becomes an array without axes."""
    if isinstance(value, tuple | list):
        return type(value)(map(wrap, value))
    if not isinstance(value, np.ndarray | np.generic):
        return value
    if value.dtype.char not in KINDS:
        raise TypeError(f"Unsupported dtype {value.dtype}")
    host = root = np.asarray(value)
    while isinstance(root.base, np.ndarray):
        root = root.base
    if root is host and (owner := owners.get(id(root))) is not None:  # NumPy returned its argument
        return owner
    array = object.__new__(ndarray)
    array._memory, array.base = host, None if root is host else wrap(root)
    if root is host:
        owners[id(root)] = array
        array._device, array._stream = current_device(), get_current_stream().ptr
    else:
        array._device, array._stream = array.base._device, array.base._stream
    return array


def unwrap(value):
    """A device array's inside; a number is what it is. Nothing else takes part in a computation on the device."""
    if isinstance(value, ndarray):
        return value._host
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type <class 'numpy.ndarray'>: {value.dtype} {value.shape} is in host memory")
    if isinstance(value, dict):
        return {key: unwrap(one) for key, one in value.items()}
    return type(value)(map(unwrap, value)) if isinstance(value, tuple | list) else value


def shows(found, *arguments) -> bool:
    """Whether what NumPy returned is in an argument's memory, or no array at all: no kernel wrote it."""
    if isinstance(found, tuple | list):
        return all(shows(one, *arguments) for one in found)
    if not isinstance(found, np.ndarray):
        return not isinstance(found, np.generic)
    return any(isinstance(one, np.ndarray) and np.may_share_memory(found, one) for one in arguments)


def _index(index):
    """An index for the inside. A mask makes the host wait for the number of its elements, also where it is written."""
    parts = []
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, list | np.ndarray):
            raise TypeError(f"an index in host memory ({type(part).__name__}): copy it to the device first")
        if isinstance(part, ndarray):
            if part.dtype == bool:
                crossing("size")
            part = part._host
        parts.append(part)
    if not any(isinstance(part, np.ndarray) or part is Ellipsis for part in parts):
        parts.append(Ellipsis)  # so that one element is a view, too
    return tuple(parts)


def checked(name: str, parameters: str):
    """Raises TypeError for arguments that CuPy does not take."""
    takes = eval(f"lambda {parameters}: None")  # of our own file

    def check(args: tuple, kwargs: dict) -> None:
        try:
            takes(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"cupy's {name}({parameters}): {str(error).removeprefix('<lambda>() ')}") from None

    return check


VIEWS = "ravel", "reshape", "squeeze", "swapaxes", "transpose", "view"  # methods that compute nothing
NO_KERNEL = "empty", "empty_like", "shape"
CROSSINGS = {"item": "scalar", "tolist": "to host"} | dict.fromkeys(("nonzero", "flatnonzero", "bincount"), "size")


def function(name: str, parameters: str, module=np):
    """A function, or, of the module ``np.ndarray``, a method: NumPy's, of what is inside of its arguments."""
    check, compute = checked(name, parameters), getattr(module, name)

    def call(*args, **kwargs):
        check(args, kwargs)
        if name in CROSSINGS:
            crossing(CROSSINGS[name])
        inside = (args[0]._memory, *unwrap(args[1:])) if name in VIEWS else unwrap(args)
        found = compute(*inside, **unwrap(kwargs))
        kernel.check_sum(name, found, inside, kwargs)
        if name not in NO_KERNEL and not shows(found, *inside):
            launched(name)
        return kwargs["out"] if kwargs.get("out") is not None else wrap(found)

    return call


def _operator(name: str, kind: str):
    """``kind``: "r" for the right operand's, "i" for the one in place."""

    def method(self, *others):
        if not all(isinstance(other, OPERANDS) for other in others):
            return NotImplemented
        if kind == "i":
            kernel.launch(getattr(np, name), self._host, *unwrap(others), out=self._host)
            return self
        operands = (*others, self) if kind == "r" else (self, *others)
        return wrap(kernel.launch(getattr(np, name), *unwrap(operands)))

    return method


def _matmul(self, other):
    launched("matmul")
    product = wrap(self._host @ unwrap(other))
    kernel.check_factor(self)
    kernel.check_factor(other)
    return product


OPERANDS = (ndarray, np.ndarray, bool, int, float, complex, np.generic)  # an array of NumPy's is refused by unwrap
ARITHMETIC = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "left_shift", "rshift": "right_shift",
}  # fmt: skip
OTHERS = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
    "neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert",
}  # fmt: skip

for _name in ("shape", "dtype", "ndim", "size", "nbytes", "itemsize", "strides"):
    setattr(ndarray, _name, property(lambda self, name=_name: getattr(self._memory, name)))
for _name in SIGNATURES["methods"].keys() - vars(ndarray):
    setattr(ndarray, _name, function(_name, SIGNATURES["methods"][_name], np.ndarray))
for _name, _ufunc in (ARITHMETIC | OTHERS).items():
    for _kind in ("", "r", "i") if _name in ARITHMETIC else ("",):
        setattr(ndarray, f"__{_kind}{_name}__", _operator(_ufunc, _kind))
for _type in (bool, int, float):
    setattr(ndarray, f"__{_type.__name__}__", lambda self, type=_type: type(self.item()))
ndarray.__matmul__ = _matmul
