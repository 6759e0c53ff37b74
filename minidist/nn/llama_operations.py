"""Operations of a Llama that a GPT-2 lacks, each forward right above its backward.

RMSNorm (Zhang & Sennrich, 2019), rotary positions (Su et al., "RoFormer", 2021) and the gate of SwiGLU (Shazeer, "GLU
Variants Improve Transformer", 2020).
"""

import numpy as np

from minidist.backend import xp
from minidist.nn.kernels import sum_over_tokens
from minidist.nn.precision.policy import current
from minidist.nn.tensor import Context, Function
from minidist.overrides import overridable


class RMSNorm(Function):
    """RMS norm: each token's values over their root mean square, then ``* gain``; LayerNorm without mean and bias.

    Args:
        x: (..., C); made C-contiguous, because NumPy would sum in another order otherwise.
        gain: (C,)
        eps: added to the mean square.
    """

    @staticmethod
    def forward(ctx: Context, x, gain, eps=1e-5):
        y, normal, inverse = rms_norm_forward(xp.ascontiguousarray(x), gain, eps)
        ctx.save_for_backward(normal, gain, exact=(inverse,))
        return y

    @staticmethod
    def backward(ctx: Context, gradient):
        normal, gain, inverse = ctx.saved_arrays
        return *rms_norm_backward(xp.ascontiguousarray(gradient), normal, inverse, gain), None


@overridable
def rms_norm_forward(x, gain, eps):
    """Return the output (..., C), the values before ``* gain`` (..., C), and the factor on x (..., 1)."""
    squares = current().kernels.dot_each(x, x)[..., None]  # (..., 1)
    inverse = 1 / xp.sqrt(squares / x.shape[-1] + eps)  # (..., 1)
    normal = x * inverse  # (..., C)
    return normal * gain, normal, inverse


@overridable
def rms_norm_backward(gradient, normal, inverse, gain):
    """Return the gradients of x (..., C) and, in float64, of the gain (C,), from that of the output."""
    grad_normal = gradient * gain  # (..., C)
    projection = current().kernels.dot_each(grad_normal, normal)[..., None]  # (..., 1)
    grad_x = (grad_normal - normal * (projection / normal.shape[-1])) * inverse
    return grad_x, sum_over_tokens(gradient * normal)


rms_norm = RMSNorm.apply


@overridable
def rotary_table(first: int, count: int, width: int, base: float) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines and sines of the angles of some positions: two float32 NumPy arrays (count, width / 2).

    Position p turns pair i by p base^(-2 i / width). Angles are float64; cosines and sines are rounded once.

    Args:
        first, count: the first position, from the start of the sequence, and the number of positions.
        width: D, even.
    """
    frequencies = float(base) ** (-2 * np.arange(width // 2) / width)  # (D / 2,)
    angles = np.arange(first, first + count)[:, None] * frequencies  # (count, D / 2)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


class Rotate(Function):
    """Rotation of pairs of values by their token's angle: (..., T, W); the first D values turn, the others stay.

    Value i is paired with value i + D / 2, as in Hugging Face's checkpoints. The product of a query and a key then
    depends only on the distance between their tokens. Backward turns by the negative angle.

    Args:
        cosines, sines: (T, D / 2)
    """

    @staticmethod
    def forward(ctx: Context, x, cosines, sines):
        ctx.save_for_backward(exact=(cosines, sines))
        return rotate_forward(x, cosines, sines)

    @staticmethod
    def backward(ctx: Context, gradient):
        cosines, sines = ctx.saved_arrays
        return rotate_backward(gradient, cosines, sines), None, None


rotate = Rotate.apply


@overridable
def rotate_forward(x, cosines, sines):
    """Return x (..., T, W), its first D values turned by the angles with these cosines and sines (T, D / 2)."""
    half = cosines.shape[-1]
    a, b = x[..., :half], x[..., half : 2 * half]
    return xp.concatenate((a * cosines - b * sines, b * cosines + a * sines, x[..., 2 * half :]), -1)


@overridable
def rotate_backward(gradient, cosines, sines):
    """Return the gradient of x: the output's, turned by the negative angles."""
    return rotate_forward(gradient, cosines, -sines)


class SiluGate(Function):
    """Product in SwiGLU: gate and up, side by side (..., 2 h) -> gate sigmoid(gate) up (..., h)."""

    @staticmethod
    def forward(ctx: Context, x):
        ctx.save_for_backward(x)
        return silu_gate_forward(x)

    @staticmethod
    def backward(ctx: Context, gradient):
        return silu_gate_backward(gradient, *ctx.saved_arrays)


@overridable
def silu_gate_forward(x):
    """Return gate sigmoid(gate) up (..., h) for gate and up, side by side in x (..., 2 h)."""
    gate, up = xp.split(x, 2, axis=-1)
    return gate * sigmoid(gate) * up


@overridable
def silu_gate_backward(gradient, x):
    """Return the gradient of x (..., 2 h) from that of the output (..., h)."""
    gate, up = xp.split(x, 2, axis=-1)
    share = sigmoid(gate)
    grad_gate = gradient * up * (share * (1 + gate * (1 - share)))
    return xp.concatenate((grad_gate, gradient * (gate * share)), -1)


silu_gate = SiluGate.apply


def sigmoid(x):
    """Return 1 / (1 + e^-x), with an exponential that does not overflow."""
    small = current().functions.exp(-xp.abs(x))
    return xp.where(x >= 0, 1, small) / (1 + small)


class Fork(Function):
    """Identity on activations with several readers, whose gradients are added in float64 and rounded once."""

    kernel = False

    @staticmethod
    def forward(ctx: Context, x):
        ctx.rounds, ctx.grad_dtype = False, xp.float64
        return x

    @staticmethod
    def backward(ctx: Context, gradient):
        return gradient


fork = Fork.apply
