"""The operations behind a Tensor's operators and methods: ``a + b``, ``a @ b``, ``a.reshape(...)``, ``a[...]``.

Shapes broadcast as in NumPy. Where forward repeats a value, backward sums its gradients (``unbroadcast``). Python
numbers and plain arrays may replace any tensor; they are constants. The end of the file binds the operators to Tensor.
"""

from minidist.backend import xp
from minidist.nn.kernels import add_at, rounded
from minidist.nn.tensor import Context, Function, Tensor


def unbroadcast(gradient, shape: tuple[int, ...]):
    """Sum ``gradient`` down to ``shape``, from which it was broadcast: in float64, since it may sum over tokens.

    The float64 sum is not rounded here. A parameter adds it as it is; for an activation ``backward()`` rounds it.
    """
    if gradient.shape == shape:
        return gradient
    added = tuple(range(gradient.ndim - len(shape)))
    stretched = tuple(axis for axis in range(-len(shape), 0) if shape[axis] == 1 and gradient.shape[axis] != 1)
    return gradient.sum(axis=added + tuple(gradient.ndim + axis for axis in stretched), dtype=xp.float64).reshape(shape)


class Add(Function):
    @staticmethod
    def forward(ctx: Context, a, b):
        ctx.shapes = xp.shape(a), xp.shape(b)
        return a + b

    @staticmethod
    def backward(ctx: Context, gradient):
        grad_a = unbroadcast(gradient, ctx.shapes[0]) if ctx.needs_input_grad[0] else None
        grad_b = unbroadcast(gradient, ctx.shapes[1]) if ctx.needs_input_grad[1] else None
        return grad_a, grad_b


class Negative(Function):
    @staticmethod
    def forward(ctx: Context, a):
        return -a

    @staticmethod
    def backward(ctx: Context, gradient):
        return -gradient


class Multiply(Function):
    @staticmethod
    def forward(ctx: Context, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Context, gradient):
        a, b = ctx.saved_arrays
        grad_a = unbroadcast(gradient * b, a.shape) if ctx.needs_input_grad[0] else None
        grad_b = unbroadcast(gradient * a, b.shape) if ctx.needs_input_grad[1] else None
        return grad_a, grad_b


class Divide(Function):
    @staticmethod
    def forward(ctx: Context, a, b):
        ctx.save_for_backward(a, b)
        return a / b

    @staticmethod
    def backward(ctx: Context, gradient):
        a, b = ctx.saved_arrays
        grad_a = unbroadcast(gradient / b, a.shape) if ctx.needs_input_grad[0] else None
        grad_b = unbroadcast(-gradient * a / (b * b), b.shape) if ctx.needs_input_grad[1] else None
        return grad_a, grad_b


class MatMul(Function):
    """Products of the last two axes, (..., n, k) @ (..., k, m) -> (..., n, m); the axes before them broadcast."""

    gradient_flops = 1, 1

    @staticmethod
    def flops(output, a, b) -> int:
        return 2 * output.size * a.shape[-1]

    @staticmethod
    def forward(ctx: Context, a, b):
        if a.ndim < 2 or b.ndim < 2:
            raise ValueError(f"matmul needs two or more axes on each side, not {a.shape} @ {b.shape}: reshape first")
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx: Context, gradient):
        a, b = ctx.saved_arrays
        grad_a = unbroadcast(gradient @ b.swapaxes(-1, -2), a.shape) if ctx.needs_input_grad[0] else None
        grad_b = unbroadcast(a.swapaxes(-1, -2) @ gradient, b.shape) if ctx.needs_input_grad[1] else None
        return grad_a, grad_b


class Sum(Function):
    """The sum over some axes or all, in float64 and rounded once."""

    @staticmethod
    def forward(ctx: Context, a, axis, keepdims):
        total = a.sum(axis=axis, keepdims=True, dtype=xp.float64)
        ctx.input_shape, ctx.kept_shape = a.shape, total.shape
        return rounded(total if keepdims else total.squeeze(axis), a.dtype)

    @staticmethod
    def backward(ctx: Context, gradient):
        return xp.broadcast_to(gradient.reshape(ctx.kept_shape), ctx.input_shape), None, None


class Reshape(Function):
    @staticmethod
    def forward(ctx: Context, a, shape):
        ctx.input_shape = a.shape
        return a.reshape(shape)

    @staticmethod
    def backward(ctx: Context, gradient):
        return gradient.reshape(ctx.input_shape), None


class Transpose(Function):
    """The axes in another order, as a view."""

    @staticmethod
    def forward(ctx: Context, a, axes):
        ctx.inverse = tuple(axes.index(axis) for axis in range(a.ndim))
        return a.transpose(axes)

    @staticmethod
    def backward(ctx: Context, gradient):
        return gradient.transpose(ctx.inverse), None


class GetItem(Function):
    @staticmethod
    def forward(ctx: Context, a, index):
        ctx.input_shape, ctx.index = a.shape, index
        return a[index]

    @staticmethod
    def backward(ctx: Context, gradient):
        grad_a = xp.zeros(ctx.input_shape)  # float64: an index array may repeat an index many times
        add_at(grad_a, ctx.index, gradient.astype(xp.float64))
        return grad_a, None


def add(a, b) -> Tensor:
    """``a + b``"""
    return Add.apply(a, b)


def negative(a) -> Tensor:
    """``-a``"""
    return Negative.apply(a)


def subtract(a, b) -> Tensor:
    """``a - b``"""
    return Add.apply(a, -b)


def multiply(a, b) -> Tensor:
    """``a * b``, element by element."""
    return Multiply.apply(a, b)


def divide(a, b) -> Tensor:
    """``a / b``, element by element."""
    return Divide.apply(a, b)


def matmul(a, b) -> Tensor:
    """``a @ b`` over the last two axes.

    Raises:
        ValueError: if an operand has fewer than two axes, or the inner sizes differ.
    """
    return MatMul.apply(a, b)


def sum(a: Tensor, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
    """The sum over ``axis``, in float64, rounded once to the tensor's dtype."""
    return Sum.apply(a, axis, keepdims)


def mean(a: Tensor, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
    """The mean over ``axis``."""
    total = sum(a, axis, keepdims)
    return total / (a.size // total.size)


def reshape(a: Tensor, *shape: int) -> Tensor:
    """Return the elements in another shape; one size may be -1."""
    return Reshape.apply(a, shape)


def transpose(a: Tensor, *axes: int) -> Tensor:
    """All axes in the given order; without arguments, in reverse order."""
    axes = axes or range(a.ndim)[::-1]
    return Transpose.apply(a, tuple(axis % a.ndim for axis in axes))


def swapaxes(a: Tensor, first: int, second: int) -> Tensor:
    """Two axes exchanged."""
    axes = list(range(a.ndim))
    axes[first], axes[second] = axes[second], axes[first]
    return transpose(a, *axes)


def getitem(a: Tensor, index) -> Tensor:
    """``a[index]``, with anything NumPy takes as an index."""
    return GetItem.apply(a, index)


Tensor.__add__ = Tensor.__radd__ = add
Tensor.__neg__ = negative
Tensor.__sub__ = subtract
Tensor.__rsub__ = lambda b, a: subtract(a, b)
Tensor.__mul__ = Tensor.__rmul__ = multiply
Tensor.__truediv__ = divide
Tensor.__rtruediv__ = lambda b, a: divide(a, b)
Tensor.__matmul__ = matmul
Tensor.__rmatmul__ = lambda b, a: matmul(a, b)
Tensor.__getitem__ = getitem
Tensor.sum, Tensor.mean = sum, mean
Tensor.reshape, Tensor.transpose, Tensor.swapaxes = reshape, transpose, swapaxes
