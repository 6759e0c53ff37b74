"""The engine: order, accumulation, hooks, what is kept and what is freed. (What it says when misused: refusals.txt.)"""

import ast
import gc
import re
import weakref

import numpy as np
import pytest

from minidist import trace
from minidist.comm.runtime import serialization
from minidist.course.answers import ROOT
from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.optim.clip import grad_norm
from minidist.nn.random import DropoutRNG
from minidist.nn.tensor import Context, Function, Tensor, no_grad


def leaf(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).standard_normal(shape), requires_grad=True)


def ones(*shape: int) -> Tensor:
    return Tensor(np.ones(shape, np.float32), requires_grad=True)


def test_gradients_add_up_in_grad_dtype_where_they_are():
    """Over uses and over calls; in a view of a communication buffer, too. The first one is a copy."""
    x = ones(3)
    for _ in range(2):
        (x * 2.0 + x).sum().backward()
    assert x.grad.dtype == np.float64 and x.grad.tolist() == [6, 6, 6]
    single = ones(3)
    single.grad_dtype = np.float32
    single.sum().backward()
    assert single.grad.dtype == np.float32
    bucket, y = np.ones(10), ones(2, 3)
    y.grad = bucket[2:8].reshape(2, 3)
    (y * 5.0).sum().backward()
    assert bucket.tolist() == [1, 1, 6, 6, 6, 6, 6, 6, 1, 1]
    a, b, gradient = leaf(3), leaf(3), np.ones(3)
    (a + b).backward(gradient)
    a.grad += 1
    assert b.grad.tolist() == gradient.tolist() == [1, 1, 1]
    a.grad = None
    a.backward(np.array([3.0, 4.0, 5.0]))  # of a leaf itself
    assert a.grad.tolist() == [3, 4, 5]


def test_a_gradient_more_precise_than_an_activation_is_rounded_for_it_but_not_for_a_leaf():
    """It is not rounded either where the node itself asks for float64."""
    seen = []

    class Spy(Function):
        @staticmethod
        def forward(ctx, a, dtype=None):
            ctx.grad_dtype = dtype
            return a.copy()

        @staticmethod
        def backward(ctx, gradient):
            seen.append(gradient)
            return gradient, *[None] * (len(ctx.needs_input_grad) - 1)

    inner, row = ones(1, 2), ones(3, 1)
    (Spy.apply(inner) + row).sum().backward()  # both are broadcast, so their gradients are float64 sums
    row.grad = None
    (row + np.full((3, 2), 1e-9, np.float32)).backward(np.full((3, 2), np.float32(0.1)))
    assert row.grad[0, 0] == 2 * np.float64(np.float32(0.1))
    Spy.apply(ones(2), np.float64).backward(np.array([1 + 2.0**-40, 1.0]))
    assert [gradient.dtype for gradient in seen] == [np.float32, np.float64] and seen[1][0] == 1 + 2.0**-40


def test_a_chain_of_many_operations_needs_no_recursion():
    x = y = leaf(1)
    for _ in range(20_000):
        y = -y
    y.backward()
    assert x.grad.tolist() == [1.0]
    del y


def test_hooks_fire_once_in_each_backward_as_soon_as_a_leaf_is_complete():
    """In a GPT the last layer comes first, and the tied embedding last."""
    first, second, shared, order = leaf(2), leaf(2), leaf(2), []
    for name, parameter in (("first", first), ("second", second), ("shared", shared)):
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: order.append((name, p, p.grad.copy())))
    for _ in range(2):
        order.clear()
        ((first * shared) * second * shared).sum().backward()
        assert [name for name, *_ in order] == ["second", "first", "shared"]
        assert all((parameter.grad == then).all() for _, parameter, then in order)  # each was complete
    model, order = GPT(GPTConfig(context=4, layers=3, heads=2, width=8)), []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: order.append(p.name))
    model(*np.zeros((2, 1, 4), np.int64)).backward()
    assert sorted(order) == sorted(name for name, _ in model.named_parameters())
    layers = [int(name.split(".")[1]) for name in order if name.startswith("blocks")]
    assert layers == sorted(layers, reverse=True) and order[-1] == "embeddings.token.weight"


def test_without_a_gradient_nothing_is_built_saved_or_computed():
    seen = []

    class Spy(Function):
        @staticmethod
        def forward(ctx, a, b, c):
            ctx.save_for_backward(a)
            seen.append(ctx)
            return a + b

    with no_grad():
        y = Spy.apply(leaf(2), leaf(2), "neither")
    assert y.grad_fn is None and not y.requires_grad and seen[0].saved_arrays == ()
    Spy.apply(Tensor(np.ones(2)), leaf(2), "neither")
    assert seen[1].needs_input_grad == (False, True, False) and len(seen[1].saved_arrays) == 1
    with pytest.raises(KeyError), no_grad():
        raise KeyError
    assert (leaf(1) * 2.0).requires_grad and no_grad()(lambda: leaf(1) * 2.0)().grad_fn is None


def test_what_was_saved_is_freed_by_backward_and_what_nobody_saved_during_forward():
    model = GPT(GPTConfig(context=4, layers=1, heads=2, width=8, dropout=0.1))
    tokens = np.zeros((1, 4), np.int64)
    kept = {id(array) for array in (tokens, *(parameter.data for parameter in model.parameters()))}
    loss = model(tokens, tokens, DropoutRNG(0, 0, 0))
    saved, unvisited = {}, [loss.grad_fn]
    while unvisited:
        node = unvisited.pop()
        for array in node.saved_arrays:
            if array is not None and id(array) not in kept:
                saved[id(array)] = weakref.ref(array)
        unvisited += [source for source in node.sources if isinstance(source, Context)]
    del node, array
    assert len(saved) > 20 and all(reference() is not None for reference in saved.values())
    loss.backward()
    gc.collect()
    assert [reference() for reference in saved.values() if reference() is not None] == []
    middle = leaf(3) + 1.0
    array = weakref.ref(middle.data)
    y = middle + 1.0
    del middle
    assert array() is None and y.requires_grad


def test_a_function_of_a_notebook_that_calls_one_of_the_librarys_can_be_sent_to_ranks():
    """The function travels with all that it refers to, which must not go round in circles, also with its lines of C."""
    notebook = {"__name__": "__main__", "grad_norm": grad_norm}
    exec("def norm(parameters):\n    return grad_norm(parameters)\n", notebook)
    assert serialization.loads(serialization.dumps(notebook["norm"]))([]) == 0.0


@pytest.mark.parametrize("chapter", ["ch06_tensor_parallel", "ch08_precision"])
def test_learners_are_told_which_names_a_node_takes(chapter):
    told = ast.get_docstring(ast.parse((ROOT / "solutions" / f"{chapter}.py").read_text(encoding="utf-8")))
    trace.start()
    node = (ones(2, 2) @ ones(2, 2)).grad_fn
    trace.stop()
    taken = {name for name in dir(node) if not name.startswith("_")}
    assert {"began", "flops"} < taken <= set(re.findall(r"\w+", told))
