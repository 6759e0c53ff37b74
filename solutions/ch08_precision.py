"""Chapter 8: memory for compute. Numbers of 16 and 8 bits instead of 32, and activations that are computed twice
instead of kept.

You may use what is imported below, NumPy, and what you write here.

**Numbers.** A floating-point number has one sign bit, then its exponent, then its mantissa, in this order from the
highest bit to the lowest:

    name       exponent  mantissa   infinity and NaN
    float32       8        23       with the highest exponent
    bfloat16      8         7       with the highest exponent
    float16       5        10       with the highest exponent
    e5m2          5         2       with the highest exponent
    e4m3          4         3       no infinity; NaN has all bits set, in exponent and mantissa

With e bits of exponent, the bias is 2^(e-1) - 1. An exponent of E > 0 stands for 2^(E - bias) * 1.mantissa, one of 0
for 2^(1 - bias) * 0.mantissa: those are the subnormal numbers, and 0. A *code* is the bits of a number, read as an
unsigned integer. ``array.view(np.uint32)`` reads the bits of a float32 array so.

A ``Format`` of the library is one of these smaller formats:

    format.largest            its largest finite number, a float
    format.round(values)      the nearest numbers that it has, as float32
    format.encode(values)     their codes, uint16 or uint8
    format.decode(codes)      the numbers of these codes, as float32

**Parameters.** A ``Parameter`` has ``data``, an array of float32; ``grad``, an array or None; ``name``; and ``decay``,
whether weight decay applies to it. If a Format is assigned to its ``format``, every array that is assigned to ``data``
from then on is rounded to that, and stored as codes, in ``stored``.

**Autograd** is the same as in chapter 6. A ``Function`` has the two static methods

    forward(ctx, *arguments)   gets the arrays of tensors, and all else as it is; returns the output's array
    backward(ctx, gradient)    returns a gradient for each argument of forward, in order; None for what has none

and is called with ``TheFunction.apply(*arguments)``. ``ctx`` goes from the one to the other:

    ctx.what = ...                    keeps anything, under a name that the graph does not need: it needs those below,
                                      function, name, own, policy, shape, dtype, sources, saved, flops and freed
    ctx.save_for_backward(a, b)       keeps arrays, in the 16 bits of the precision, if it has any; backward finds them,
                                      as float32, in ctx.saved_arrays
    ctx.needs_input_grad              for each argument of forward, whether a gradient is to come for it
    ctx.policy                        the precision that was in force in forward

``Tensor(array, requires_grad)`` is a leaf. ``tensor.backward(gradient)`` adds to the ``grad`` of every leaf behind that
tensor, and each leaf takes its sum in the dtype ``leaf.grad_dtype``, which is float64 unless you say otherwise. Within
``no_grad()`` no graph is built. Within ``autocast(policy)`` what is computed obeys that precision.

``minidist check 8`` judges, ``minidist check --hint 8.4`` helps. Whatever has the name of one of minidist's own pieces
has its arguments too, so the library can train on it:

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

# 8.1  Worksheet: bytes of the model's states, and what a format can hold
#
#   recipe     weights    gradients   master weights   AdamW's two moments
#   fp32       float32    float32     none             float32
#   mixed      bfloat16   bfloat16    float32          float32
#   megatron   bfloat16   float32     float32          float32
#   minidist   bfloat16   float64     float32          float32
#
# (minidist's gradients are float64 while they are summed over micro-batches and ranks.)
#
# Of ZeRO, stage 1 shares master weights and moments out over the N ranks, stage 2 the gradients too, stage 3 the
# weights too. Stage 0 shares nothing. Padding, and what is gathered for a moment, are not counted.


def bytes_per_parameter(recipe: str, stage: int, ranks: int) -> float:
    """The bytes that one of N ranks holds, on average for each parameter of the model.

    Args:
        recipe: one of those above.
        stage: of ZeRO, 0 to 3.
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
        exponent, mantissa: bits of each.
        infinite: whether the highest exponent is for infinity and NaN alone. If not, it is one like the others, but for
            the very last code, which is NaN: so it is with e4m3.
    """
    # >>> 8.1
    bias = 2 ** (exponent - 1) - 1
    if infinite:
        return (2 - 2.0**-mantissa) * 2.0**bias
    return (2 - 2 * 2.0**-mantissa) * 2.0 ** (bias + 1)
    # <<<


def smallest_number(exponent: int, mantissa: int) -> float:
    """The smallest number above 0. It is a subnormal one."""
    # >>> 8.1
    bias = 2 ** (exponent - 1) - 1
    return 2.0 ** (1 - bias - mantissa)
    # <<<


def spacing(exponent: int, mantissa: int, value: float) -> float:
    """How far it is from the greatest number of the format that is not above ``value`` to the next greater one.

    ``value`` is positive and below the largest number of the format.
    """
    # >>> 8.1
    bias = 2 ** (exponent - 1) - 1
    power = frexp(value)[1] - 1  # 2^power <= value < 2^(power + 1)
    return 2.0 ** (max(power, 1 - bias) - mantissa)
    # <<<


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """8.2  The codes of the nearest bfloat16 numbers.

    Of two that are equally near, the one whose last bit is 0. What is too large becomes infinity, namely from the
    middle on between the largest number and the one that would come next, had the exponent one step more. NaN becomes
    NaN, any of its codes. -0.0 stays -0.0.

    Args:
        values: (n,) float32, C-contiguous; not changed. There may be none.

    Returns:
        (n,) uint16.

    Cost: a few operations of NumPy on all elements at once.
    """
    # >>> 8.2
    bits = values.view(np.uint32)
    even = (bits >> 16) & np.uint32(1)
    codes = (bits + np.uint32(0x7FFF) + even) >> 16  # half of the last place, less 1 if it is even already
    return np.where(np.isnan(values), 0x7FC0, codes).astype(np.uint16)
    # <<<


def scale_to(format: Format, values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """8.3  The powers of two by which numbers are multiplied before they are rounded to a format with little range.

    Each is the greatest power of two with which no |value * scale| is above ``format.largest``.

    Args:
        format: such as e4m3.
        values: float32, of any shape; not changed.
        axes: over which there is one scale. The other axes have one for each of their indices: with values of
            (blocks, rows, columns) and the axes (1, 2) each block has its own.

    Returns:
        float32, of as many axes as ``values``, of length 1 along ``axes``. A scale is 1 where there is nothing to go
        by: where all its values are 0, or there are none, or one is infinite or NaN, or where a float32 cannot hold it.

    ``np.frexp(array)`` finds mantissas and exponents: array = mantissa * 2^exponent, 0.5 <= mantissa < 1.
    """
    # >>> 8.3
    greatest = np.abs(values).max(axis=axes, keepdims=True, initial=0).astype(np.float64)
    usable = np.isfinite(greatest) & (greatest > 0)
    _, exponent = np.frexp(format.largest / np.where(usable, greatest, 1))  # the quotient is 2^(exponent - 1) or more
    usable &= exponent - 1 <= 127
    return np.ldexp(np.float32(1), np.where(usable, exponent - 1, 0)).astype(np.float32)
    # <<<


def master_of(parameter: Parameter) -> Parameter:
    """Given: a parameter of the same name, whose data is the data that ``parameter`` has now."""
    master = Parameter((0,), decay=parameter.decay)
    master.name, master.data = parameter.name, parameter.data
    ledger.hold("optimizer", master.data)
    return master


class MasterWeights:
    """8.4  What the optimizer trains in float32, while the model computes with copies in fewer bits.

    A step is: backward, ``take_gradients()``, the optimizer's step on ``masters``, ``sync_params()``.

    Args:
        parameters: of the model, float32 so far. From now on they have the format.
        format: in which the model keeps them.

    Attributes:
        parameters: those, as a list.
        masters: for each of them its master, in the same order. A master always has a format of None.
    """

    def __init__(self, parameters: Sequence[Parameter], format: Format) -> None:
        """Make the masters, with the float32 values that the parameters have; then give the parameters their format,
        and have them hold the masters' values, rounded to it.
        """
        # >>> 8.4
        self.parameters = list(parameters)
        self.masters = [master_of(parameter) for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.format = format
        self.sync_params()
        # <<<

    def take_gradients(self) -> None:
        """Each master gets the gradient of its parameter, the very array; None where that has none."""
        # >>> 8.4
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.grad = parameter.grad
        # <<<

    def sync_params(self) -> None:
        """Each parameter gets the values of its master, rounded."""
        # >>> 8.4
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            parameter.data = master.data
        # <<<
        for parameter in self.parameters:
            ledger.hold("parameters", parameter.stored)  # given: for the account of the memory


def identity(value):
    """Given: what joins a number with those of other ranks, where there are none."""
    return value


class GradScaler:
    """8.5  Loss scaling: the loss, and so all gradients, are multiplied by a scale, so that none is too small for
    float16; and the scale is changed when it turns out to be too large, or could be larger.

    A step is: backward from the loss times ``scale``; ``overflow = unscale(...)``; ``update(overflow)``; and if there
    was no overflow, the optimizer's step. The code below is given, you write the two methods.

    Args:
        init_scale: to begin with, a power of two.
        growth_factor, backoff_factor: by which the scale is multiplied after many good steps, and after an overflow.
        growth_interval: how many good steps in a row, since the scale last changed, make it grow. 0: it never changes.
        enabled: False for one that does nothing. Its scale is 1.

    Attributes:
        skipped: how many steps had an overflow, in all; also where the scale never changes.
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
            parameters: of this rank. Those whose ``grad`` is None are passed over. There may be none.
            all_max: ``all_max(number)`` is the greatest of the numbers that all ranks give it: a collective. The ranks
                hold different gradients, and all have to decide alike.

        Returns:
            Whether any gradient of any rank is infinite or NaN. With ``enabled`` False: False, with nothing done, and
            no collective.
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
        """Count the step, and change the scale if it is time to."""
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


@contextmanager
def recomputing():
    """Given: what is computed within it is entered as recomputation in the trace, and in the count of FLOPs."""
    with trace.span("recompute"), flops.phase("recompute"):
        yield


class Checkpoint(Function):
    """8.6  A whole function as one node of the graph, which keeps nothing but the function's inputs.

    Forward runs it without a graph. Backward runs it again from the same inputs, now with a graph, and walks that. So
    all parameters that the function uses get their gradients there, as ever, and the inputs' are handed on.
    (``torch.utils.checkpoint`` with ``use_reentrant=True``.)

    Its arguments are the function, then ``others`` as ``join`` below has them, then the tensors among the inputs.
    """

    @staticmethod
    def forward(ctx: Context, function: Callable[..., Tensor], others: list, *arrays):
        """Cost: one call of the function. Of what it computes, the output alone is left."""
        # >>> 8.6
        ctx.run, ctx.others = function, others
        ctx.save_for_backward(*arrays)
        with no_grad():
            return function(*join([Tensor(array) for array in arrays], others)).data
        # <<<

    @staticmethod
    def backward(ctx: Context, gradient):
        """Cost: one more call of the function, under ``recomputing()`` and in the precision that was in force in
        forward; and the backward pass of that.
        """
        # >>> 8.6
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
    """Given: the arguments of a function, from the tensors among them and the others.

    ``others`` is a list of all arguments in their order, with ``Tensor`` itself, the class, where a tensor stands.
    """
    tensors = iter(tensors)
    return [next(tensors) if other is Tensor else other for other in others]


def checkpoint(function: Callable[..., Tensor], *inputs) -> Tensor:
    """8.6  ``function(*inputs)``, of which only the inputs are kept for backward: apply your Function.

    The output and all gradients have the bits that they would have without it. So if the function uses an input in
    several places, the gradients from there are added in the input's own dtype, as those of whatever was computed are.

    Args:
        function: returns one tensor. Called again in backward it computes the same. It may use parameters that are not
            among the inputs, and dropout whose random numbers go by name.
        inputs: tensors, and anything else: those are handed on as they are. Tensors that the function gets in their
            place have the same data, and in backward they require a gradient if these do. At least one of them does, or
            there is ``no_grad()`` around. The graph keeps the inputs' arrays, and not the tensors.
    """
    # >>> 8.6
    others = [Tensor if isinstance(value, Tensor) else value for value in inputs]
    return Checkpoint.apply(function, others, *(value for value in inputs if isinstance(value, Tensor)))
    # <<<


# 8.7  Worksheet: bytes of activations, and FLOPs of recomputation (Korthikanti et al., 2022)
#
# What one layer of a GPT keeps for backward in mixed precision, for b samples of s tokens, a width of h and a heads. On
# N tensor-parallel ranks, what is split lies in equal parts on all of them, and the rest is whole on each. With
# sequence parallelism the rest is split too.
#
#   who keeps it                               elements   bytes each   split by tensor parallelism
#   the norm before attention                  s b h      2            no
#   the product that makes q, k and v          s b h      2            no
#   attention: q, k and v                      3 s b h    2            yes
#   attention: the softmax                     a s s b    2            yes
#   attention: which weights dropout keeps     a s s b    1            yes
#   attention: the weights after dropout       a s s b    2            yes
#   the product behind attention               s b h      2            yes
#   which of its outputs dropout keeps         s b h      1            no
#   the norm before the MLP                    s b h      2            no
#   the MLP's first product                    s b h      2            no
#   GELU                                       4 s b h    2            yes
#   the MLP's second product                   4 s b h    2            yes
#   which of its outputs dropout keeps         s b h      1            no
#
# Three modes: "none" keeps all of it; "selective" all but what has a s s b elements; "full" what the first line has
# alone, which is the layer's input. Where less is kept, the layer has all of it back while its backward runs.


def layer_bytes(
    samples: int, tokens: int, width: int, heads: int, mode: str, ranks: int = 1, sequence: bool = False
) -> float:
    """What one layer keeps on one rank from its forward to its backward.

    Args:
        samples, tokens, width, heads: b, s, h and a.
        mode: "none", "selective" or "full".
        ranks: N, the tensor-parallel ranks.
        sequence: whether there is sequence parallelism among them.
    """
    # >>> 8.7
    each = tokens * samples * width
    squared = 5 * heads * tokens**2 * samples / ranks  # with s s
    whole = each / ranks if sequence else each
    if mode == "full":
        return 2 * whole
    kept = 10 * whole + 24 * each / ranks
    return kept + squared if mode == "none" else kept
    # <<<


def activation_bytes(
    samples: int, tokens: int, width: int, heads: int, layers: int, mode: str, ranks: int = 1, sequence: bool = False
) -> float:
    """The most that the layers of a model, at least one, hold at once on a rank: when the backward of the last one
    runs. What that layer has kept all the time is part of what it has then, and not held twice.
    """
    # >>> 8.7
    sizes = samples, tokens, width, heads
    kept = layer_bytes(*sizes, mode, ranks, sequence)
    return (layers - 1) * kept + layer_bytes(*sizes, "none", ranks, sequence)
    # <<<


def recompute_share(tokens: int, width: int, mode: str) -> float:
    """How many FLOPs recomputation adds, as a share of those that forward and backward of a layer take without it.

    Products of matrices are counted, and nothing else. In forward those of a layer are, for each token: 12 h h
    multiplications with weights, in attention's and the MLP's linear layers; and in attention h multiplications with
    each of s tokens for the scores, and as many for the sum of the values. Backward takes twice as many as forward.
    """
    # >>> 8.7
    linear, attention = 12 * width**2, 2 * tokens * width
    again = {"none": 0, "selective": attention, "full": linear + attention}[mode]
    return again / (3 * (linear + attention))
    # <<<


def train_in_float16(
    features: np.ndarray, targets: np.ndarray, steps: int, lr: float, max_norm: float = inf, init_scale: float = 2.0**16
) -> tuple[list[float], np.ndarray, int]:
    """8.8  Debugging: linear regression by gradient descent in mixed precision, from a weight of zeros.

    Weights, errors and gradients of errors are float16; the master weight, and its gradient, are float32. The loss is
    multiplied by a scale, the gradient is clipped to a norm of ``max_norm`` at most, and a step in which a gradient
    overflows is left out, and the scale halved.

    With an ``init_scale`` of 1 it learns, although gradients that are too small for float16 are lost. With 65,536 none
    of them is. None overflows either, and no step is left out. And yet the loss hardly falls, however long one waits.
    Find out why, and mend it: as long as no gradient is lost, the scale must not make a difference.

    Args:
        features: (samples, inputs) float16.
        targets: (samples,) float16.
        steps, lr: of gradient descent.
        max_norm: of the gradient of the mean of the squared errors. ``inf`` for no clipping.
        init_scale: a power of two.

    Returns:
        The loss before each step, the master weight (inputs,), and how many steps were left out.
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
        # >>> 8.8
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
