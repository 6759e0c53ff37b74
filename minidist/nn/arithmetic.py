"""The operations behind a Tensor's operators and methods: ``a + b``, ``a @ b``, ``a.reshape(...)``, ``a[...]``.

Shapes broadcast as in NumPy. Where forward repeats a value, backward sums its gradients (``unbroadcast``). Python
numbers and plain arrays may replace any tensor; they are constants. The end of the file binds the operators to Tensor.
"""

from collections.abc import Callable

from minidist.backend import xp
from minidist.nn.kernels import add_at, rounded
from minidist.nn.tensor import Context, Function, Tensor


def unbroadcast(gradient, shape: tuple[int, ...]):
    """Sum ``gradient`` down to ``shape``, the shape before broadcasting, in float64: the sum may run over tokens.

    The float64 sum is not rounded here. A parameter adds it as it is; for an activation ``backward()`` rounds it.
    """
    if gradient.shape == shape:
        return gradient
    added = gradient.ndim - len(shape)
    axes = [axis for axis in range(gradient.ndim) if axis < added or shape[axis - added] != gradient.shape[axis]]
    return gradient.sum(axis=tuple(axes), dtype=xp.float64).reshape(shape)


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
    """Matrix products over the last two axes, (..., n, k) @ (..., k, m) -> (..., n, m); the leading axes broadcast.

    Raises:
        ValueError: for a factor with fewer than two axes.
    """

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
    """Sum over some or all axes, taken in float64 and rounded once."""

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
    """Permutation of the axes, as a view."""

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


def sum(a: Tensor, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
    """Return the sum over ``axis``, taken in float64 and rounded once to the tensor's dtype."""
    return Sum.apply(a, axis, keepdims)


def mean(a: Tensor, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
    """Return the mean over ``axis``."""
    total = sum(a, axis, keepdims)
    return total / (a.size // max(1, total.size))


def reshape(a: Tensor, *shape: int) -> Tensor:
    """Return the elements in another shape; one size may be -1."""
    return Reshape.apply(a, shape)


def transpose(a: Tensor, *axes: int) -> Tensor:
    """Permute all axes into the given order; without arguments, reverse their order."""
    return Transpose.apply(a, tuple(axis % a.ndim for axis in axes or range(a.ndim)[::-1]))


def swapaxes(a: Tensor, first: int, second: int) -> Tensor:
    """Exchange two axes."""
    axes = list(range(a.ndim))
    axes[first], axes[second] = axes[second], axes[first]
    return transpose(a, *axes)


def operator(function: type[Function]) -> Callable[..., Tensor]:
    return lambda a, b: function.apply(a, b)


Tensor.__add__ = Tensor.__radd__ = operator(Add)
Tensor.__mul__ = Tensor.__rmul__ = operator(Multiply)
Tensor.__truediv__, Tensor.__matmul__, Tensor.__getitem__ = operator(Divide), operator(MatMul), operator(GetItem)
Tensor.__neg__ = lambda a: a * -1.0
Tensor.__sub__, Tensor.__rsub__ = lambda a, b: a + -b, lambda b, a: a + -b
Tensor.__rtruediv__, Tensor.__rmatmul__ = lambda b, a: Divide.apply(a, b), lambda b, a: MatMul.apply(a, b)
Tensor.sum, Tensor.mean = sum, mean
Tensor.reshape, Tensor.transpose, Tensor.swapaxes = reshape, transpose, swapaxes
