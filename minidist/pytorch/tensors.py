"""NumPy views of torch tensors, which share their memory: what a collective writes is in the tensor."""

import numpy as np
import torch


def view(tensor: torch.Tensor, call: str) -> np.ndarray:
    """The tensor's memory as an array of its dtype, for a call that computes with the numbers.

    Raises:
        TypeError: for a dtype that NumPy does not have. Further errors as for ``raw``.
    """
    _check(tensor, call)
    try:
        return tensor.detach().numpy()
    except TypeError:
        raise TypeError(
            f"{call}: NumPy has no {_name(tensor)}, so minidist cannot compute with it. Reduce in float32: "
            "MixedPrecisionPolicy(reduce_dtype=torch.float32) in FSDP2, tensor.float() elsewhere"
        ) from None


def raw(tensor: torch.Tensor, call: str) -> np.ndarray:
    """The tensor's memory for a call that only moves the numbers: as bytes, (..., itemsize) uint8 by shape and dtype,
    where NumPy lacks the dtype.

    Raises:
        TypeError: for a tensor that is not dense or not on the CPU. ValueError: if it is not contiguous.
    """
    _check(tensor, call)
    try:
        return tensor.detach().numpy()
    except TypeError:
        return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def _check(tensor: torch.Tensor, call: str) -> None:
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        kind = f"a {tensor.layout} tensor on {tensor.device}"
        raise TypeError(
            f"{call}: minidist moves dense tensors on the CPU, but got {kind}; pass tensor.to_dense().cpu()"
        )
    if not tensor.is_contiguous():
        raise ValueError(
            f"{call}: the tensor must be contiguous, but has strides {tensor.stride()}; pass tensor.contiguous(), and "
            "copy the result back if the call writes it"
        )


def _name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
