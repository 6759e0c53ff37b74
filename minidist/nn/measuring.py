"""Measurements of operations: FLOPs (flops.py), the bytes saved for backward (ledger.py), spans (trace.py).

A trace also has the work of an operation on a GPU, which runs one kernel for each forward and each backward: it reads
its arguments from memory and writes its output there. Floating-point numbers count with the bytes of the format in
force, even where this library keeps them as float32. A view moves nothing.

Heads are an axis here so that all layouts have the same bits. On a GPU one product works on all heads at once, gets the
same activations for all, and adds up the heads' terms itself. So an array that repeats along the heads counts once, and
so do terms of a sum; the two operations that lead into the axis and out of it are not kernels (``Function.kernel``).

A ``Function`` declares its cost:

    flops             function of forward's output and arguments: FLOPs of its products; None if it has no products
    gradient_flops    FLOPs of each argument's gradient, as a multiple of ``flops``
    recomputed_flops  the part of these that repeats work of forward, as a multiple of ``flops``
    kernel            whether a GPU would run it by itself, not as a part of the product before or after it

Gradients are added to those of earlier micro-batches within the products that compute them, as Megatron-LM's
``gradient_accumulation_fusion`` does.
"""

from operator import mul

from minidist import flops, ledger, trace
from minidist.backend import xp
from minidist.nn.kernels import repeats
from minidist.nn.modes import Mode, stand
from minidist.nn.precision.policy import Packed, Policy


class Measuring(Mode):
    """Mode that counts an operation's FLOPs, enters what it saves into the ledger, and records it in the trace."""

    def before(self, ctx, arguments):
        if trace.log is not None:
            ctx.began = trace.begin(ctx.name)
        return arguments

    def after(self, ctx, arguments, arrays, output, tensor):
        if ctx.function.flops is not None:
            ctx.flops = ctx.function.flops(output, *arrays)
            flops.add(ctx.flops)
        if trace.log is not None:
            record_forward(ctx, output, arrays)
            trace.end(ctx.name, ctx.began)
        if not callable(ctx.saved):
            for one in ctx.saved:  # (a leaf is in memory anyway)
                array = one.codes if isinstance(one, Packed) else one
                if isinstance(array, xp.ndarray):
                    ledger.enter("activations", array)

    def before_backward(self, ctx, gradient):
        if trace.log is not None:
            ctx.began = trace.begin(f"{ctx.name}.backward")
        return gradient

    def after_backward(self, ctx, gradient, found):
        number = 0
        if ctx.function.flops is not None:
            costs = map(mul, ctx.function.gradient_flops, ctx.needs_input_grad)
            number = int(ctx.flops * sum(costs))
            again = min(number, int(ctx.flops * ctx.function.recomputed_flops))
            flops.add(number - again, "backward")
            if again:
                flops.add(again, "recompute")
        if trace.log is not None:
            record_backward(ctx, gradient, found, number)
            trace.end(f"{ctx.name}.backward", ctx.began)


def record_forward(ctx, output, arguments: list) -> None:
    stored = [argument.codes if isinstance(argument, Packed) else argument for argument in arguments]
    inputs = [argument for argument in stored if isinstance(argument, xp.ndarray)]
    ctx.nbytes = sum(memory_bytes(array, ctx.policy) for array in inputs)  # backward reads as much of them again
    if ctx.function.kernel and not is_view(output, inputs):
        written = memory_bytes(output, ctx.policy, terms=not ctx.rounds)
        trace.kernel(ctx.name, getattr(ctx, "flops", 0), ctx.nbytes + written, ctx.policy.name)


def record_backward(ctx, gradient, found: tuple, number: int) -> None:
    written = [
        memory_bytes(array, ctx.policy, terms=not getattr(source, "rounds", True))
        for array, source in zip(found, ctx.sources, strict=False)
        if array is not None and source is not None and not is_view(array, [gradient])
    ]
    if ctx.function.kernel and written:
        read = getattr(ctx, "nbytes", 0) + memory_bytes(gradient, ctx.policy)
        trace.kernel(f"{ctx.name}.backward", number, read + sum(written), ctx.policy.name)


def memory_bytes(array, policy: Policy, terms: bool = False) -> int:
    """Return the bytes of an array in a GPU's memory; with ``terms``, those of its sum over the heads."""
    array = array.codes if isinstance(array, Packed) else array
    elements = array.size // len(array) if array.ndim and len(array) and (terms or repeats(array)) else array.size
    dtype = policy.wire_dtype(xp.float32) if array.dtype.kind == "f" else array.dtype
    return elements * xp.dtype(dtype).itemsize


def is_view(array, others: list) -> bool:
    """Return whether an array shares the memory of one of the others."""
    return any(ledger.owner(array) is ledger.owner(other) for other in others)


stand(Measuring())
