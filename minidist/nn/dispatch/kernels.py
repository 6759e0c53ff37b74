"""What an operation would ask of a GPU: the FLOPs of its products, and the bytes that it reads and writes.

One kernel for each forward and each backward of an operation: it reads its arguments from memory and writes its output
there. Floating-point numbers count with the bytes of the format in force, also where this library keeps them as
float32. A view moves nothing.

Heads are an axis here for the sake of equal bits. On a GPU one product works on all heads at once, gets the same
activations for all, and adds up the heads' terms itself. So an array that repeats along the heads counts once, and so
do terms of a sum; the two operations that lead into the axis and out of it are no kernels (``Function.kernel``).

Gradients are added to those of earlier micro-batches within the products that make them, as Megatron-LM's
``gradient_accumulation_fusion`` does.
"""

from minidist import trace
from minidist.backend import xp
from minidist.ledger import owner
from minidist.nn.precision.policy import Packed, Policy, repeats


def forward(ctx, output, arguments: list) -> None:
    """Record the forward of an operation."""
    stored = [argument.codes if isinstance(argument, Packed) else argument for argument in arguments]
    inputs = [argument for argument in stored if isinstance(argument, xp.ndarray)]
    ctx.nbytes = sum(memory_bytes(array, ctx.policy) for array in inputs)  # backward reads as much of them again
    if ctx.function.kernel and not is_view(output, inputs):
        written = memory_bytes(output, ctx.policy, terms=not ctx.rounds)
        trace.kernel(ctx.name, ctx.flops, ctx.nbytes + written, ctx.policy.name)


def backward(ctx, gradient, found, flops: int) -> None:
    """Record the backward of an operation, whose arguments' gradients are ``found``."""
    found = found if isinstance(found, tuple) else (found,)
    written = [
        memory_bytes(array, ctx.policy, terms=not getattr(source, "rounds", True))
        for array, source in zip(found, ctx.sources, strict=False)
        if array is not None and source is not None and not is_view(array, [gradient])
    ]
    if ctx.function.kernel and written:
        read = ctx.nbytes + memory_bytes(gradient, ctx.policy)
        trace.kernel(f"{ctx.name}.backward", flops, read + sum(written), ctx.policy.name)


def memory_bytes(array, policy: Policy, terms: bool = False) -> int:
    """The bytes that an array would take in a GPU's memory; ``terms`` says that only its sum over heads would."""
    array = array.codes if isinstance(array, Packed) else array
    elements = array.size // len(array) if array.ndim and len(array) and (terms or repeats(array)) else array.size
    dtype = policy.wire_dtype(xp.float32) if array.dtype.kind == "f" else array.dtype
    return elements * xp.dtype(dtype).itemsize


def is_view(array, others: list) -> bool:
    """Whether an array shows what is in the memory of one of the others."""
    return any(owner(array) is owner(other) for other in others)
