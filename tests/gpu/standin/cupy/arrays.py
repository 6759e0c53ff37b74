"""A device array that is NumPy's inside and lets nobody see it: what crosses to the host must be asked for."""

import json
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from weakref import WeakValueDictionary, ref

import numpy as np

from cupy import kernel
from cupy.bits import check_factor, check_sum
from cupy.device.devices import Device, current_device
from cupy.device.streams import before_use, get_current_stream
from cupy.traffic import crossing, launched

SIGNATURES = json.loads((Path(__file__).parent / "signatures.json").read_text(encoding="utf-8"))
KINDS = "?bBhHiIlLqQefdFD"  # the dtypes that CuPy has
IMPLICIT = "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array."


class ndarray:
    """An array on a device that does not exist. Its methods take the arguments that CuPy's take, and no others."""

    __slots__ = ("__weakref__", "_device", "_memory", "_stream", "base")
    # _memory: NumPy's array; base: the array whose memory a view shows, or None; _stream: the pointer of the stream
    # that it was allocated on
    __hash__ = None

    def __init__(self, *args, **kwargs) -> None:
        raise TypeError("make arrays with cupy.empty, cupy.zeros or cupy.asarray")

    shape = property(lambda self: self._memory.shape)
    dtype = property(lambda self: self._memory.dtype)
    ndim = property(lambda self: self._memory.ndim)
    size = property(lambda self: self._memory.size)
    nbytes = property(lambda self: self._memory.nbytes)
    itemsize = property(lambda self: self._memory.itemsize)
    strides = property(lambda self: self._memory.strides)
    T = property(lambda self: wrap(self._memory.T))
    flags = property(lambda self: Flags(self._memory))
    data = property(lambda self: Pointer(self))
    device = property(lambda self: Device(self._device))

    @property
    def _host(self) -> np.ndarray:
        """Its inside, to compute with."""
        before_use(self._memory, self._device)
        return self._memory

    # What crosses to the host

    def get(self, stream=None, order="C", out=None, blocking=True) -> np.ndarray:
        crossing("to host")
        with self.device:  # as CuPy does here, but nowhere else
            if out is None:
                return np.array(self._host, order=order)
            out[...] = self._host
            return out

    def set(self, arr, stream=None) -> None:
        if type(arr) is not np.ndarray:
            raise TypeError(f"only numpy.ndarray can be set to cupy.ndarray, got {type(arr).__name__}")
        if arr.shape != self.shape or arr.dtype != self.dtype:
            raise ValueError(f"{arr.dtype} {arr.shape} cannot be set to {self.dtype} {self.shape}")
        if not (self.flags.c_contiguous or self.flags.f_contiguous):
            raise RuntimeError("Cannot set to non-contiguous array")
        crossing("to device")
        self._host[...] = arr

    def fill(self, value) -> None:
        """Zeros of either sign become bytes of 0 in contiguous memory."""
        value = unwrap(value)
        self._host[...] = 0 if self.flags.c_contiguous and value == 0 else value

    def _number(self):
        crossing("scalar")
        return self._host.item()

    def item(self):
        return self._number()

    def __bool__(self) -> bool:
        return bool(self._number())

    def __int__(self) -> int:
        return int(self._number())

    def __float__(self) -> float:
        return float(self._number())

    def tolist(self):
        crossing("to host")
        return self._host.tolist()

    def tobytes(self, order="C") -> bytes:
        crossing("to host")
        return self._host.tobytes(order)

    def __repr__(self) -> str:
        crossing("to host")
        return repr(self._host)

    def __format__(self, how: str) -> str:
        return format(self._number(), how) if self.ndim == 0 else repr(self)

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

    def __iter__(self):
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d array")
        return (self[place] for place in range(len(self)))

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


class Flags:
    def __init__(self, host: np.ndarray) -> None:
        self.c_contiguous, self.f_contiguous = host.flags.c_contiguous, host.flags.f_contiguous
        self.owndata = host.flags.owndata


asked: deque = deque(maxlen=64)  # references to the arrays whose memory was last asked for its address


class Pointer:
    """``array.data``: the address of the first element, and in ``mem`` that of the memory that holds it."""

    def __init__(self, array: ndarray) -> None:
        memory = array if array.base is None else array.base
        self.ptr, begin = (one._memory.__array_interface__["data"][0] for one in (array, memory))
        self.mem = SimpleNamespace(ptr=begin)
        asked.append(ref(memory))


def wrap(value):
    """What NumPy returned, as CuPy would: a scalar is an array without axes."""
    if isinstance(value, tuple | list):
        return type(value)(map(wrap, value))
    if not isinstance(value, np.ndarray | np.generic):
        return value
    if value.dtype.char not in KINDS:
        raise TypeError(f"Unsupported dtype {value.dtype}")
    host = root = np.asarray(value)
    while isinstance(root.base, np.ndarray):
        root = root.base
    owner = owners.get(id(root))
    if owner is not None and root is host:  # NumPy returned its argument
        return owner
    array = object.__new__(ndarray)
    array._memory = host
    if root is host:
        array.base, owners[id(root)] = None, array
        array._device, array._stream = current_device(), get_current_stream().ptr
    else:
        array.base = wrap(root) if owner is None else owner
        array._device, array._stream = array.base._device, array.base._stream
    return array


def unwrap(value):
    """A device array's inside; a number is what it is. Nothing else takes part in a computation on the device."""
    if isinstance(value, ndarray):
        return value._host
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type <class 'numpy.ndarray'>: {value.dtype} {value.shape} is in host memory")
    if isinstance(value, tuple | list):
        return type(value)(map(unwrap, value))
    return value


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


VIEWS = ("ravel", "reshape", "squeeze", "swapaxes", "transpose", "view")  # nothing is computed


def _method(name: str, parameters: str):
    check = checked(f"ndarray.{name}", parameters)

    def method(self, *args, **kwargs):
        check((self, *args), kwargs)
        if name == "nonzero":
            crossing("size")
        inside = self._memory if name in VIEWS else self._host
        found = getattr(inside, name)(*map(unwrap, args), **{key: unwrap(one) for key, one in kwargs.items()})
        check_sum(name, inside, found, args[0] if args else kwargs.get("axis"))
        if not shows(found, inside):
            launched(name)
        return wrap(found)

    method.__name__ = name
    return method


def _elementwise(name: str, *inputs, out=None):
    return kernel.launch(getattr(np, name), *map(unwrap, inputs), out=out)


def _binary(name: str):
    return lambda self, other: wrap(_elementwise(name, self, other)) if isinstance(other, OPERANDS) else NotImplemented


def _reflected(name: str):
    return lambda self, other: wrap(_elementwise(name, other, self)) if isinstance(other, OPERANDS) else NotImplemented


def _in_place(name: str):
    def method(self, other):
        _elementwise(name, self, other, out=self._host)
        return self

    return method


def _unary(name: str):
    return lambda self: wrap(_elementwise(name, self))


def _matmul(self, other):
    if not isinstance(other, OPERANDS):
        return NotImplemented
    launched("matmul")
    product = wrap(self._host @ unwrap(other))
    check_factor(self)
    check_factor(other)
    return product


OPERANDS = (ndarray, np.ndarray, bool, int, float, complex, np.generic)  # an array of NumPy's is refused by unwrap
ARITHMETIC = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "left_shift", "rshift": "right_shift",
}  # fmt: skip
COMPARISONS = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
}  # fmt: skip
UNARY = {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}

for _name, _parameters in SIGNATURES["methods"].items():
    if _name not in vars(ndarray):
        setattr(ndarray, _name, _method(_name, _parameters))
for _name, _ufunc in ARITHMETIC.items():
    setattr(ndarray, f"__{_name}__", _binary(_ufunc))
    setattr(ndarray, f"__r{_name}__", _reflected(_ufunc))
    setattr(ndarray, f"__i{_name}__", _in_place(_ufunc))
for _name, _ufunc in COMPARISONS.items():
    setattr(ndarray, f"__{_name}__", _binary(_ufunc))
for _name, _ufunc in UNARY.items():
    setattr(ndarray, f"__{_name}__", _unary(_ufunc))
ndarray.__matmul__ = _matmul
