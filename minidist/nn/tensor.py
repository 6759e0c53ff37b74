"""Automatic differentiation: arrays that remember how they were computed.

A ``Function`` computes an array from arrays. A call that a gradient may flow through leaves a ``Context``: a node of
the graph, which keeps what backward will need and points at the nodes that its inputs came from. ``backward()`` walks
the nodes from the loss to the leaves, each once, after everything that used its output.

The names are PyTorch's (``torch.autograd.Function``). Simpler here: a Function has one output, a graph is walked once,
and gradients are plain arrays. Operators such as ``a + b`` are in arithmetic.py; hooks around an operation (precision,
recomputation, measurements) are modes (modes.py).
"""

from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from minidist import ledger
from minidist.backend import xp
from minidist.nn import modes
from minidist.nn.kernels import rounded


class Tensor:
    """Array with its origin: a *leaf* was made by hand, any other tensor is the output of a Function.

    ``backward()`` adds into the ``grad`` of leaves that require one. It is an array of dtype ``grad_dtype``, float64
    unless set otherwise: a gradient is summed over micro-batches, ranks and uses of the leaf, and rounded once, at the
    end. An existing ``grad``, such as a view into a communication buffer, is added to in place.

    Args:
        data: an array, or anything ``asarray`` takes.
        requires_grad: whether this leaf receives a gradient.

    Raises:
        TypeError: if a gradient is asked for and ``data`` is not floating point.
    """

    __array_ufunc__ = None  # so that `array + tensor` asks the tensor, instead of looping over the array's elements
    made_under: Any = None  # this and the next two are set by a precision policy (precision/policy.py)
    packed: Any = None
    unrounded = False
    zero_gradient: Any = None  # index of the elements whose gradient is 0 in exact arithmetic

    if TYPE_CHECKING:  # arithmetic.py sets them

        def __add__(self, /, *arguments: Any, **settings: Any) -> "Tensor": ...

        __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __matmul__ = __add__
        __rmatmul__ = __neg__ = __getitem__ = sum = mean = reshape = transpose = swapaxes = __add__

    def __init__(self, data, requires_grad: bool = False, grad_fn: "Context | None" = None) -> None:
        self.data = data = xp.asarray(data)
        self.grad_fn = grad_fn  # the node that made this tensor; None for a leaf
        self.requires_grad = requires_grad or grad_fn is not None
        self.grad, self.grad_dtype = None, xp.float64
        self.hooks: list[Callable[[Any], None]] = []
        if self.requires_grad and data.dtype.kind != "f":
            raise TypeError(f"only floating-point tensors can require a gradient, not {data.dtype}")

    def backward(self, gradient=None) -> None:
        """Add the gradient of this tensor with respect to each leaf into that leaf's ``grad``, and free the graph.

        Args:
            gradient: array of this tensor's shape, the gradient of the final loss with respect to it. A scalar needs
                none: it is the loss.

        Raises:
            RuntimeError: if nothing here requires a gradient, or the graph was already walked.
            ValueError: if ``gradient`` is missing or has another shape.
        """
        walk = Walk(self, gradient)
        while walk.ready:
            walk.visit(*walk.ready.pop())

    def accumulate(self, gradient, complete: bool) -> None:
        """Round a contribution to the leaf's dtype, add it in ``grad_dtype``, and after the last one run the hooks.

        **Order.** n float32 terms whose sizes differ by less than 2^29 / n have an exact sum in float64, in any order.
        With other terms, float64 loses 2^-53 of the largest. The result has 24 bits, so this shows only if the sum lies
        that close to a point where its rounding changes: a chance of 2^-29, times the share of such sums. A sum that
        cancels to 2^-k of its terms shows it 2^k times as often, but is as rare, unless it has to cancel. One has to: a
        key's bias adds the same to all scores of a row, so its gradient is 0 (``zero_gradient``). It is set to 0,
        because float32 would leave only the rounding errors of terms that cancel.

        Raises:
            RuntimeError: if there is a ``grad`` of another dtype or shape.
        """
        if gradient.dtype != self.dtype:
            gradient = rounded(gradient, self.dtype)
        if self.grad is None:
            self.grad = xp.array(gradient, dtype=self.grad_dtype, order="C")  # a copy: others may hold this array too
            ledger.enter("gradients", self.grad)
        elif self.grad.dtype != self.grad_dtype or self.grad.shape != self.shape:
            raise RuntimeError(
                f"cannot add to this leaf's grad: it is {self.grad.dtype}{self.grad.shape}, and the sum is kept as "
                f"{xp.dtype(self.grad_dtype)}{self.shape}. After an optimizer step, call zero_grad() before backward()"
            )
        else:
            xp.add(self.grad, gradient, out=self.grad)
        if self.zero_gradient is not None:
            self.grad[self.zero_gradient] = 0
        if complete:
            for hook in tuple(self.hooks):  # one of them may remove itself
                hook(self)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Any], None]) -> None:
        """Have ``hook(leaf)`` called in each ``backward()``, once all uses of this leaf have added to its gradient.

        The rest of backward is still to come, so communication can overlap with it. Raises RuntimeError for a tensor
        that is not a leaf with a gradient.
        """
        if self.grad_fn is not None or not self.requires_grad:
            raise RuntimeError("a gradient hook needs a leaf that requires a gradient, such as a Parameter")
        self.hooks.append(hook)

    shape, dtype, ndim, size = (property(attrgetter(f"data.{name}")) for name in ("shape", "dtype", "ndim", "size"))
    array = factor = property(attrgetter("data"))  # a leaf that was saved for backward is read when it is needed

    def item(self) -> float:
        """Return the value of a tensor that has one element."""
        return self.data.item()

    def __repr__(self) -> str:
        origin = f", grad_fn={self.grad_fn.name}" if self.grad_fn else ", requires_grad=True" * self.requires_grad
        return f"Tensor({self.data}{origin})"


class Function:
    """A differentiable operation: subclass it and write the two static methods, the one right below the other."""

    flops, gradient_flops, recomputed_flops, kernel = None, (), 0, True  # what it costs (measuring.py)
    factors = 0  # number of leading arguments that arrive as ``ctx.policy.matmul`` takes them

    @staticmethod
    def forward(ctx: "Context", *arguments, **settings):
        """Return the output array. Tensor arguments arrive as their arrays, all others as they are."""
        raise NotImplementedError

    @staticmethod
    def backward(ctx: "Context", gradient):
        """Return the gradient of each argument of ``forward``, in order; None for one that has, or needs, none.

        A gradient may be more precise than the argument, for instance a float64 sum over tokens. On arrival it is
        rounded once, to the argument's dtype or to the ``grad_dtype`` of the node that made it.
        """
        raise NotImplementedError

    @classmethod
    def apply(cls, *arguments, **settings) -> Tensor:
        """Run ``forward``, and leave a node if a gradient may flow back through the call."""
        ctx, inputs = Context(cls, arguments), arguments
        for mode in ctx.modes:
            inputs = mode.before(ctx, inputs)
        arrays = [one.data if isinstance(one, Tensor) else one for one in inputs]
        output = cls.forward(ctx, *arrays, **settings)
        output = output if isinstance(output, xp.ndarray) else xp.asarray(output)
        tensor = Tensor(output, grad_fn=ctx if True in ctx.needs_input_grad else None)
        ctx._shape, ctx._dtype, ctx.grad_dtype = output.shape, output.dtype, ctx.grad_dtype or output.dtype
        if ctx.saved:  # for a leaf's array, the leaf: ZeRO's stage 3 frees and gathers the array in between
            pairs = zip(arrays, arguments, strict=True)
            leaves = {id(x): one for x, one in pairs if isinstance(one, Tensor) and one.grad_fn is None}
            ctx.saved = tuple(map(leaves.get, map(id, ctx.saved), ctx.saved))
        for mode in reversed(ctx.modes):
            mode.after(ctx, arguments, arrays, output, tensor)
        return tensor


def own(name: str) -> property:
    """Return a property for an attribute of a node that a Function must not set."""

    def taken(ctx: "Context", value) -> None:
        raise RuntimeError(f"{ctx.name}.forward sets ctx.{name}, where the graph keeps its own: choose another name")

    return property(attrgetter(f"_{name}"), taken)


class Context:
    """One call of a Function: the node of the graph, and the ``ctx`` that its forward and backward share.

    It points at the nodes its inputs came from, not at the inputs: an activation that no node saved is freed as soon as
    forward lets go of it.

    Attributes:
        needs_input_grad: whether each argument needs a gradient.
        grad_dtype: dtype of the output's incoming gradient; the output's own unless forward sets another. A function
            whose backward adds it to the gradients of other processes asks for float64, to round the sum once.
        rounds: whether the output, and the gradient that comes back to it, are rounded to a format of few bits if one
            is in force. False for a function whose output is a term of a sum yet to be taken.
        saved: values saved for backward: arrays, or objects with the attributes ``array`` and ``factor``, such as
            leaves; or a function that returns all of them. A mode may replace it.
        exact: number of saved values, the last ones, that no mode may round.
        sources: the node or leaf that each argument's gradient goes to; None if none is needed.
        shape, dtype: shape and dtype of the output.
        policy: the precision in force, which computes products (precision/policy.py).
    """

    grad_dtype, rounds, saved, exact, freed = None, True, (), 0, False
    function, sources, shape, dtype, policy = map(own, ("function", "sources", "shape", "dtype", "policy"))
    name = property(attrgetter("_function.__name__"))
    _policy: Any  # fp32 unless a mode sets another: see precision/policy.py

    if TYPE_CHECKING:  # forward may set any attribute for backward

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(self, function: type[Function], arguments: tuple) -> None:
        self._function, self.modes = function, modes.standing
        needs, sources = [], []
        for argument in arguments:
            needed = _grad_enabled and isinstance(argument, Tensor) and argument.requires_grad
            needs.append(needed)
            sources.append((argument.grad_fn or argument) if needed else None)
        self.needs_input_grad, self._sources = tuple(needs), tuple(sources)

    def save_for_backward(self, *arrays, exact: tuple = ()) -> None:
        """Keep arrays for ``backward``, which finds them in ``ctx.saved_arrays``. Keep none if no gradient is needed.

        Args:
            arrays: float32 ones may be stored in 16 bits (precision/policy.py).
            exact: arrays that are stored as they are, such as statistics, one number for many.
        """
        if True in self.needs_input_grad:
            self.saved, self.exact = (*arrays, *exact), len(exact)

    def load(self, form: str = "array") -> tuple:
        """Return the arrays given to ``save_for_backward``, then the exact ones.

        Args:
            form: "factor" to get them as ``policy.matmul`` takes them: on a GPU 16-bit arrays stay packed.
        """
        saved = self.saved() if callable(self.saved) else self.saved
        return tuple(map(getattr, saved, repeat(form), saved))  # itself, where it has no such form

    saved_arrays, saved_factors = property(load), property(partial(load, form="factor"))


class Walk:
    """Backward pass from a tensor: it visits each node once, after all the nodes that used its output.

    Attributes:
        awaited: node or leaf -> number of contributions to its gradient that are still to come.
        gradients: node -> sum of the contributions so far.
        ready: pairs of a node that has all contributions, and its gradient.
    """

    def __init__(self, output: Tensor, gradient) -> None:
        if not output.requires_grad:
            raise RuntimeError(
                "this tensor does not require a gradient: it was made under no_grad(), "
                "or from tensors of which none has requires_grad=True"
            )
        if gradient is None and output.size != 1:
            raise ValueError(
                f"backward() on shape {output.shape} needs a gradient of that shape; only a scalar needs none"
            )
        gradient = xp.ones(output.shape, output.dtype) if gradient is None else xp.asarray(gradient)
        if gradient.shape != output.shape:
            raise ValueError(f"the gradient has shape {gradient.shape}, but the tensor has shape {output.shape}")
        root = output.grad_fn or output
        self.awaited, self.gradients, self.ready = {root: 1}, {}, []
        unvisited = [root] if isinstance(root, Context) else []
        while unvisited:
            node = unvisited.pop()
            if node.freed:
                raise RuntimeError(
                    f"backward() has already walked this graph ({node.name}) and freed what it had saved: "
                    "run the forward pass again, or add the losses and call backward() once"
                )
            for source in node.sources:
                if source is not None:
                    if source not in self.awaited and isinstance(source, Context):
                        unvisited.append(source)
                    self.awaited[source] = self.awaited.get(source, 0) + 1
        self.give(root, gradient)

    def give(self, source: "Context | Tensor", gradient) -> None:
        """Add a contribution to the gradient of a node or a leaf. After the last one a node is ready."""
        self.awaited[source] = awaited = self.awaited[source] - 1
        if isinstance(source, Tensor):
            source.accumulate(gradient, complete=not awaited)
            return
        if gradient.dtype != source.grad_dtype:
            gradient = rounded(gradient, source.grad_dtype)
        if source in self.gradients:
            gradient = self.gradients.pop(source) + gradient
        if awaited:
            self.gradients[source] = gradient
        else:
            self.ready.append((source, gradient))

    def visit(self, node: Context, gradient, last: bool = True) -> None:
        """Run the node's backward and pass each gradient on to the argument's source. ``last``: free the node."""
        for mode in node.modes:
            gradient = mode.before_backward(node, gradient)
        contributions = node.function.backward(node, gradient)
        contributions = contributions if isinstance(contributions, tuple) else (contributions,)
        for mode in reversed(node.modes):
            mode.after_backward(node, gradient, contributions)
        count = len(node.sources)
        if len(contributions) < count or set(map(type, contributions[count:])) - {type(None)}:
            raise RuntimeError(
                f"{node.name}.backward: number of gradients: expected {count}, one for each argument of forward "
                f"(None where there is none), got {len(contributions)}"
            )
        for place, (source, contribution) in enumerate(zip(node.sources, contributions, strict=False)):
            if not node.needs_input_grad[place]:
                continue
            if contribution is None:
                raise RuntimeError(f"{node.name}.backward returned None for argument {place}, which needs a gradient")
            if contribution.shape != source.shape:
                raise RuntimeError(
                    f"{node.name}.backward returned a gradient of shape {contribution.shape} "
                    f"for an argument of shape {source.shape}"
                )
            self.give(source, contribution)
        if last:
            node.saved, node._sources, node.freed = (), (), True


_grad_enabled = True


@contextmanager
def grad_mode(enabled: bool):
    """Build graphs in the ``with`` block, or build none. (``torch.set_grad_enabled``.)"""
    global _grad_enabled
    before, _grad_enabled = _grad_enabled, enabled
    try:
        yield
    finally:
        _grad_enabled = before


def no_grad():
    """Build no graph in the ``with`` block, and save nothing for backward. Also usable as a decorator."""
    return grad_mode(False)
