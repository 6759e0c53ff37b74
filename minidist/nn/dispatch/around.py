"""What happens around every operation, layer by layer. Autograd itself is in tensor.py: it would be complete if each
function here were its one obvious line.

    checks      errors in a Function are reported (checks.py)
    precision   operands, outputs and gradients are rounded to the format of the policy in force (precision/policy.py)
    storage     saved arrays wait for backward as 16 bits, as a leaf, or not at all (memory/saved.py)
    FLOPs       matrix products are counted (flops.py): a Function that has any says how many
    traces      forward and backward of each operation are spans (trace.py), with what they would ask of a GPU
                (kernels.py)

PyTorch's dispatcher does the same with a stack of dispatch keys (autocast, autograd and others), and with callbacks for
its profiler.
"""

from minidist import flops, trace
from minidist.backend import xp
from minidist.nn.dispatch import checks, kernels


def operand(ctx, tensor, position: int):
    """The array of an argument, in the precision that the operation uses."""
    return tensor.factor(ctx.policy) if position < ctx.function.factors else tensor.cast(ctx.policy)


def forward(ctx, arrays: list):
    """The output array of ``forward``, not yet rounded to the policy's format."""
    if not trace.recording():
        return counted_forward(ctx, arrays)
    with trace.span(ctx.name):
        output = counted_forward(ctx, arrays)
        kernels.forward(ctx, output, arrays)
    return output


def counted_forward(ctx, arrays: list):
    """The same, without its trace."""
    function, own = ctx.function, checks.own_values(ctx)
    output = xp.asarray(function.forward(ctx, *arrays))
    checks.check_own_names(ctx, own)
    if function.flops is not None:
        ctx.flops = function.flops(output, *arrays)
        flops.add(ctx.flops)
    return output


def rounded_output(ctx, output):
    """The output as a tensor stores it: in the policy's format, unless it is a term of a later sum."""
    return ctx.policy.round(output) if ctx.rounds else output


def finish(ctx, arguments: list, tensor, output) -> None:
    """Finish an operation: stamp its output, and convert what it saved to the form in which it waits for backward.

    Args:
        arguments: pairs of a tensor and the array that forward got for it.
        tensor, output: the output tensor, and the array that forward returned.
    """
    tensor.made_under, tensor.unrounded = ctx.policy, not ctx.rounds
    if ctx.saved is not None:
        ctx.saved.keep(tensor.shape, [*arguments, (tensor, output)])


def incoming(ctx, gradient):
    """The gradient of an operation's output, in the precision that backward uses."""
    return ctx.policy.round(gradient) if ctx.rounds else gradient


def backward(ctx, gradient) -> list:
    """From the gradient of the output to those of the arguments: None for those that are not needed."""
    costs = zip(ctx.function.gradient_flops, ctx.needs_input_grad, strict=False)
    number = int(ctx.flops * sum(cost for cost, needed in costs if needed))
    again = min(number, int(ctx.flops * ctx.function.recomputed_flops))
    flops.add(number - again, "backward")
    if again:
        flops.add(again, "recompute")
    if trace.recording():
        with trace.span(f"{ctx.name}.backward"):
            found = ctx.function.backward(ctx, gradient)
            kernels.backward(ctx, gradient, found, number)
    else:
        found = ctx.function.backward(ctx, gradient)
    found = found if isinstance(found, tuple) else (found,)
    checks.check_gradients(ctx, found)
    return [one if needed else None for one, needed in zip(found, ctx.needs_input_grad, strict=True)]
