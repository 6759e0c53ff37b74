"""Chapter 1: a transformer in NumPy. Its gradients, written by hand.

The *gradient* of a loss with respect to an array has the array's shape. Each element says how much the loss grows as
that element of the array grows. Every backward function here takes the gradient of its output and returns the gradients
of its inputs. You may use NumPy and the functions that you write here. ``minidist check 1`` grades this file,
``minidist check --hint 1.4`` gives a hint.

``adamw_update`` of task 1.7 has the name and arguments of minidist's own function, so the library can train with it:

    minidist train --impl exercises
"""

from math import sqrt

import numpy as np


class Node:
    """Given: one value of a computation, and how it was computed from others.

    Attributes:
        value: a number, or an array.
        parents: the nodes that it was computed from, in order; ``x * x`` names x twice. A leaf has none.
        rule: the local backward rule: maps the gradient of this node to a tuple with one contribution per parent.
            A leaf has none.
        grad: the gradient of this node, where ``backward`` adds up the contributions.
    """

    def __init__(self, value, parents=(), rule=None) -> None:
        self.value, self.parents, self.rule = value, parents, rule
        self.grad = 0.0


def multiply(x: Node, y: Node) -> Node:
    """Given, an example of a rule: ``x * y``. To try ``backward``, call ``backward(multiply(x, x))``."""
    return Node(x.value * y.value, (x, y), lambda gradient: (gradient * y.value, gradient * x.value))


def backward(loss: Node) -> None:
    """1.1  Set ``grad`` to the gradient of the loss, in the loss and in every node that it was computed from.

    The gradient of the loss with respect to itself is 1. Call a node's rule once its own gradient is complete, that is,
    when the rules of all nodes that used it have been called. The order is therefore *topological*.

    Args:
        loss: its value is a number. All nodes that it was computed from have ``grad`` 0.0. A chain of nodes may be
            longer than Python's recursion limit. A node may be used many times, and may be a parent of the same node
            twice.

    Cost: call each node's rule exactly once. The work grows with the number of nodes and parents, not with the number
    of paths through them. Never change a contribution: a rule may return the same array for two parents.
    """
    raise NotImplementedError("task 1.1")


def unbroadcast(gradient: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """1.2  Sum a gradient back to the shape of an array that NumPy broadcast.

    In ``y = x + bias`` with x (2, 5, 3) and bias (3,), each element of the bias is used 10 times, and each use
    contributes to its gradient. NumPy aligns shapes at their ends: it adds the missing leading axes and stretches axes
    of size 1. Sum over both kinds of repetition.

    Args:
        gradient: the gradient of the broadcast result; not changed.
        shape: the original shape, which broadcasts to ``gradient.shape``. May be ``()``.

    Returns:
        An array of exactly ``shape``; ``gradient`` itself where nothing was repeated, if you like. Sum in float64
        (``dtype=np.float64``), since there may be a million tokens; the result may stay float64.
    """
    raise NotImplementedError("task 1.2")


def matmul_backward(gradient: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """1.3  The gradients of both factors of ``a @ b``, where b is a weight that all rows of a share.

    Args:
        gradient: (..., n, m), the gradient of the product.
        a: (..., n, k), with zero or more leading axes. There may be no rows: n or a leading axis may be 0.
        b: (k, m)

    Returns:
        The gradients of a, (..., n, k), and of b, (k, m), in the arrays' dtype. The arguments are not changed.

    Cost: two products, each with as many FLOPs as ``a @ b``. No array larger than a, b or ``gradient``: do not make a
    separate product for each entry of the leading axes.
    """
    raise NotImplementedError("task 1.3")


def layer_norm_backward(
    gradient: np.ndarray, x: np.ndarray, gain: np.ndarray, eps: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """1.4  The gradients of LayerNorm, which computes, for the C values of each token:

        normal = (x - x.mean()) / sqrt(x.var() + eps)
        y = normal * gain + bias

    The mean and the variance depend on x too, so each value of x moves all of the token's outputs.

    Args:
        gradient: (..., C), the gradient of y.
        x: (..., C), with zero or more leading axes, any of which may be 0: no tokens.
        gain: (C,); the bias is not needed.
        eps: as above.

    Returns:
        The gradients of x (..., C), gain (C,) and bias (C,); the first in x's dtype. The arguments are not changed.
    """
    raise NotImplementedError("task 1.4")


def cross_entropy(logits: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """1.5  The mean over all tokens of ``-log(softmax(logits)[target])``, and its gradient.

    Logits may be as large as 1e4 and as small as -1e4, within one token and between tokens. No intermediate result may
    overflow, and no logarithm may be taken of 0.

    Args:
        logits: (tokens, vocab), floating point; at least one token. Not changed.
        targets: (tokens,) integers below vocab.

    Returns:
        The loss, a number, and its gradient with respect to the logits, in their shape and dtype.

    Cost: a few arrays of the logits' size; none of vocab x vocab, which takes gigabytes for a real vocabulary.
    """
    raise NotImplementedError("task 1.5")


def tied_gradients(
    embedding: np.ndarray, hidden: np.ndarray, tokens: np.ndarray, wanted: np.ndarray
) -> tuple[float, dict[str, np.ndarray]]:
    """1.6  Debugging: the loss of a small model and its gradients, by hand.

    The model looks up its tokens, applies one hidden layer, and scores every token of the vocabulary with the
    transposed embedding: the weight is *tied*, as in GPT-2. The loss is the mean squared error of the scores.

    It trains, the loss falls, and nobody complained for a year. Then somebody compared it with the same model under
    autograd, and that one learns faster. Find out why, and fix it.

    Args:
        embedding: (V, C)
        hidden: (C, C)
        tokens: (N,) integers below V.
        wanted: (N, V), the target scores.

    Returns:
        The loss, and its gradients under the keys "embedding" and "hidden". The arguments are not changed.
    """
    # forward
    x = embedding[tokens]  # (N, C)
    h = np.tanh(x @ hidden)  # (N, C)
    scores = h @ embedding.T  # (N, V)
    off = scores - wanted
    loss = float(np.mean(off * off))

    # backward
    gradients = {}
    grad_scores = off * (2 / off.size)
    gradients["embedding"] = grad_scores.T @ h
    grad_h = grad_scores @ embedding
    grad_product = grad_h * (1 - h * h)
    gradients["hidden"] = x.T @ grad_product
    grad_x = grad_product @ hidden.T
    gradients["embedding"][tokens] = grad_x
    return loss, gradients


def adamw_update(
    data: np.ndarray,
    grad: np.ndarray,
    exp_avg: np.ndarray,
    exp_avg_sq: np.ndarray,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    """1.7  One step of AdamW on one array, in place.

    With gradient g, running means m of g and v of its square, step t and weights w:

        m = beta1 m + (1 - beta1) g               v = beta2 v + (1 - beta2) g^2
        m_hat = m / (1 - beta1^t)                 v_hat = v / (1 - beta2^t)
        w = w - lr weight_decay w - lr m_hat / (sqrt(v_hat) + eps)

    Args:
        data, exp_avg, exp_avg_sq: w, m and v, of the same shape and dtype; changed in place.
        grad: g, of the same shape and dtype; not changed.
        step: t, counted from 1.
        betas: (beta1, beta2).

    Any order of operations passes. ``minidist verify --impl exercises`` compares *bits*; to match the library's, square
    g first, then multiply by (1 - beta2); divide sqrt(v) by sqrt(1 - beta2^t), then add eps; divide m by the result,
    then multiply by lr / (1 - beta1^t); multiply w by 1 - lr weight_decay, then subtract. Use ``math.sqrt`` for Python
    numbers: NumPy's returns float64 scalars, and those turn float32 arrays into float64.
    """
    raise NotImplementedError("task 1.7")
