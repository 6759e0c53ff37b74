"""Chapter 8: save memory. Store numbers in 16 or 8 bits instead of 32; recompute activations instead of keeping them.

You may use the imports below, NumPy, and what you write here.

**Numbers.** From the highest bit to the lowest, a floating-point number has a sign bit, its exponent and its mantissa:

    name       exponent  mantissa   infinity and NaN
    float32       8        23       with the highest exponent
    bfloat16      8         7       with the highest exponent
    float16       5        10       with the highest exponent
    e5m2          5         2       with the highest exponent
    e4m3          4         3       no infinity; NaN has all exponent and mantissa bits set

With e bits of exponent, the bias is 2^(e-1) - 1. An exponent E > 0 means 2^(E - bias) * 1.mantissa. An exponent of 0
means 2^(1 - bias) * 0.mantissa: the subnormal numbers and 0. A *code* is a number's bits, read as an unsigned integer.
``array.view(np.uint32)`` is a float32 array read in this way.

A ``Format`` of the library is one of the 16-bit or 8-bit formats:

    format.largest            its largest finite number, a float
    format.round(values)      the nearest numbers of the format, as float32
    format.encode(values)     their codes, uint16 or uint8
    format.decode(codes)      the numbers of these codes, as float32

**Parameters.** A ``Parameter`` has ``data``, an array of float32; ``grad``, an array or None; ``name``; and ``decay``,
whether weight decay applies to it. Once its ``format`` is set to a Format, every array assigned to ``data`` is rounded
to that format and stored as codes in ``stored``.

**Autograd** is the same as in chapter 6. A ``Function`` has the two static methods

    forward(ctx, *arguments)   gets the arrays of tensors and every other argument unchanged; returns the output's array
    backward(ctx, gradient)    returns a gradient for each argument of forward, in order; None if there is none

and is called with ``TheFunction.apply(*arguments)``. ``ctx`` carries data from forward to backward:

    ctx.what = ...                    keeps anything, under a name that the graph does not use; it uses those below, and
                                      began, dtype, exact, flops, freed, function, grad_dtype, load, modes, name,
                                      nbytes, rounds, saved, saved_factors, shape and sources
    ctx.save_for_backward(a, b)       saves arrays, in 16 bits if the precision has 16; backward gets them back as
                                      float32 in ctx.saved_arrays
    ctx.needs_input_grad              for each argument of forward, whether it needs a gradient
    ctx.policy                        the precision of forward

``Tensor(array, requires_grad)`` is a leaf. ``tensor.backward(gradient)`` adds to the ``grad`` of every leaf that the
tensor was computed from. Each leaf sums in the dtype ``leaf.grad_dtype``, float64 by default. Within ``no_grad()`` no
graph is built. Within ``autocast(policy)`` operations compute in that precision.

``minidist check 8`` grades this file, ``minidist check --hint 8.4`` gives a hint. A function or class with the name of
one of minidist's own takes the same arguments, so the library can train with it:

    minidist verify --impl exercises --precision bf16 dp=2 recompute=full pp=2,recompute=full
    minidist verify --impl exercises --precision fp16 dp=2          (your GradScaler; fp8 for your scale_to)
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from math import frexp, inf, sqrt

import numpy as np

from minidist import flops, ledger, trace
from minidist.nn.layers import Parameter
from minidist.nn.precision.formats import Format
from minidist.nn.precision.policy import autocast
from minidist.nn.tensor import Context, Function, Tensor, no_grad

# 8.1  Worksheet: bytes of the model states, and the range of a format
#
#   recipe     weights    gradients   master weights   AdamW's two moments
#   fp32       float32    float32     none             float32
#   mixed      bfloat16   bfloat16    float32          float32
#   megatron   bfloat16   float32     float32          float32
#   minidist   bfloat16   float64     float32          float32
#
# (minidist's gradients are float64 while they are summed over micro-batches and ranks.)
#
# ZeRO stage 1 shards master weights and moments over the N ranks, stage 2 the gradients too, stage 3 the weights too.
# Stage 0 shards nothing. Do not count padding and temporarily gathered arrays.


def bytes_per_parameter(recipe: str, stage: int, ranks: int) -> float:
    """The bytes that one of N ranks holds per parameter of the model.

    Args:
        recipe: one of those above.
        stage: the ZeRO stage, 0 to 3.
        ranks: N.
    """
    # >>> 8.1
    weights, gradients, optimizer = {
        "fp32": (4, 4, 8),
        "mixed": (2, 2, 4 + 8),
        "megatron": (2, 4, 4 + 8),
        "minidist": (2, 8, 4 + 8),
    }[recipe]
    if stage >= 1:
        optimizer /= ranks
    if stage >= 2:
        gradients /= ranks
    if stage >= 3:
        weights /= ranks
    return weights + gradients + optimizer
    # <<<


def largest_number(exponent: int, mantissa: int, infinite: bool) -> float:
    """The largest finite number of a format.

    Args:
        exponent, mantissa: the number of bits of each, at least 2 and 1. Any such format: not only those above.
        infinite: whether the highest exponent is reserved for infinity and NaN. If not, as in e4m3, it is an exponent
            like the others, except that the very last code is NaN.
    """
    # >>> 8.1
    bias = 2 ** (exponent - 1) - 1
    if infinite:
        return (2 - 2.0**-mantissa) * 2.0**bias
    return (2 - 2 * 2.0**-mantissa) * 2.0 ** (bias + 1)
    # <<<


def smallest_number(exponent: int, mantissa: int) -> float:
    """The smallest number above 0, a subnormal."""
    # >>> 8.1
    bias = 2 ** (exponent - 1) - 1
    return 2.0 ** (1 - bias - mantissa)
    # <<<


def spacing(exponent: int, mantissa: int, value: float) -> float:
    """The distance between two adjacent numbers of the format: the largest one up to ``value``, and the next.

    ``value`` is positive and below the format's largest number. For a value below the smallest number, that largest one
    is 0.
    """
    # >>> 8.1
    bias = 2 ** (exponent - 1) - 1
    power = frexp(value)[1] - 1  # 2^power <= value < 2^(power + 1)
    return 2.0 ** (max(power, 1 - bias) - mantissa)
    # <<<


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """8.2  The codes of the nearest bfloat16 numbers.

    Of two equally near numbers, take the one whose last bit is 0. Values overflow to infinity from the midpoint between
    the largest number and the next one that a larger exponent would allow. NaN becomes NaN, with any of its codes. -0.0
    stays -0.0.

    Args:
        values: (n,) float32, C-contiguous; not modified. n may be 0.

    Returns:
        (n,) uint16.

    Cost: a few NumPy operations on all elements at once.
    """
    # >>> 8.2
    bits = values.view(np.uint32)
    last = (bits >> 16) & np.uint32(1)  # the last bit that stays
    codes = (bits + np.uint32(0x7FFF) + last) >> 16  # a tie carries only if the last bit is 1
    return np.where(np.isnan(values), 0x7FC0, codes).astype(np.uint16)
    # <<<


def scale_to(format: Format, values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """8.3  The powers of two that scale numbers before they are rounded to a format with a small range.

    Each is the largest power of two with which no |value * scale| exceeds ``format.largest``.

    Args:
        format: such as e4m3.
        values: float32, of any shape and strides; not modified.
        axes: the axes along which values share a scale. Every index of the other axes has its own: with values of
            (blocks, rows, columns) and axes (1, 2), each block has one; with axes (), each value. Axes count from 0.

    Returns:
        float32, with the axes of ``values`` and length 1 along ``axes``. A scale is 1 if all its values are 0, if it
        has no values, if one is infinite or NaN, or if the power of two does not fit into a float32.

    ``np.frexp(array)`` computes mantissas and exponents: array = mantissa * 2^exponent, 0.5 <= mantissa < 1.
    """
    # >>> 8.3
    greatest = np.abs(values).max(axis=axes, keepdims=True, initial=0).astype(np.float64)
    usable = np.isfinite(greatest) & (greatest > 0)
    _, exponent = np.frexp(format.largest / np.where(usable, greatest, 1))  # the quotient is 2^(exponent - 1) or more
    usable &= exponent - 1 <= 127
    return np.ldexp(np.float32(1), np.where(usable, exponent - 1, 0)).astype(np.float32)
    # <<<


def master_of(parameter: Parameter) -> Parameter:
    """Given: a parameter with the name and the current data of ``parameter``."""
    master = Parameter((0,), decay=parameter.decay)
    master.name, master.data = parameter.name, parameter.data
    ledger.enter("optimizer", master.data)
    return master


class MasterWeights:
    """8.4  The float32 weights that the optimizer updates, while the model computes with copies in fewer bits.

    A step is: backward, ``take_gradients()``, the optimizer's step on ``masters``, ``sync_params()``.

    Args:
        parameters: the model's, in float32; the list remains the caller's. The constructor sets their format.
        format: the format in which the model keeps them.

    Attributes:
        parameters: the same parameters, as a list.
        masters: the master of each parameter, in the same order. A master's format is always None.
    """

    def __init__(self, parameters: Sequence[Parameter], format: Format) -> None:
        """Make the masters from the parameters' float32 values. Then set the parameters' format and round the masters'
        values to it.
        """
        # >>> 8.4
        self.parameters = list(parameters)
        self.masters = [master_of(parameter) for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.format = format
        self.sync_params()
        # <<<

    def take_gradients(self) -> None:
        """Each master gets the gradient of its parameter, the same array in its own dtype; None if it has none."""
        # >>> 8.4
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.grad = parameter.grad
        # <<<

    def sync_params(self) -> None:
        """Each parameter gets the rounded values of its master."""
        # >>> 8.4
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            parameter.data = master.data
        # <<<
        for parameter in self.parameters:
            ledger.enter("parameters", parameter.stored)  # given: for the memory ledger


def identity(value):
    """Given: ``all_max`` on a single rank."""
    return value


class GradScaler:
    """8.5  Loss scaling. The loss, and so all gradients, are multiplied by a scale, so that none is too small for
    float16. The scale falls after an overflow and grows after many good steps.

    A step is: backward from the loss times ``scale``; ``overflow = unscale(...)``; ``update(overflow)``; and, without
    an overflow, the optimizer's step. The constructor is given; you write the two methods.

    Args:
        init_scale: the initial scale, a power of two.
        growth_factor, backoff_factor: multiply the scale after ``growth_interval`` good steps, and after an overflow.
        growth_interval: the scale grows after this many good steps in a row since it last changed. 0: never change it.
        enabled: if False, the scaler does nothing and its scale is 1.

    Attributes:
        skipped: the number of steps with an overflow, also if the scale never changes.
    """

    def __init__(
        self, init_scale: float = 2.0**16, growth_factor: float = 2.0, backoff_factor: float = 0.5,
        growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        self.enabled, self.scale, self.growth_interval = enabled, init_scale if enabled else 1.0, growth_interval
        self.growth_factor, self.backoff_factor = growth_factor, backoff_factor
        self.good_steps = 0  # in a row, since the scale last changed
        self.skipped = 0

    def unscale(self, parameters: Iterable[Parameter], all_max: Callable[[float], float] = identity) -> bool:
        """Divide all gradients by the scale, in place.

        Args:
            parameters: this rank's, possibly none. Those without a gradient (``grad`` None) are skipped. The others are
                float32 or float64, not always contiguous, and may have no elements.
            all_max: ``all_max(number)`` is the maximum over all ranks: a collective. The ranks hold different gradients
                but must make the same decision.

        Returns:
            Whether any gradient on any rank is infinite or NaN. If ``enabled`` is False: False, without touching any
            gradient and without a collective.
        """
        # >>> 8.5
        if not self.enabled:
            return False
        overflow = False
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad /= self.scale
                overflow |= not np.isfinite(parameter.grad).all()
        return all_max(float(overflow)) > 0
        # <<<

    def update(self, overflow: bool) -> None:
        """Count the step, and change the scale if due."""
        # >>> 8.5
        self.skipped += overflow
        if not self.enabled or self.growth_interval == 0:
            return
        self.good_steps = 0 if overflow else self.good_steps + 1
        if overflow:
            self.scale *= self.backoff_factor
        elif self.good_steps == self.growth_interval:
            self.scale *= self.growth_factor
            self.good_steps = 0
        # <<<


def train_in_float16(
    features: np.ndarray, targets: np.ndarray, steps: int, lr: float, max_norm: float = inf, init_scale: float = 2.0**16
) -> tuple[list[float], np.ndarray, int]:
    """8.6  Debugging: linear regression by gradient descent in mixed precision, from a weight of zeros.

    Weights, errors and gradients of errors are float16; the master weight and its gradient are float32. The loss is
    multiplied by a scale, and the gradient is clipped to a norm of at most ``max_norm``. A step in which a gradient
    overflows is skipped, and the scale is halved.

    With an ``init_scale`` of 1 the loss falls, although gradients that are too small for float16 are lost. With 65,536
    none are lost, none overflow, and no step is skipped. And yet the loss hardly falls, however many steps you take.
    Find out why, and fix it: as long as no gradient is lost, the scale must make no difference.

    Args:
        features: (samples, inputs) float16; not modified.
        targets: (samples,) float16; not modified.
        steps, lr: of gradient descent.
        max_norm: the largest norm of the gradient of the mean squared error. ``inf`` for no clipping.
        init_scale: a power of two.

    Returns:
        The loss before each step, the master weight (inputs,) float32, and the number of skipped steps.
    """
    master = np.zeros(features.shape[1], np.float32)
    wide = features.astype(np.float32)
    scale, skipped, losses = init_scale, 0, []
    for _ in range(steps):
        weight = master.astype(np.float16)
        y = (wide @ weight.astype(np.float32)).astype(np.float16)  # (samples,)
        errors = y - targets  # (samples,) float16
        losses.append(float(np.mean(errors.astype(np.float32) ** 2)))
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = np.float32(2 * scale / len(errors)) * errors.astype(np.float32)
            grad_errors = scaled.astype(np.float16)  # (samples,)
            grad = wide.T @ grad_errors.astype(np.float32)  # (inputs,)
        if not np.isfinite(grad).all():
            scale, skipped = scale / 2, skipped + 1
            continue
        # >>> 8.6
        grad /= np.float32(scale)
        norm = sqrt(np.sum(grad.astype(np.float64) ** 2))
        grad *= np.float32(min(1.0, max_norm / (norm + 1e-6)))
        # === given to the learner
        # norm = sqrt(np.sum(grad.astype(np.float64) ** 2))
        # grad *= np.float32(min(1.0, max_norm / (norm + 1e-6)))
        # grad /= np.float32(scale)
        # <<<
        master -= np.float32(lr) * grad
    return losses, master, skipped


@contextmanager
def recomputing():
    """Given: the trace and the FLOP counter record everything within it as recomputation."""
    with trace.span("recompute"), flops.phase("recompute"):
        yield


class Checkpoint(Function):
    """8.7  A function as one node of the graph that saves only the function's inputs.

    Forward runs the function without a graph. Backward runs it again from the same inputs, with a graph, and goes back
    through that graph. So all parameters that the function uses get their gradients there, and the inputs' gradients
    are returned. (This is ``torch.utils.checkpoint`` with ``use_reentrant=True``.)

    Its arguments are the function, then ``others`` as in ``join`` below, then the tensors among the inputs.
    """

    @staticmethod
    def forward(ctx: Context, function: Callable[..., Tensor], others: list, *arrays):
        """Cost: one call of the function. Only its output stays."""
        # >>> 8.7
        ctx.run, ctx.others = function, others
        ctx.save_for_backward(*arrays)
        with no_grad():
            return function(*join([Tensor(array) for array in arrays], others)).data
        # <<<

    @staticmethod
    def backward(ctx: Context, gradient):
        """Cost: one more call of the function, under ``recomputing()`` and in forward's precision, and the backward of
        that call.
        """
        # >>> 8.7
        needed = ctx.needs_input_grad[2:]
        leaves = [Tensor(array, needs) for array, needs in zip(ctx.saved_arrays, needed, strict=True)]
        for leaf in leaves:
            leaf.grad_dtype = leaf.dtype
        with recomputing(), autocast(ctx.policy):
            output = ctx.run(*join(leaves, ctx.others))
        output.backward(gradient)
        return None, None, *(leaf.grad for leaf in leaves)
        # <<<


def join(tensors: list[Tensor], others: list) -> list:
    """Given: the arguments of a function, from its tensors and its other arguments.

    ``others`` is a list of all arguments in order, with the class ``Tensor`` in place of each tensor.
    """
    tensors = iter(tensors)
    return [next(tensors) if other is Tensor else other for other in others]


def checkpoint(function: Callable[..., Tensor], *inputs) -> Tensor:
    """8.7  ``function(*inputs)``, with only the inputs saved for backward: apply your Function.

    The output and all gradients have the same bits as without checkpointing. So if the function uses an input in
    several places, the gradients from there are added in the input's own dtype, as for any computed tensor.

    Args:
        function: returns one tensor, computed from every input that requires a gradient. Called again in backward, it
            computes the same. It may use parameters that are not among the inputs, dropout with named random numbers,
            and other checkpoints.
        inputs: tensors and other values. The same tensor may occur twice; those that require no gradient may have any
            dtype, the others float32 or float64. The function gets the other values unchanged. In place of each tensor
            it gets one with the same data, which in backward requires a gradient if the original does. At least one
            tensor requires a gradient, or the call is under ``no_grad()``. The graph keeps the inputs' arrays, not the
            tensors.
    """
    # >>> 8.7
    others = [Tensor if isinstance(value, Tensor) else value for value in inputs]
    return Checkpoint.apply(function, others, *(value for value in inputs if isinstance(value, Tensor)))
    # <<<


# 8.8  Worksheet: bytes of activations, and FLOPs of recomputation (Korthikanti et al., 2022)
#
# What one layer of a GPT saves for backward in mixed precision, for b samples of s tokens, a width of h and a heads.
# Each of N tensor-parallel ranks holds 1/N of what is split, and a full copy of the rest. Sequence parallelism splits
# the rest too.
#
#   saved by                                   elements   bytes each   split by tensor parallelism
#   the norm before attention                  s b h      2            no
#   the product for q, k and v                 s b h      2            no
#   attention: q, k and v                      3 s b h    2            yes
#   attention: the softmax                     a s s b    2            yes
#   attention: dropout's mask                  a s s b    1            yes
#   attention: the weights after dropout       a s s b    2            yes
#   the product after attention                s b h      2            yes
#   the mask of the dropout after it           s b h      1            no
#   the norm before the MLP                    s b h      2            no
#   the MLP's first product                    s b h      2            no
#   GELU                                       4 s b h    2            yes
#   the MLP's second product                   4 s b h    2            yes
#   the mask of the dropout after it           s b h      1            no
#
# Three modes: "none" keeps all of it; "selective" all rows but those with a s s b elements; "full" only the first row,
# the layer's input. With "selective" and "full" the layer recomputes the rest and holds it while its backward runs.


def layer_bytes(
    samples: int, tokens: int, width: int, heads: int, mode: str, ranks: int = 1, sequence: bool = False
) -> float:
    """The bytes that one layer keeps on one rank from its forward to its backward.

    Args:
        samples, tokens, width, heads: b, s, h and a.
        mode: "none", "selective" or "full".
        ranks: N, the number of tensor-parallel ranks.
        sequence: whether they use sequence parallelism.
    """
    # >>> 8.8
    each = tokens * samples * width
    squared = 5 * heads * tokens**2 * samples / ranks  # with s s
    rest = each / ranks if sequence else each
    if mode == "full":
        return 2 * rest
    kept = 10 * rest + 24 * each / ranks
    return kept + squared if mode == "none" else kept
    # <<<


def activation_bytes(
    samples: int, tokens: int, width: int, heads: int, layers: int, mode: str, ranks: int = 1, sequence: bool = False
) -> float:
    """The peak bytes of a model's layers, at least one, on one rank: when the backward of the last layer runs.

    Count what that layer has kept since its forward once, not twice.
    """
    # >>> 8.8
    sizes = samples, tokens, width, heads
    kept = layer_bytes(*sizes, mode, ranks, sequence)
    return (layers - 1) * kept + layer_bytes(*sizes, "none", ranks, sequence)
    # <<<


def recompute_share(tokens: int, width: int, mode: str) -> float:
    """The FLOPs that recomputation adds, as a share of those of a layer's forward and backward without it.

    Count matrix products only. Per token, a layer's forward takes 12 h h multiplications with weights, in the linear
    layers of attention and MLP, and in attention h multiplications with each of s tokens for the scores and as many for
    the sum of the values. Backward takes twice as many as forward.
    """
    # >>> 8.8
    linear, attention = 12 * width**2, 2 * tokens * width
    again = {"none": 0, "selective": attention, "full": linear + attention}[mode]
    return again / (3 * (linear + attention))
    # <<<
