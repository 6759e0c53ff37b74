"""Mixed precision: which numbers are kept in 16 bits, and which are not.

The usual recipe (Micikevicius et al., "Mixed Precision Training", 2018; Megatron-LM's ``--bf16`` and ``--fp16``):

    16 bits     the parameters that the model computes with, activations, gradients of activations;
                hence what is saved for backward, and what is sent
    float32     the master copy of the parameters, AdamW's moments, the gradients of parameters
                inside an operation: sums of products, softmax, the norms' statistics, the loss
    float64     sums over micro-batches and ranks (``reduce_dtype``)

A ``Policy`` states this for one precision, and ``autocast`` puts it in force: the output of every operation is rounded
to the 16-bit format, and so is the gradient that comes back to it. Between operations an array is float32 and holds
only values of the format. Where memory or traffic counts, in what is saved for backward, sent, or kept as a parameter,
it is stored in 16 bits. A GPU multiplies the 16-bit codes themselves (``Policy.matmul``).

This differs from ``torch.autocast``, which leaves LayerNorm's output and the residual stream in float32. Here they have
16 bits, as in Megatron-LM.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from minidist import products
from minidist.backend import xp
from minidist.nn.precision.formats import BFLOAT16, E4M3, E5M2, FLOAT16, Format, round_scaled


@dataclass(frozen=True)
class Policy:
    """What is rounded to which format.

    Attributes:
        name: of the precision.
        compute: of parameters, activations and their gradients; None for float32, where nothing is rounded.
        operand: fp8 only. Of the two factors of a linear layer's products in forward, each with a scale of its own for
            each head: a scale for a whole tensor would depend on who holds how much of it.
        grad_operand: fp8 only. Of the gradient that comes back to a linear layer.
        scales_loss: whether gradients may be too small for the format, so that the loss must be scaled.
    """

    name: str
    compute: Format | None = None
    operand: Format | None = None
    grad_operand: Format | None = None
    scales_loss: bool = False

    def round(self, values):
        """Float32 values as an operation leaves them. Other dtypes stay as they are."""
        return self.compute.round(values) if self.packs(values) else values

    def round_operand(self, values):
        """A factor of a linear layer's product, (H, ...), as ``matmul`` takes it."""
        return self.factor(values if self.operand is None else _by_head(self.operand, unpacked(values)))

    def round_grad_operand(self, values):
        """The gradient (H, ...) that a linear layer multiplies by its factors, as ``matmul`` takes it."""
        return self.factor(values if self.grad_operand is None else _by_head(self.grad_operand, unpacked(values)))

    def factor(self, values):
        """An array of numbers of the 16-bit format as ``matmul`` takes it: packed on a GPU, for its tensor cores.

        What fp8 has rounded to 8 bits remain bfloat16 numbers. A bfloat16 number is a multiple of 2^-133 with at most 8
        significant bits. Rounding to a coarser grid leaves no more of them, and the scale, a power of two, only moves
        the grid.
        """
        return self.pack(values) if self.packs(values) and products.multiplies_codes() else values

    def rounded_factor(self, values):
        """Any array, rounded, as ``matmul`` takes it."""
        return self.factor(values) if products.multiplies_codes() else self.round(values)  # to pack is to round

    def matmul(self, a, b, out=None):
        """``a @ b`` for each head by itself: (H, ..., n, k) and (H, ..., k, m) to (H, ..., n, m), not rounded yet.

        Args:
            a, b: as ``factor`` and its kind return them. The first may be a vector (k,), the same for all heads.
            out: where the products go; None for a new array.
        """
        if isinstance(a, Packed) and isinstance(b, Packed):
            return products.matmul_codes(a.codes, b.codes, self.compute.name, out)
        return products.matmul_each(unpacked(a), unpacked(b), out)

    def packs(self, values) -> bool:
        """Whether an array is stored in the 16-bit format: float32 ones are, if there is such a format."""
        return self.compute is not None and not isinstance(values, Packed) and values.dtype == xp.float32

    def pack(self, values) -> "Packed":
        """The array in 16 bits. One that shows the same values to every block is stored once."""
        if repeats(values):
            return Packed(xp.broadcast_to(self.compute.encode(values[0]), values.shape), self.compute)
        return Packed(self.compute.encode(values), self.compute)

    # Messages between ranks are arrays of numbers that have been rounded: nothing is lost on the way.

    def wire_dtype(self, dtype):
        """Of the message that an array of this dtype becomes."""
        return dtype if self.compute is None or dtype != xp.float32 else self.compute.dtype

    def outgoing(self, values):
        """The message that an array becomes, C-contiguous."""
        return self.compute.encode(values) if self.packs(values) else xp.ascontiguousarray(values)

    def incoming(self, message):
        """The array of float32 numbers, or of a dtype that has no smaller one, that became this message."""
        return unpacked(self.stored(message))

    def incoming_factor(self, message):
        """The array that became this message, as ``matmul`` takes it."""
        return self.stored(message) if products.multiplies_codes() else self.incoming(message)

    def stored(self, message):
        """The message as what it holds: an array, in 16 bits or not."""
        packed = self.compute is not None and message.dtype == self.compute.dtype
        return Packed(message, self.compute) if packed else message


@dataclass(frozen=True)
class Packed:
    """A float32 array stored in fewer bits. It has the shape of the array, and the views that products need."""

    codes: object  # the array of bits
    format: Format

    shape = property(lambda self: self.codes.shape)
    dtype = property(lambda self: xp.dtype(xp.float32))

    def array(self):
        """The float32 array."""
        if repeats(self.codes):
            return xp.broadcast_to(self.format.decode(self.codes[0]), self.codes.shape)
        return self.format.decode(self.codes)

    def reshape(self, *shape: int) -> "Packed":
        return Packed(self.codes.reshape(*shape), self.format)

    def swapaxes(self, first: int, second: int) -> "Packed":
        return Packed(self.codes.swapaxes(first, second), self.format)

    def __getitem__(self, index) -> "Packed":
        return Packed(self.codes[index], self.format)

    def __len__(self) -> int:
        return len(self.codes)


def unpacked(values):
    """The float32 array, packed or not."""
    return values.array() if isinstance(values, Packed) else values


def repeats(values) -> bool:
    """Whether an array shows the same values along all of its first axis, as what goes into the heads does."""
    return values.ndim > 0 and values.shape[0] > 1 and values.size > 0 and values.strides[0] == 0


def _by_head(format: Format, values):
    """Values rounded with a scale for each index of the first axis."""
    if repeats(values):
        return xp.broadcast_to(_by_head(format, values[:1]), values.shape)
    return round_scaled(format, values, tuple(range(1, values.ndim)))


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("fp32"),
        Policy("bf16", BFLOAT16),
        Policy("fp16", FLOAT16, scales_loss=True),
        Policy("fp8", BFLOAT16, operand=E4M3, grad_operand=E5M2),
    )
}
_policy = POLICIES["fp32"]


@contextmanager
def autocast(policy: Policy | str) -> Iterator[Policy]:
    """Within it, operations obey a policy. Their backward passes do too, wherever they run.

    Args:
        policy: one of POLICIES, or its name.

    Raises:
        ValueError: for an unknown name.
    """
    global _policy
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise ValueError(f"precision {policy!r}: choose from {', '.join(POLICIES)}")
        policy = POLICIES[policy]
    before, _policy = _policy, policy
    try:
        yield policy
    finally:
        _policy = before


def current() -> Policy:
    """The policy that operations obey now."""
    return _policy
