"""The engine: order, accumulation, hooks, what is kept and what is freed, and what it says when misused."""

import gc
import weakref

import numpy as np
import pytest

from minidist import trace
from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.random import DropoutRNG
from minidist.nn.tensor import Context, Function, Tensor, no_grad


def leaf(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).standard_normal(shape), requires_grad=True)


def test_a_leaf_used_several_times_gets_the_sum():
    x = leaf(3)
    (x * x + x * 2.0 + x).sum().backward()
    np.testing.assert_allclose(x.grad, 2 * x.data + 3)


def test_gradients_accumulate_over_calls_in_grad_dtype():
    x = Tensor(np.ones(3, np.float32), requires_grad=True)
    (x * 2.0).sum().backward()
    (x * 2.0).sum().backward()
    assert x.grad.dtype == np.float64
    np.testing.assert_array_equal(x.grad, np.full(3, 4.0))

    x = Tensor(np.ones(3, np.float32), requires_grad=True)
    x.grad_dtype = np.float32
    x.sum().backward()
    assert x.grad.dtype == np.float32


def test_an_existing_gradient_is_added_to_in_place():
    x = Tensor(np.ones((2, 3), np.float32), requires_grad=True)
    bucket = np.ones(10)
    x.grad = bucket[2:8].reshape(2, 3)
    (x * 5.0).sum().backward()
    np.testing.assert_array_equal(bucket, [1, 1, 6, 6, 6, 6, 6, 6, 1, 1])


def test_a_first_gradient_is_a_copy():
    x, y = leaf(3), leaf(3)
    (x + y).backward(np.ones(3))
    x.grad += 1
    np.testing.assert_array_equal(y.grad, np.ones(3))


def test_adding_to_a_gradient_of_another_dtype_is_refused():
    x = Tensor(np.ones(3, np.float32), requires_grad=True)
    x.grad = np.zeros(3, np.float32)
    with pytest.raises(RuntimeError, match=r"float32.*kept as float64.*zero_grad"):
        x.sum().backward()


def test_a_gradient_more_precise_than_an_activation_is_rounded_for_it_but_not_for_a_leaf():
    seen = []

    class Spy(Function):
        @staticmethod
        def forward(ctx, a):
            return a.copy()

        @staticmethod
        def backward(ctx, gradient):
            seen.append(gradient.dtype)
            return gradient

    inner, row = Tensor(np.ones((1, 2), np.float32), requires_grad=True), Tensor(np.ones((3, 1), np.float32), True)
    (Spy.apply(inner) + row).sum().backward()  # both are broadcast, so their gradients are float64 sums
    assert seen == [np.float32]
    row.grad = None
    (row + np.full((3, 2), 1e-9, np.float32)).backward(np.full((3, 2), np.float32(0.1)))
    assert row.grad[0, 0] == 2 * np.float64(np.float32(0.1))


@pytest.mark.long
def test_a_chain_of_a_hundred_thousand_operations_needs_no_recursion():
    x = y = leaf(1)
    for _ in range(100_000):
        y = -y
    y.backward()
    np.testing.assert_array_equal(x.grad, [1.0])
    del y


def test_hooks_fire_once_each_as_soon_as_a_leaf_is_complete():
    first, second, shared = leaf(2), leaf(2), leaf(2)
    order = []
    for name, parameter in (("first", first), ("second", second), ("shared", shared)):
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: order.append((name, p.grad.copy())))
    ((first * shared) * second * shared).sum().backward()
    assert [name for name, _ in order] == ["second", "first", "shared"]
    for name, gradient in order:  # each was complete when its hook ran
        np.testing.assert_array_equal(gradient, {"first": first, "second": second, "shared": shared}[name].grad)


def test_hooks_of_a_gpt_fire_last_layer_first_and_the_tied_embedding_last():
    model = GPT(GPTConfig(context=4, layers=3, heads=2, width=8))
    order = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: order.append(p.name))
    tokens = np.zeros((1, 4), np.int64)
    trace.start()
    try:
        loss = model(tokens, tokens)
        hook = model.blocks[2].mlp.proj.weight.register_post_accumulate_grad_hook(lambda p: trace.record("complete"))
        loss.backward()
    finally:
        log = trace.stop()
    assert sorted(order) == sorted(name for name, _ in model.named_parameters())
    assert order[-1] == "embeddings.token.weight"
    layers = [int(name.split(".")[1]) for name in order if name.startswith("blocks")]
    assert layers == sorted(layers, reverse=True)
    backward_spans = [event for event in log[log.index("complete") :] if event != "complete"]
    assert len(backward_spans) > 30  # most of the backward pass was still to come
    hook()
    assert len(model.blocks[2].mlp.proj.weight.hooks) == 1


def test_a_hook_runs_once_in_every_backward():
    x, calls = leaf(2), []
    x.register_post_accumulate_grad_hook(calls.append)
    for _ in range(3):
        (x * x).sum().backward()
    assert calls == [x, x, x]


def test_no_grad_builds_no_graph_and_saves_nothing():
    x = leaf(2, 3)
    seen = []

    class Spy(Function):
        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a)
            seen.append(ctx)
            return a * 1

    with no_grad():
        y = Spy.apply(x)
    assert y.grad_fn is None and not y.requires_grad
    assert seen[0].saved_arrays == () and seen[0].needs_input_grad == (False,)
    Spy.apply(x)
    assert len(seen[1].saved_arrays) == 1

    @no_grad()
    def decorated():
        return x * x

    assert decorated().grad_fn is None and (x * x).grad_fn is not None


def test_no_grad_ends_with_an_exception_too():
    with pytest.raises(KeyError), no_grad():
        raise KeyError
    assert (leaf(1) * 2.0).requires_grad


def test_what_was_saved_is_freed_by_backward():
    model = GPT(GPTConfig(context=4, layers=1, heads=2, width=8, dropout=0.1))
    tokens = np.zeros((1, 4), np.int64)
    kept = {id(array) for array in (tokens, *(parameter.data for parameter in model.parameters()))}

    loss = model(tokens, tokens, DropoutRNG(0, 0, 0))
    saved = {}
    unvisited = [loss.grad_fn]
    while unvisited:
        node = unvisited.pop()
        for array in node.saved_arrays:
            if array is not None and id(array) not in kept:
                saved[id(array)] = weakref.ref(array)
        unvisited += [source for source in node.sources if isinstance(source, Context)]
    assert len(saved) > 20
    del node, array
    assert all(reference() is not None for reference in saved.values())
    loss.backward()
    gc.collect()
    assert [reference() for reference in saved.values() if reference() is not None] == []


def test_an_activation_that_nobody_saved_is_freed_during_forward():
    x = leaf(3)
    middle = x + 1.0
    array = weakref.ref(middle.data)
    y = middle + 1.0
    del middle
    assert array() is None
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, np.ones(3))


def test_unneeded_gradients_are_not_computed():
    needed = []

    class Spy(Function):
        @staticmethod
        def forward(ctx, a, b, c):
            needed.append(ctx.needs_input_grad)
            return a + b

    Spy.apply(Tensor(np.ones(2)), leaf(2), "neither")
    assert needed == [(False, True, False)]


def test_operations_are_traced_while_recording():
    x = leaf(2)
    trace.start()
    try:
        (x * x).sum().backward()
    finally:
        names = [entry.name for entry in trace.stop() if isinstance(entry, trace.Event)]
    assert names == ["Multiply", "Sum", "Sum.backward", "Multiply.backward"]


def test_backward_of_a_leaf_itself():
    x = leaf(2)
    x.backward(np.array([3.0, 4.0]))
    np.testing.assert_array_equal(x.grad, [3, 4])


class TestErrors:
    def test_backward_twice(self):
        x = leaf(2)
        y = (x * x).sum()
        y.backward()
        with pytest.raises(RuntimeError, match=r"already walked.*forward pass again"):
            y.backward()

    def test_backward_through_a_part_that_was_freed(self):
        x = leaf(2)
        y = x * x
        y.sum().backward()
        with pytest.raises(RuntimeError, match="already walked this graph \\(Multiply\\)"):
            (y + 1.0).sum().backward()

    def test_backward_from_many_elements(self):
        with pytest.raises(ValueError, match=r"shape \(2,\) needs a gradient"):
            (leaf(2) * 2.0).backward()

    def test_gradient_of_the_wrong_shape(self):
        with pytest.raises(ValueError, match=r"gradient has shape \(3,\).*\(2,\)"):
            (leaf(2) * 2.0).backward(np.ones(3))

    def test_nothing_to_differentiate(self):
        with pytest.raises(RuntimeError, match="requires_grad=True"):
            Tensor(np.ones(())).backward()

    def test_integers_have_no_gradient(self):
        with pytest.raises(TypeError, match="int64"):
            Tensor(np.ones(2, np.int64), requires_grad=True)

    def test_hook_on_an_activation(self):
        with pytest.raises(RuntimeError, match="leaf"):
            (leaf(2) * 2.0).register_post_accumulate_grad_hook(print)

    @pytest.mark.parametrize(
        ("returned", "message"),
        [
            (lambda g: (g, g), "returned 2 gradients for 1 argument"),
            (lambda g: None, "returned None for argument 0"),
            (lambda g: g[:1], r"shape \(1,\) for an argument of shape \(2,\)"),
        ],
    )
    def test_a_function_with_a_wrong_backward(self, returned, message):
        class Wrong(Function):
            @staticmethod
            def forward(ctx, a):
                return a * 1

            @staticmethod
            def backward(ctx, gradient):
                return returned(gradient)

        with pytest.raises(RuntimeError, match=message):
            Wrong.apply(leaf(2)).backward(np.ones(2))

    def test_matmul_of_vectors(self):
        with pytest.raises(ValueError, match="two or more axes"):
            leaf(2) @ leaf(2)


@pytest.mark.parametrize("name", ["shape", "dtype", "function", "sources", "policy"])
def test_names_that_the_graph_needs_are_refused(name):
    """Kept under such a name, something of forward's would be overwritten without a word."""

    class Forgetful(Function):
        @staticmethod
        def forward(ctx, x):
            setattr(ctx, name, getattr(x, name, "mine"))
            return x

    with pytest.raises(RuntimeError, match=f"Forgetful.forward sets ctx.{name}, where the graph keeps its own"):
        Forgetful.apply(Tensor([1.0]))
