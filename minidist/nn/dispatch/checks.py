"""The mistakes that autograd detects, and their messages: misuse of tensors, and errors in a Function."""

from minidist.backend import xp

OWN_NAMES = ("function", "sources", "policy")  # a node's, from before forward on; afterwards shape and dtype too


def check_floating(tensor) -> None:
    """Raise TypeError for a tensor that cannot have a gradient."""
    if tensor.requires_grad and tensor.data.dtype.kind != "f":
        raise TypeError(f"only floating-point tensors can require a gradient, not {tensor.data.dtype}")


def check_leaf(tensor) -> None:
    """Raise RuntimeError for a tensor whose hook would never be called."""
    if tensor.grad_fn is not None or not tensor.requires_grad:
        raise RuntimeError("a gradient hook needs a leaf that requires a gradient, such as a Parameter")


def check_seed(tensor, gradient):
    """The gradient that backward starts from, as an array; 1 for a scalar without one.

    Raises:
        RuntimeError: if the tensor does not require a gradient.
        ValueError: if the gradient is missing, or has another shape than the tensor.
    """
    if not tensor.requires_grad:
        raise RuntimeError(
            "this tensor does not require a gradient: it was made under no_grad(), "
            "or from tensors of which none has requires_grad=True"
        )
    if gradient is None:
        if tensor.size != 1:
            raise ValueError(
                f"backward() on shape {tensor.shape} needs a gradient of that shape; only a scalar does without"
            )
        return xp.ones(tensor.shape, tensor.dtype)
    gradient = xp.asarray(gradient)
    if gradient.shape != tensor.shape:
        raise ValueError(f"the gradient has shape {gradient.shape}, but the tensor has shape {tensor.shape}")
    return gradient


def check_addable(leaf) -> None:
    """Raise RuntimeError if the leaf's gradient differs in dtype or shape from what will be added to it."""
    if leaf.grad.dtype != leaf.grad_dtype or leaf.grad.shape != leaf.shape:
        raise RuntimeError(
            f"cannot add to this leaf's grad: it is {leaf.grad.dtype}{leaf.grad.shape}, and the sum is kept as "
            f"{xp.dtype(leaf.grad_dtype)}{leaf.shape}. After an optimizer step, call zero_grad() before backward()"
        )


def check_not_freed(node) -> None:
    """Raise RuntimeError if a graph is walked a second time."""
    if node.freed:
        raise RuntimeError(
            f"backward() has already walked this graph ({node.name}) and freed what it had saved: "
            "run the forward pass again, or add the losses and call backward() once"
        )


def own_values(node) -> tuple:
    """What a node stores under its own names, for a comparison after forward."""
    return tuple(getattr(node, name) for name in OWN_NAMES)


def check_own_names(node, before: tuple) -> None:
    """Raise RuntimeError if ``forward`` has stored something under a name that the graph needs."""
    taken = {"shape", "dtype"} & vars(node).keys()
    taken |= {name for name, value in zip(OWN_NAMES, before, strict=True) if getattr(node, name) is not value}
    if taken:
        forward = f"{before[0].__name__}.forward"
        raise RuntimeError(f"{forward} sets ctx.{min(taken)}, where the graph keeps its own: choose another name")


def check_gradients(node, found: tuple) -> None:
    """Raise RuntimeError unless ``backward`` returned a gradient of the right shape for each argument."""
    if len(found) != len(node.needs_input_grad):
        raise RuntimeError(
            f"{node.name}.backward returned {len(found)} gradients for {len(node.needs_input_grad)} arguments of "
            "forward: return one for each, None where there is none"
        )
    for position, needed in enumerate(node.needs_input_grad):
        if needed and found[position] is None:
            raise RuntimeError(f"{node.name}.backward returned None for argument {position}, which needs a gradient")
        if needed and found[position].shape != node.sources[position].shape:
            raise RuntimeError(
                f"{node.name}.backward returned a gradient of shape {found[position].shape} "
                f"for an argument of shape {node.sources[position].shape}"
            )
