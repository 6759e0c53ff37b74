"""Automatic differentiation: arrays that remember how they were computed.

A ``Function`` computes an array from arrays. A call that a gradient may flow through leaves a ``Context``: a node of
the graph, which keeps what backward will need and points at the nodes that its inputs came from. ``backward()`` walks
the nodes from the loss to the leaves, each once, after everything that used its output.

The names are PyTorch's (``torch.autograd.Function``). Simpler here: a Function has one output, a graph is walked once,
and gradients are plain arrays. Precision, storage, FLOPs, traces and checks are layers around every operation
(dispatch/around.py); operators such as ``a + b`` are in arithmetic.py.
"""

from collections.abc import Callable
from contextlib import contextmanager

from minidist import ledger
from minidist.backend import xp
from minidist.nn.dispatch import around, checks
from minidist.nn.memory.saved import Saved
from minidist.nn.precision.policy import current
from minidist.nn.precision.stamped import Stamped
from minidist.nn.rounding import rounded

_grad_enabled = True


@contextmanager
def grad_mode(enabled: bool):
    """Within it graphs are built, or are not. (``torch.set_grad_enabled``.)"""
    global _grad_enabled
    before, _grad_enabled = _grad_enabled, enabled
    try:
        yield
    finally:
        _grad_enabled = before


def no_grad():
    """Within it no graph is built and nothing is saved for backward. Also usable as a decorator."""
    return grad_mode(False)


class Tensor(Stamped):
    """An array, and where it came from: a *leaf* was made by hand, any other tensor is the output of a Function.

    ``backward()`` adds into the ``grad`` of leaves that require one. It is an array of dtype ``grad_dtype``, float64
    unless set otherwise: a gradient is summed over micro-batches, ranks and uses of the leaf, and rounded once, at the
    end. A ``grad`` that exists, a view into a communication buffer say, is added to in place.

    Args:
        data: an array, or anything ``asarray`` takes.
        requires_grad: whether this leaf receives a gradient.

    Raises:
        TypeError: if a gradient is asked for and ``data`` is not floating point.
    """

    __array_ufunc__ = None  # so that `array + tensor` asks the tensor, instead of looping over the array's elements

    def __init__(self, data, requires_grad: bool = False, grad_fn: "Context | None" = None) -> None:
        self.data = xp.asarray(data)
        self.grad_fn = grad_fn  # the node that made this tensor; None for a leaf
        self.requires_grad = requires_grad or grad_fn is not None
        self.grad, self.grad_dtype = None, xp.float64
        self.hooks: list[Callable[[Tensor], None]] = []
        checks.check_floating(self)

    shape = property(lambda self: self.data.shape)
    dtype = property(lambda self: self.data.dtype)
    ndim = property(lambda self: self.data.ndim)
    size = property(lambda self: self.data.size)

    def item(self) -> float:
        """The value of a tensor that has one element."""
        return self.data.item()

    def __repr__(self) -> str:
        origin = f", grad_fn={self.grad_fn.name}" if self.grad_fn else ", requires_grad=True" * self.requires_grad
        return f"Tensor({self.data}{origin})"

    def register_post_accumulate_grad_hook(self, hook: Callable[["Tensor"], None]) -> Callable[[], None]:
        """Have ``hook(leaf)`` called in each ``backward()``, once all uses of this leaf have added to its gradient.

        The rest of backward is still to come, so communication can overlap with it. Returns a function that removes
        the hook. Raises RuntimeError for a tensor that is not a leaf with a gradient.
        """
        checks.check_leaf(self)
        self.hooks.append(hook)
        return lambda: self.hooks.remove(hook)

    def backward(self, gradient=None) -> None:
        """Add the gradient of this tensor with respect to each leaf into that leaf's ``grad``, and free the graph.

        Args:
            gradient: of the final loss with respect to this tensor, an array of its shape. A scalar needs none: it is
                the loss.

        Raises:
            RuntimeError: if nothing here requires a gradient, or the graph was already walked.
            ValueError: if ``gradient`` is missing or has another shape.
        """
        gradient = checks.check_seed(self, gradient)
        if self.grad_fn is not None:
            return Walk(self.grad_fn, gradient).run()
        self.accumulate(gradient)
        self.run_hooks()

    def accumulate(self, gradient) -> None:
        """Add one contribution to this leaf's gradient, rounded to the leaf's own dtype first.

        A sum of float32 terms that do not differ wildly in size is exact in float64, in any order.
        """
        gradient = rounded(gradient, self.dtype)
        if self.grad is None:
            self.grad = xp.array(gradient, dtype=self.grad_dtype, order="C")  # a copy: others may hold this array too
            ledger.hold("gradients", self.grad)
        else:
            checks.check_addable(self)
            xp.add(self.grad, gradient, out=self.grad)

    def run_hooks(self) -> None:
        for hook in tuple(self.hooks):  # one of them may remove itself
            hook(self)


class Context:
    """One call of a Function: the node of the graph, and the ``ctx`` that its forward and backward share.

    It points at the nodes its inputs came from, not at the inputs: an activation that nobody saved is freed as soon as
    forward lets go of it.

    Attributes:
        grad_dtype: in which the output's gradient arrives; the output's own unless forward sets another. A function
            whose backward adds it to the gradients of other processes asks for float64, to round the sum once.
        policy: the precision in force when the node was made (``autocast``).
        rounds: whether the output, and the gradient that comes back to it, are rounded to the policy's format. A
            function whose output is a term of a sum yet to be taken, or must stay in float32, says no.
    """

    grad_dtype, rounds, saved, flops, nbytes, freed = None, True, None, 0, 0, False

    def __init__(self, function: type["Function"], arguments: tuple) -> None:
        self.function, self.policy = function, current()
        self.needs_input_grad = tuple(_grad_enabled and isinstance(a, Tensor) and a.requires_grad for a in arguments)
        self.sources = tuple(  # for each argument, the node or leaf that its gradient goes to
            (a.grad_fn or a) if needed else None for a, needed in zip(arguments, self.needs_input_grad, strict=True)
        )

    @property
    def name(self) -> str:
        return self.function.__name__

    def save_for_backward(self, *arrays, exact: tuple = ()) -> None:
        """Keep arrays for ``backward``: it finds them in ``ctx.saved_arrays``. Nothing is kept if none is needed.

        Args:
            arrays: float32 ones are stored in the 16 bits of the policy, if it has any.
            exact: arrays that are stored as they are: statistics, one number for many.
        """
        if any(self.needs_input_grad):
            self.saved = Saved(self.name, arrays, exact, self.policy)

    @property
    def saved_arrays(self) -> tuple:
        """The arrays given to ``save_for_backward``, then the exact ones."""
        return () if self.saved is None else self.saved.arrays()

    @property
    def saved_factors(self) -> tuple:
        """The same, as ``policy.matmul`` takes them: on a GPU those of 16 bits stay packed."""
        return () if self.saved is None else self.saved.factors()

    def free(self) -> None:
        self.saved, self.sources, self.freed = None, (), True


class Function:
    """A differentiable operation: subclass it and write the two static methods, the one right below the other.

    Attributes:
        flops: how many operations forward's products take, from its output and its arguments; None if it has none.
        gradient_flops: for each argument, how many times as many its gradient takes.
        recomputed_flops: how many of the latter compute again what forward had computed.
        factors: how many arguments, the first ones, are nothing but factors of products: they arrive as
            ``ctx.policy.matmul`` takes them.
        kernel: whether a GPU would run it by itself, and not as a part of the product before or after it.
    """

    flops, gradient_flops, recomputed_flops, factors, kernel = None, (), 0, 0, True

    @staticmethod
    def forward(ctx: Context, *arguments):
        """The output array. Tensor arguments arrive as their arrays, all others as they are."""
        raise NotImplementedError

    @staticmethod
    def backward(ctx: Context, gradient):
        """The gradient of each argument of ``forward``, in order; None for one that has, or needs, none.

        A gradient may be more precise than the argument, a float64 sum over tokens say: it is rounded to the argument's
        dtype, or the ``grad_dtype`` of what made it, once, when it gets there.
        """
        raise NotImplementedError

    @classmethod
    def apply(cls, *arguments) -> Tensor:
        """Run ``forward``, and leave a node if a gradient may flow back through the call."""
        ctx = Context(cls, arguments)
        arrays = [around.operand(ctx, a, i) if isinstance(a, Tensor) else a for i, a in enumerate(arguments)]
        output = around.forward(ctx, arrays)
        tensor = Tensor(around.rounded_output(ctx, output), grad_fn=ctx if any(ctx.needs_input_grad) else None)
        ctx.shape, ctx.dtype, ctx.grad_dtype = tensor.shape, tensor.dtype, ctx.grad_dtype or output.dtype
        operands = [(a, array) for a, array in zip(arguments, arrays, strict=True) if isinstance(a, Tensor)]
        around.finish(ctx, operands, tensor, output)
        return tensor


class Walk:
    """Backward from ``root``: each node once, when all the nodes that used its output have run."""

    def __init__(self, root: Context, gradient) -> None:
        self.awaited = count_uses(root)  # node or leaf: contributions still to come
        self.gradients = {root: rounded(gradient, root.grad_dtype)}
        self.ready = [root]

    def run(self) -> None:
        while self.ready:
            node, gradient = self.next()
            self.visit(node, gradient)
            node.free()

    def next(self) -> tuple[Context, object]:
        """A node that all contributions have reached, and their sum: the gradient of its output."""
        node = self.ready.pop()
        return node, around.incoming(node, self.gradients.pop(node))

    def visit(self, node: Context, gradient) -> None:
        """Run the node's backward, and hand each argument's gradient to where the argument came from."""
        for source, contribution in zip(node.sources, around.backward(node, gradient), strict=True):
            if contribution is None:
                continue
            self.awaited[source] -= 1
            if isinstance(source, Tensor):
                source.accumulate(contribution)
                if self.awaited[source] == 0:
                    source.run_hooks()
            else:
                contribution = rounded(contribution, source.grad_dtype)
                earlier = self.gradients.get(source)
                self.gradients[source] = contribution if earlier is None else earlier + contribution
                if self.awaited[source] == 0:
                    self.ready.append(source)


def count_uses(root: Context) -> dict:
    """How many times the graph under ``root`` uses the output of each node and each leaf."""
    uses: dict = {}
    unvisited = [root]
    while unvisited:
        node = unvisited.pop()
        checks.check_not_freed(node)
        for source in node.sources:
            if source is not None:
                if source not in uses and isinstance(source, Context):
                    unvisited.append(source)
                uses[source] = uses.get(source, 0) + 1
    return uses
