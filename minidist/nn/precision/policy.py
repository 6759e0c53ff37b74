"""Mixed precision: which numbers are kept in 16 bits, and which are not.

The usual recipe (Micikevicius et al., "Mixed Precision Training", 2018; Megatron-LM's ``--bf16`` and ``--fp16``):

    16 bits     the parameters that the model computes with, activations, gradients of activations;
                hence the arrays saved for backward, and messages
    float32     the master copy of the parameters, AdamW's moments, the gradients of parameters
                inside an operation: sums of products, softmax, the norms' statistics, the loss
    float64     sums over micro-batches and ranks (``reduce_dtype``)

A ``Policy`` states this for one precision. Those of 16 bits are modes, which ``autocast`` puts around every operation:
its output is rounded to the format, and so is the gradient that comes back to it. Between operations an array is
float32 and holds only values of the format. It is stored in 16 bits where memory or traffic counts: when it is saved
for backward, sent, or kept as a parameter. A GPU multiplies the 16-bit codes themselves (``Policy.matmul``).

This differs from ``torch.autocast``, which leaves LayerNorm's output and the residual stream in float32. Here they have
16 bits, as in Megatron-LM.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import Any

from minidist.backend import ArrayModule, address, xp
from minidist.nn import exact, kernels, modes
from minidist.nn.kernels import repeats
from minidist.nn.modes import Mode, within
from minidist.nn.precision.formats import BFLOAT16, E4M3, E5M2, FLOAT16, Format, round_scaled
from minidist.nn.tensor import Context, Tensor


@dataclass(frozen=True)
class Policy:
    """Rules of one precision for rounding and products. This class is for float32: it rounds nothing and is no mode.

    Attributes:
        name: str, name of the precision.
        compute: Format of parameters, activations and their gradients; None for float32.
        scales_loss: bool, whether gradients may be too small for the format, so that the loss must be scaled.
        kernels: module of sums and products: nn/kernels.py, or nn/exact.py with the same names.
        functions: module of exp, exp2, tanh and log: ``xp``, or nn/exact.py.
    """

    name: str
    compute: Format | None = None
    scales_loss: bool = False
    kernels: ModuleType = kernels
    functions: ArrayModule | ModuleType = xp

    def round(self, values):
        """Return float32 values, rounded as the output of an operation. Other dtypes stay as they are."""
        return values

    def round_operand(self, values):
        """Return a factor of a linear layer's product, (H, ...), as ``matmul`` takes it."""
        return values

    round_grad_operand = round_operand  # the gradient (H, ...) that a linear layer multiplies by its factors
    factor = round_operand  # an array of numbers of the format
    rounded_factor = round_operand  # any array, rounded

    matmul = staticmethod(kernels.matmul_each)  # takes the results of the methods above; its own is not rounded
    mix = matmul  # multiplies attention weights (H, ..., n, k) and values (H, ..., k, m)

    def packs(self, values) -> bool:
        """Return whether an array is stored in 16 bits."""
        return False

    # Messages between ranks hold numbers that are rounded already, so nothing is lost.

    def wire_dtype(self, dtype):
        """Return the dtype of the message that an array of this dtype becomes."""
        return dtype

    def outgoing(self, values):
        """Return the message that an array becomes, C-contiguous."""
        return xp.ascontiguousarray(values)

    def incoming(self, message):
        """Return the array that became this message: float32 for packed numbers, otherwise the message."""
        return message

    incoming_factor = incoming  # the same, as ``matmul`` takes it


@dataclass(frozen=True)
class SixteenBits(Policy, Mode):
    """Policy that rounds the arguments, outputs and gradients of operations to a 16-bit format, and stores them in it.

    A tensor records the policy that it was made under, and whether it was left unrounded, as a term of a sum.

    Attributes:
        operand: Format, fp8 only, of the two factors of a linear layer's products in forward, each with its own scale
            for each head: a scale for a whole tensor would depend on how it is split over ranks.
        grad_operand: Format, fp8 only, of the gradient that comes back to a linear layer.
    """

    compute: Format = BFLOAT16
    operand: Format | None = None
    grad_operand: Format | None = None

    def round(self, values):
        return self.compute.round(values) if self.packs(values) else values

    def round_operand(self, values):
        return self.factor(values if self.operand is None else _by_head(self.operand, unpacked(values)))

    def round_grad_operand(self, values):
        return self.factor(values if self.grad_operand is None else _by_head(self.grad_operand, unpacked(values)))

    def factor(self, values):
        """Return an array of numbers of the format as ``matmul`` takes it: packed on a GPU, for its tensor cores.

        Numbers that fp8 has rounded to 8 bits remain bfloat16 numbers. A bfloat16 number is a multiple of 2^-133 with
        at most 8 significant bits. Rounding to a coarser grid leaves no more of them, and the scale, a power of two,
        only moves the grid.
        """
        return self.pack(values) if self.packs(values) and kernels.multiplies_codes() else values

    def rounded_factor(self, values):
        return self.factor(values) if kernels.multiplies_codes() else self.round(values)  # to pack is to round

    def matmul(self, a, b, out=None):
        if isinstance(a, Packed) and isinstance(b, Packed) and self.kernels is kernels:
            return kernels.matmul_codes(a.codes, b.codes, self.compute.name, out)
        return self.kernels.matmul_each(unpacked(a), unpacked(b), out)

    def mix(self, weights, values, out=None):
        if self.kernels is kernels:
            return self.matmul(weights, values, out)
        return exact.mix(unpacked(weights), unpacked(values), out)

    def packs(self, values) -> bool:
        return not isinstance(values, Packed) and values.dtype == xp.float32

    def pack(self, values) -> "Packed":
        """Return the array in 16 bits. Values that repeat along the first axis are stored once."""
        if repeats(values):
            return Packed(xp.broadcast_to(self.compute.encode(values[0]), values.shape), self.compute)
        return Packed(self.compute.encode(values), self.compute)

    def wire_dtype(self, dtype):
        return self.compute.dtype if dtype == xp.float32 else dtype

    def outgoing(self, values):
        return self.compute.encode(values) if self.packs(values) else xp.ascontiguousarray(values)

    def incoming(self, message):
        return unpacked(self.stored(message))

    def incoming_factor(self, message):
        return self.stored(message) if kernels.multiplies_codes() else self.incoming(message)

    def stored(self, message):
        """Return the array in a message: ``Packed`` if the message has 16-bit codes."""
        return Packed(message, self.compute) if message.dtype == self.compute.dtype else message

    # Hooks around an operation

    def before(self, ctx: Context, arguments: Sequence) -> Sequence:
        ctx._policy = self
        return [
            one if not isinstance(one, Tensor) else self.as_factor(one) if i < ctx.function.factors else self.cast(one)
            for i, one in enumerate(arguments)
        ]

    def after(self, ctx: Context, arguments: tuple, arrays: list, output, tensor: Tensor) -> None:
        if ctx.rounds:
            tensor.data = self.round(output)
        tensor.made_under, tensor.unrounded = self, not ctx.rounds
        if ctx.saved and not callable(ctx.saved):
            known = [pair for pair in zip(arguments, arrays, strict=True) if isinstance(pair[0], Tensor)]
            known.append((tensor, output))
            rounded = len(ctx.saved) - ctx.exact
            ctx.saved = (*[self.waiting(one, known) for one in ctx.saved[:rounded]], *ctx.saved[rounded:])

    def before_backward(self, ctx: Context, gradient):
        return self.round(gradient) if ctx.rounds else gradient

    def cast(self, tensor: Tensor):
        """Return the array as an operation uses it: rounded, unless it was made or is stored in this very precision."""
        return tensor.data if tensor.made_under is self or self.stores(tensor) else self.round(tensor.data)

    def as_factor(self, tensor: Tensor):
        """Return the array of a tensor as ``matmul`` takes it: packed on a GPU, otherwise as ``cast`` returns it."""
        return self.packed(tensor) if self.packs(tensor) and kernels.multiplies_codes() else self.cast(tensor)

    def packed(self, tensor: Tensor) -> "Packed":
        """Return the tensor in 16 bits. Cached for an operation's output, but not for a leaf, which may change."""
        if self.stores(tensor):
            return Packed(tensor.stored, self.compute)  # pyright: ignore[reportAttributeAccessIssue]: a Parameter
        if tensor.packed is not None and tensor.packed.format is self.compute:
            return tensor.packed
        packed = self.pack(tensor.data)
        if tensor.made_under is not None:
            tensor.packed = packed
        return packed

    def stores(self, tensor: Tensor) -> bool:
        """Return whether a tensor is a parameter that is stored in this very format."""
        return getattr(tensor, "format", None) is self.compute

    def waiting(self, one, known: list):
        """Return a saved value in its form until backward. An array that two operations save is packed once.

        Args:
            known: pairs of a tensor, among the operation's arguments and its output, and its array.
        """
        if isinstance(one, Tensor):
            return Leaf(one, self)
        if not isinstance(one, xp.ndarray) or not self.packs(one):
            return one
        for tensor, array in known:
            if shows_all_of(one, array):
                return self.packed(tensor).reshape(one.shape)
        return self.pack(one)


@dataclass(frozen=True)
class ExactFloat32(Policy, Mode):
    """Policy that rounds nothing, and makes all operations use exact products."""

    kernels: ModuleType = exact
    functions: ArrayModule | ModuleType = exact
    matmul, mix = staticmethod(exact.matmul_each), staticmethod(exact.mix)

    def before(self, ctx: Context, arguments: Sequence) -> Sequence:
        ctx._policy = self
        return arguments


@dataclass(frozen=True)
class Packed:
    """float32 array stored in fewer bits. It has the shape of the array, and the views that products need."""

    codes: Any  # the array of bits
    format: Format

    shape = property(lambda self: self.codes.shape)
    dtype = property(lambda self: xp.dtype(xp.float32))

    @property
    def array(self):
        """The float32 array."""
        if repeats(self.codes):
            return xp.broadcast_to(self.format.decode(self.codes[0]), self.codes.shape)
        return self.format.decode(self.codes)

    @property
    def factor(self):
        """The array, as ``Policy.matmul`` takes it."""
        return self if kernels.multiplies_codes() else self.array

    def reshape(self, *shape: int) -> "Packed":
        return Packed(self.codes.reshape(*shape), self.format)

    def swapaxes(self, first: int, second: int) -> "Packed":
        return Packed(self.codes.swapaxes(first, second), self.format)

    def __getitem__(self, index) -> "Packed":
        return Packed(self.codes[index], self.format)

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True)
class Leaf:
    """Leaf saved for backward, which reads the value that the leaf has by then, as the policy takes it."""

    tensor: Tensor
    policy: SixteenBits

    array = property(lambda self: self.policy.cast(self.tensor))
    factor = property(lambda self: self.policy.as_factor(self.tensor))


def unpacked(values):
    """Return the float32 array of ``Packed`` values; other values stay as they are."""
    return values.array if isinstance(values, Packed) else values


def shows_all_of(array, other) -> bool:
    """Return whether an array is the other one, or a reshaped view of it."""
    same = (array.size, array.dtype, address(array)) == (other.size, other.dtype, address(other))
    return same and all((a[0] if repeats(a) else a).flags.c_contiguous for a in (array, other))


def _by_head(format: Format, values):
    """Round values with one scale for each index of the first axis."""
    if repeats(values):
        return xp.broadcast_to(_by_head(format, values[:1]), values.shape)
    return round_scaled(format, values, tuple(range(1, values.ndim)))


PRODUCTS = ("fast", "exact")
POLICIES = {
    policy.name: policy
    for policy in (
        Policy("fp32"),
        SixteenBits("bf16", BFLOAT16),
        SixteenBits("fp16", FLOAT16, scales_loss=True),
        SixteenBits("fp8", BFLOAT16, operand=E4M3, grad_operand=E5M2),
    )
}
Context._policy = POLICIES["fp32"]  # unless a mode sets another


def policy_of(precision: str, products: str) -> Policy:
    """Return the policy of a precision, one of POLICIES, with products, one of PRODUCTS."""
    return POLICIES[precision] if products == "fast" else _with_exact_products(POLICIES[precision])


@cache  # so that a tensor's policy can be compared by identity
def _with_exact_products(policy: Policy) -> Policy:
    return ExactFloat32(policy.name) if policy.compute is None else replace(policy, kernels=exact, functions=exact)


@contextmanager
def autocast(policy: Policy | str) -> Iterator[Policy]:
    """Make operations in the ``with`` block obey a policy. Their backward passes do too, wherever they run.

    Args:
        policy: one of POLICIES, or its name.

    Raises:
        ValueError: for an unknown name.
    """
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise ValueError(f"precision {policy!r}: choose from {', '.join(POLICIES)}")
        policy = POLICIES[policy]
    with within(*[policy] if isinstance(policy, Mode) else (), instead_of=Policy):
        yield policy


def current() -> Policy:
    """Return the policy that operations obey now."""
    return next((mode for mode in modes.standing if isinstance(mode, Policy)), POLICIES["fp32"])
