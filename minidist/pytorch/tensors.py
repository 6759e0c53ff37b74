"""NumPy views of torch tensors. They share the tensor's memory, so a collective that writes a view writes the tensor.

``tensor.numpy()`` would do, but it forbids torch to resize the tensor's storage from then on, and FSDP frees its
parameters by resizing them to nothing.
"""

import numpy as np
import torch

NAMES = "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
DTYPES = {getattr(torch, name): np.dtype(name) for name in NAMES.split()}  # those that NumPy has


def view(tensor: torch.Tensor, call: str) -> np.ndarray:
    """Return the tensor's memory as an array of its shape and dtype, for a call that computes with the numbers.

    Raises:
        TypeError: for a dtype that NumPy does not have. Further errors as for ``raw``.
    """
    if tensor.dtype not in DTYPES:
        raise TypeError(
            f"{call}: NumPy has no {str(tensor.dtype).removeprefix('torch.')}, so minidist cannot compute with it. "
            "Reduce in float32: MixedPrecisionPolicy(reduce_dtype=torch.float32) in FSDP2, tensor.float() elsewhere"
        )
    return raw(tensor, call)


def raw(tensor: torch.Tensor, call: str) -> np.ndarray:
    """Return the tensor's memory for a call that only moves the numbers.

    Returns:
        An array of the tensor's shape and dtype; (bytes,) uint8 where NumPy lacks the dtype.

    Raises:
        TypeError: for a tensor that is not dense or not on the CPU. ValueError: if it is not contiguous.
    """
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        kind = f"a {tensor.layout} tensor on {tensor.device}"
        raise TypeError(
            f"{call}: minidist moves dense tensors on the CPU, but got {kind}; pass tensor.to_dense().cpu()"
        )
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        raise ValueError(
            f"{call}: the tensor must be contiguous, but is a view with strides {tensor.stride()}; pass "
            "tensor.resolve_conj().resolve_neg().contiguous(), and copy the result back if the call writes it"
        )
    known = tensor.dtype in DTYPES
    shape = tuple(tensor.shape) if known else (tensor.numel() * tensor.element_size(),)
    dtype = np.dtype(DTYPES[tensor.dtype] if known else np.uint8)
    return np.asarray(_Memory(tensor, shape, dtype, call)) if tensor.numel() else np.empty(shape, dtype)


class _Memory:
    """A tensor's memory as NumPy's array interface describes it. The array holds this object, and so the tensor."""

    def __init__(self, tensor: torch.Tensor, shape: tuple[int, ...], dtype: np.dtype, call: str) -> None:
        address = tensor.data_ptr()
        if address == 0:
            raise TypeError(f"{call}: a {type(tensor).__name__} has no memory of its own; pass the tensor inside it")
        self._tensor = tensor
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str, "data": (address, False)}
