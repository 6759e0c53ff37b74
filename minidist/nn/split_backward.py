"""Backward in two halves: first the gradients that another rank waits for, then all others.

A pipeline stage whose neighbour waits for the gradient of its input computes and sends that first, and the gradients of
its weights when it would be idle (Qi et al., "Zero Bubble Pipeline Parallelism", 2023).
"""

from collections.abc import Callable, Sequence

from minidist.nn.tensor import Tensor, Walk


def backward_inputs(output: Tensor, gradient, inputs: Sequence[Tensor]) -> Callable[[], None]:
    """The first half of ``output.backward(gradient)``: only the gradients of the leaves ``inputs``.

    Returns:
        The second half. Call it to add the gradients of all other leaves; until then it keeps the graph.
    """
    walk = Walk(output, gradient)
    later = []  # nodes with leaves that are not among the inputs, and the gradients of their outputs
    while walk.ready:
        node, incoming = walk.next()
        waits = [isinstance(source, Tensor) and source not in inputs for source in node.sources]
        now = tuple(needed and not wait for needed, wait in zip(node.needs_input_grad, waits, strict=True))
        if any(now):
            node.needs_input_grad = now
            walk.visit(node, incoming)
        if any(waits):
            node.needs_input_grad = tuple(waits)
            later.append((node, incoming))
        else:
            node.free()

    def second_half() -> None:
        for node, incoming in later:
            walk.visit(node, incoming)
            node.free()
        later.clear()

    return second_half
