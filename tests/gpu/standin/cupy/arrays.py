"""A device array that is NumPy's inside and lets nobody see it: what crosses to the host must be asked for."""

import inspect
import json
import operator
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from weakref import WeakValueDictionary, ref

import numpy as np

from cupy.traffic import crossing

SIGNATURES = json.loads((Path(__file__).parent / "signatures.json").read_text(encoding="utf-8"))
KINDS = "?bBhHiIlLqQefdFD"  # the dtypes that CuPy has
IMPLICIT = "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array."


class ndarray:
    """An array on a device that does not exist. Its methods take the arguments that CuPy's take, and no others."""

    __slots__ = ("__weakref__", "_host", "base")  # base: the array whose memory a view shows, or None
    __hash__ = None

    def __init__(self, *args, **kwargs) -> None:
        raise TypeError("make arrays with cupy.empty, cupy.zeros or cupy.asarray")

    shape = property(lambda self: self._host.shape)
    dtype = property(lambda self: self._host.dtype)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    nbytes = property(lambda self: self._host.nbytes)
    itemsize = property(lambda self: self._host.itemsize)
    strides = property(lambda self: self._host.strides)
    T = property(lambda self: wrap(self._host.T))
    flags = property(lambda self: Flags(self._host))
    data = property(lambda self: Pointer(self))
    device = property(lambda self: Device(0))

    # What crosses to the host

    def get(self, stream=None, order="C", out=None, blocking=True) -> np.ndarray:
        crossing("to host")
        if out is None:
            return np.array(self._host, order=order)
        out[...] = self._host
        return out

    def set(self, arr, stream=None) -> None:
        if type(arr) is not np.ndarray:
            raise TypeError(f"only numpy.ndarray can be set to cupy.ndarray, got {type(arr).__name__}")
        if arr.shape != self.shape or arr.dtype != self.dtype:
            raise ValueError(f"{arr.dtype} {arr.shape} cannot be set to {self.dtype} {self.shape}")
        crossing("to device")
        self._host[...] = arr

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

    def __array__(self, *args, **kwargs):
        raise TypeError(IMPLICIT)

    def __array_function__(self, function, *args, **kwargs):
        raise TypeError(f"numpy.{function.__name__} of a device array: use cupy.{function.__name__}")

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        """NumPy asks here when one of its own scalars stands on the left: ``np.float32(2) * array``."""
        if method != "__call__" or kwargs or not any(isinstance(one, np.generic) for one in inputs):
            raise TypeError(f"numpy.{ufunc.__name__} of a device array: use cupy.{ufunc.__name__}")
        return wrap(ufunc(*map(unwrap, inputs)))

    # Views and indices

    def __len__(self) -> int:
        return len(self._host)

    def __iter__(self):
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d array")
        return (self[place] for place in range(len(self)))

    def __getitem__(self, index):
        return wrap(self._host[_index(index, waits=True)])

    def __setitem__(self, index, value) -> None:
        array = isinstance(value, ndarray)
        self._host[_index(index, waits=array and value.ndim > 0)] = unwrap(value)


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
        self.ptr, begin = (one._host.__array_interface__["data"][0] for one in (array, memory))
        self.mem = SimpleNamespace(ptr=begin)
        asked.append(ref(memory))


class Device:
    """``with Device(0):`` makes a device the current one."""

    def __init__(self, device: int | None = None) -> None:
        self.id = device or 0

    def use(self) -> None:
        pass

    def synchronize(self) -> None:
        crossing("size")

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *_) -> None:
        pass


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
    array._host = host
    if root is host:
        array.base, owners[id(root)] = None, array
    else:
        array.base = wrap(root) if owner is None else owner
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


def _index(index, waits: bool):
    """An index for the inside. A mask makes the host wait for the number of its elements."""
    parts = []
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, list | np.ndarray):
            raise TypeError(f"an index in host memory ({type(part).__name__}): copy it to the device first")
        if isinstance(part, ndarray):
            if part.dtype == bool and waits:
                crossing("size")
            part = part._host
        parts.append(part)
    if not any(isinstance(part, np.ndarray) or part is Ellipsis for part in parts):
        parts.append(Ellipsis)  # so that one element is a view, too
    return tuple(parts)


def checked(name: str, parameters: str):
    """Raises TypeError for arguments that CuPy does not take."""
    signature = inspect.signature(eval(f"lambda {parameters}: None"))  # of our own file

    def check(args: tuple, kwargs: dict) -> None:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"cupy's {name}({parameters}): {error}") from None

    return check


def _method(name: str, parameters: str):
    check = checked(f"ndarray.{name}", parameters)

    def method(self, *args, **kwargs):
        check((self, *args), kwargs)
        if name == "nonzero":
            crossing("size")
        return wrap(getattr(self._host, name)(*map(unwrap, args), **{key: unwrap(one) for key, one in kwargs.items()}))

    method.__name__ = name
    return method


def _binary(name: str):
    function = getattr(operator, name)
    return lambda self, other: (
        wrap(function(self._host, unwrap(other))) if isinstance(other, OPERANDS) else NotImplemented
    )


def _reflected(name: str):
    function = getattr(operator, name)
    return lambda self, other: (
        wrap(function(unwrap(other), self._host)) if isinstance(other, OPERANDS) else NotImplemented
    )


def _in_place(name: str):
    function = getattr(operator, name)

    def method(self, other):
        function(self._host, unwrap(other))
        return self

    return method


def _unary(name: str):
    function = getattr(operator, name)
    return lambda self: wrap(function(self._host))


OPERANDS = (ndarray, np.ndarray, bool, int, float, complex, np.generic)  # an array of NumPy's is refused by unwrap
ARITHMETIC = "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift"

for _name, _parameters in SIGNATURES["methods"].items():
    if _name not in vars(ndarray):
        setattr(ndarray, _name, _method(_name, _parameters))
for _name in ARITHMETIC:
    setattr(ndarray, f"__{_name}__", _binary(f"__{_name}__"))
    setattr(ndarray, f"__r{_name}__", _reflected(f"__{_name}__"))
    if _name != "matmul":
        setattr(ndarray, f"__i{_name}__", _in_place(f"__i{_name}__"))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(ndarray, f"__{_name}__", _binary(_name))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(ndarray, f"__{_name}__", _unary(_name))
