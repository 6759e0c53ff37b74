"""Reverse-mode automatic differentiation on arrays, in one file.

A ``Function`` computes an array from arrays. For each call that a gradient may flow through, it leaves a ``Context``: a
node of the graph that holds what the backward pass will need and points at the nodes it came from. ``backward()`` walks
the nodes from the loss towards the leaves, each node once, after everything that used its output.

PyTorch's names throughout (``torch.autograd.Function``, ``ctx.save_for_backward``, ``ctx.needs_input_grad``,
``register_post_accumulate_grad_hook``). Simpler here: a Function has one output, a graph is walked once, and gradients
are plain arrays, so there are no gradients of gradients.
"""

from collections.abc import Callable, Sequence
from contextlib import contextmanager

from minidist import flops, ledger, trace
from minidist.backend import xp
from minidist.nn.memory.saved import Known, Saved
from minidist.nn.precision.policy import Packed, Policy, current
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


class Tensor:
    """An array, and where it came from.

    A *leaf* was made by hand, such as a parameter. If it requires a gradient, ``backward()`` adds into its ``grad``, an
    array of the leaf's shape and of dtype ``grad_dtype``. That is float64 unless set otherwise, since a gradient is
    summed over micro-batches, ranks and uses of the leaf, and such sums are rounded once, at their end. If ``grad``
    exists already, a view into a communication buffer say, it is added to in place.

    Every other tensor is the output of a Function. Its gradient lives only while ``backward()`` needs it.

    Args:
        data: an array, or anything ``asarray`` takes.
        requires_grad: whether this leaf receives a gradient.

    Raises:
        TypeError: if a gradient is asked for and ``data`` is not floating point.
    """

    __array_ufunc__ = None  # so that `array + tensor` asks the tensor, instead of looping over the array's elements

    def __init__(self, data, requires_grad: bool = False, grad_fn: "Context | None" = None) -> None:
        self.data = xp.asarray(data)
        self.made_under: Policy | None = None  # the precision of the operation that put it out
        self.unrounded = False  # by it: a term of a sum, say
        self.packed: Packed | None = None  # the same in 16 bits, once someone has saved it so
        self.grad_fn = grad_fn  # the node that made this tensor; None for a leaf
        self.requires_grad = requires_grad or grad_fn is not None
        if self.requires_grad and self.data.dtype.kind != "f":
            raise TypeError(f"only floating-point tensors can require a gradient, not {self.data.dtype}")
        self.grad = None
        self.grad_dtype = xp.float64
        self.hooks: list[Callable[[Tensor], None]] = []

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def dtype(self):
        return self.data.dtype

    @property
    def ndim(self) -> int:
        return self.data.ndim

    @property
    def size(self) -> int:
        return self.data.size

    def cast(self, policy: Policy):
        """The array as an operation under this policy takes it: rounded, unless it comes from one under the same."""
        return self.data if self.made_under is policy else policy.round(self.data)

    def pack(self, policy: Policy) -> Packed:
        """The array in the policy's 16 bits; made once, if an operation has put it out: a leaf may change."""
        if self.packed is not None and self.packed.format is policy.compute:
            return self.packed
        packed = policy.pack(self.data)
        if self.made_under is not None:
            self.packed = packed
        return packed

    def item(self) -> float:
        """The value of a tensor that has one element."""
        return self.data.item()

    def __repr__(self) -> str:
        origin = f", grad_fn={self.grad_fn.name}" if self.grad_fn else ", requires_grad=True" * self.requires_grad
        return f"Tensor({self.data}{origin})"

    def register_post_accumulate_grad_hook(self, hook: Callable[["Tensor"], None]) -> Callable[[], None]:
        """Have ``hook(leaf)`` called once in each ``backward()``, as soon as the leaf's gradient is complete.

        Complete means that all uses of the leaf in this graph have contributed; the rest of the backward pass is still
        to come, and that is what lets data parallelism communicate while it runs. Returns a function that removes the
        hook (PyTorch returns a handle with a method ``remove``).

        Raises:
            RuntimeError: if the tensor is not a leaf that requires a gradient.
        """
        if self.grad_fn is not None or not self.requires_grad:
            raise RuntimeError("a gradient hook needs a leaf that requires a gradient, such as a Parameter")
        self.hooks.append(hook)
        return lambda: self.hooks.remove(hook)

    def backward(self, gradient=None) -> None:
        """Add the gradient of this tensor with respect to each leaf into that leaf's ``grad``, and free the graph.

        Args:
            gradient: the gradient of the final loss with respect to this tensor, an array of its shape. A scalar needs
                none: it is the loss.

        Raises:
            RuntimeError: if nothing here requires a gradient, or the graph was already walked.
            ValueError: if ``gradient`` is missing or has another shape.
        """
        if not self.requires_grad:
            raise RuntimeError(
                "this tensor does not require a gradient: it was made under no_grad(), "
                "or from tensors of which none has requires_grad=True"
            )
        if gradient is None:
            if self.size != 1:
                raise ValueError(
                    f"backward() on shape {self.shape} needs a gradient of that shape; only a scalar does without"
                )
            gradient = xp.ones(self.shape, self.dtype)
        gradient = xp.asarray(gradient)
        if gradient.shape != self.shape:
            raise ValueError(f"the gradient has shape {gradient.shape}, but the tensor has shape {self.shape}")
        if self.grad_fn is None:
            self.accumulate(gradient)
            self.run_hooks()
        else:
            _walk(self.grad_fn, gradient)

    def backward_inputs(self, gradient, inputs: "Sequence[Tensor]") -> Callable[[], None]:
        """The first half of ``backward()``: the gradients of the leaves ``inputs`` alone. Returns the second half.

        The second half adds the gradients of all other leaves; until then the graph stays. A pipeline stage whose
        neighbour waits for the gradient of its input sends that first (Qi et al., "Zero Bubble Pipeline Parallelism",
        2023).

        Args:
            gradient: as for ``backward``.
        """
        return _walk(self.grad_fn, xp.ones(self.shape, self.dtype) if gradient is None else gradient, inputs)

    def accumulate(self, gradient) -> None:
        """Add one contribution to this leaf's gradient: in place, if there is an array already.

        It is rounded to the leaf's own dtype first. The sum of float32 terms that do not differ wildly in size is exact
        in float64, whatever their order; terms that use all of float64 would not have that.

        Raises:
            RuntimeError: if the array there has another dtype or shape than this leaf's gradients.
        """
        gradient = rounded(gradient, self.dtype)
        if self.grad is None:
            self.grad = xp.array(gradient, dtype=self.grad_dtype, order="C")  # a copy: others may hold this array too
            ledger.hold("gradients", self.grad)
            return
        if self.grad.dtype != self.grad_dtype or self.grad.shape != self.shape:
            raise RuntimeError(
                f"cannot add to this leaf's grad: it is {self.grad.dtype}{self.grad.shape}, and the sum is kept as "
                f"{xp.dtype(self.grad_dtype)}{self.shape}. After an optimizer step, call zero_grad() before backward()"
            )
        xp.add(self.grad, gradient, out=self.grad)

    def run_hooks(self) -> None:
        for hook in self.hooks:
            hook(self)


class Context:
    """One call of a Function: the node of the graph, and the ``ctx`` that its forward and backward share.

    A node points at the nodes its inputs came from, not at the inputs. An activation that nobody saved is therefore
    freed as soon as the forward pass lets go of it.

    Attributes:
        grad_dtype: in which the output's gradient is to arrive; the output's own dtype unless forward sets another.
            A function whose backward adds it to the gradients of other processes asks for float64, so that the sum is
            rounded once, at its end.
        policy: the precision that was asked for when the node was made (``autocast``).
        rounds: whether the output, and the gradient that comes back to it, are rounded to the policy's format. A
            function whose output is a term of a sum yet to be taken, or which must stay in float32, says no.
    """

    grad_dtype = None
    rounds = True

    def __init__(self, function: type["Function"], arguments: tuple) -> None:
        self.function = function
        self.needs_input_grad = tuple(
            _grad_enabled and isinstance(argument, Tensor) and argument.requires_grad for argument in arguments
        )
        self.sources = tuple(  # for each argument, the node or leaf that its gradient goes to
            (argument.grad_fn or argument) if needed else None
            for argument, needed in zip(arguments, self.needs_input_grad, strict=True)
        )
        self.policy = current()
        self.own = function, self.sources, self.policy
        self.to_save: tuple | None = None  # arrays and exact ones, while forward runs
        self.saved: Saved | None = None
        self.flops = 0
        self.freed = False

    @property
    def name(self) -> str:
        return self.function.__name__

    def save_for_backward(self, *arrays, exact: tuple = ()) -> None:
        """Keep arrays for ``backward``, which finds them in ``ctx.saved_arrays``. Nothing is kept if none is needed.

        Args:
            arrays: float32 ones are stored in the 16 bits of the policy, if it has any.
            exact: arrays that are stored as they are: statistics, one number for many.
        """
        if any(self.needs_input_grad):
            self.to_save = arrays, exact

    @property
    def saved_arrays(self) -> tuple:
        """The arrays given to ``save_for_backward``, and behind them the exact ones."""
        return () if self.saved is None else self.saved.arrays()

    def gradients(self, gradient) -> tuple:
        """From the gradient of the output to the gradients of the arguments. Frees the node.

        Raises:
            RuntimeError: if ``backward`` left out the gradient of an argument that needs one.
        """
        if trace.recording():
            with trace.span(f"{self.name}.backward"):
                found = self.function.backward(self, gradient)
        else:
            found = self.function.backward(self, gradient)
        costs = zip(self.function.gradient_flops, self.needs_input_grad, strict=False)
        flops.add(self.flops * sum(cost for cost, needed in costs if needed), "backward")
        found = found if isinstance(found, tuple) else (found,)
        if len(found) != len(self.needs_input_grad):
            raise RuntimeError(
                f"{self.name}.backward returned {len(found)} gradients for {len(self.needs_input_grad)} arguments of "
                "forward: return one for each, None where there is none"
            )
        for position, needed in enumerate(self.needs_input_grad):
            if needed and found[position] is None:
                raise RuntimeError(
                    f"{self.name}.backward returned None for argument {position}, which needs a gradient"
                )
        return found

    def made(self, output, known: Known) -> Tensor:
        """Note the shape and the dtypes of the output of ``forward``, make it a tensor, and store what was saved.

        Args:
            output: the array that forward returned.
            known: the tensors among the arguments, each with the array that forward got of it.

        Raises:
            RuntimeError: if ``forward`` keeps something under a name that the graph itself needs.
        """
        taken = {"shape", "dtype"} & vars(self).keys()
        own = zip(("function", "sources", "policy"), self.own, strict=True)
        taken |= {name for name, value in own if getattr(self, name) is not value}
        if taken:
            forward = f"{self.own[0].__name__}.forward"
            raise RuntimeError(f"{forward} sets ctx.{min(taken)}, where the graph keeps its own: choose another name")
        self.shape, self.dtype = output.shape, output.dtype
        self.grad_dtype = self.grad_dtype or output.dtype
        tensor = Tensor(
            self.policy.round(output) if self.rounds else output,
            grad_fn=self if any(self.needs_input_grad) else None,
        )
        tensor.made_under, tensor.unrounded = self.policy, not self.rounds
        if self.to_save is not None:
            self.saved = Saved(self.name, self.shape, *self.to_save, self.policy)
            self.saved.keep([*known, (tensor, output)])
            self.to_save = None
        return tensor

    def free(self) -> None:
        self.saved, self.sources, self.freed = None, (), True


class Function:
    """A differentiable operation: subclass it and write the two static methods, the one right below the other.

    Attributes:
        flops: how many operations the products of forward take, from its output and its arguments; None if it has none.
        gradient_flops: for each argument, how many times as many its gradient takes.
    """

    flops: Callable | None = None
    gradient_flops: tuple[int, ...] = ()

    @staticmethod
    def forward(ctx: Context, *arguments):
        """The output array. Tensor arguments arrive as their arrays, all others as they are."""
        raise NotImplementedError

    @staticmethod
    def backward(ctx: Context, gradient):
        """The gradient of each argument of ``forward``, in order; None for one that has, or needs, none.

        A gradient may be more precise than the argument (a float64 sum over tokens, say): it is rounded to the
        argument's dtype, or the ``grad_dtype`` of what made it, once, when it gets there.
        """
        raise NotImplementedError

    @classmethod
    def apply(cls, *arguments) -> Tensor:
        """Run ``forward``, and record the call if a gradient may flow back through it."""
        ctx = Context(cls, arguments)
        arrays = [argument.cast(ctx.policy) if isinstance(argument, Tensor) else argument for argument in arguments]
        if trace.recording():
            with trace.span(cls.__name__):
                output = xp.asarray(cls.forward(ctx, *arrays))
        else:
            output = xp.asarray(cls.forward(ctx, *arrays))
        if cls.flops is not None:
            ctx.flops = cls.flops(output, *arrays)
            flops.add(ctx.flops)
        return ctx.made(
            output, [(a, array) for a, array in zip(arguments, arrays, strict=True) if isinstance(a, Tensor)]
        )


def _walk(root: Context, gradient, inputs: Sequence[Tensor] | None = None) -> Callable[[], None]:
    """Run backward from ``root``: each node once, when all the nodes that used its output have run.

    With ``inputs``, only these leaves get their gradients; the function that is returned then sees to the others.
    """
    awaited = _count_uses(root)  # node or leaf: contributions still to come
    gradients = {root: rounded(gradient, root.grad_dtype)}
    ready = [root]
    later: list[tuple[Context, object]] = []  # nodes with leaves that are not among the inputs, and their gradients

    def give(source: Context | Tensor, contribution) -> None:
        awaited[source] -= 1
        if isinstance(source, Tensor):
            source.accumulate(contribution)
            if awaited[source] == 0:
                source.run_hooks()
        else:
            contribution = rounded(contribution, source.grad_dtype)
            gradients[source] = gradients[source] + contribution if source in gradients else contribution
            if awaited[source] == 0:
                ready.append(source)

    def run(node: Context, incoming, wanted: tuple[bool, ...]) -> None:
        node.needs_input_grad = wanted
        for source, contribution, needed in zip(node.sources, node.gradients(incoming), wanted, strict=True):
            if not needed:
                continue
            if contribution.shape != source.shape:
                raise RuntimeError(
                    f"{node.name}.backward returned a gradient of shape {contribution.shape} "
                    f"for an argument of shape {source.shape}"
                )
            give(source, contribution)

    while ready:
        node = ready.pop()
        incoming = gradients.pop(node)
        if node.rounds:
            incoming = node.policy.round(incoming)
        waits = [inputs is not None and isinstance(s, Tensor) and s not in inputs for s in node.sources]
        now = tuple(needed and not wait for needed, wait in zip(node.needs_input_grad, waits, strict=True))
        if any(now):
            run(node, incoming, now)
        if any(waits):
            node.needs_input_grad = tuple(waits)
            later.append((node, incoming))
        else:
            node.free()

    def rest() -> None:
        for node, incoming in later:
            run(node, incoming, node.needs_input_grad)
            node.free()
        later.clear()

    return rest


def _count_uses(root: Context) -> dict:
    """How many times the graph under ``root`` uses the output of each node and each leaf."""
    uses: dict = {}
    unvisited = [root]
    while unvisited:
        node = unvisited.pop()
        if node.freed:
            raise RuntimeError(
                f"backward() has already walked this graph ({node.name}) and freed what it had saved: "
                "run the forward pass again, or add the losses and call backward() once"
            )
        for source in node.sources:
            if source is None:
                continue
            if source not in uses and isinstance(source, Context):
                unvisited.append(source)
            uses[source] = uses.get(source, 0) + 1
    return uses
