"""An autograd graph, captured from the real one, with the backward pass through it."""

import numpy as np
from figures.ch01 import graph

from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.tensor import Tensor


def small():
    w = Tensor(3.0, requires_grad=True)
    a = w * w
    b = a + w
    return w, a * b


def test_every_use_is_an_edge_and_backward_is_recorded():
    w, loss = small()
    found = graph.capture(loss, {w: "w"}, backward=True)
    assert found.names == ["Multiply", "Multiply", "Add", "w"] and found.leaves == {3}
    assert found.order == [0, 2, 1]  # w * w last, although the loss uses it: Add does too
    flowed = {edge: [] for edge in found.edges}
    for edge, gradient in zip(found.edges, found.gradients, strict=True):
        flowed[edge].append(float(gradient))
    assert flowed == {(1, 0): [12], (2, 0): [9], (1, 2): [9], (3, 2): [9], (3, 1): [63, 63]}
    assert w.grad == 9 + 63 + 63
    assert found.depths() == [0, 2, 1, 3]


def test_capturing_alone_leaves_the_graph_for_backward():
    w, loss = small()
    assert graph.capture(loss).gradients == []
    loss.backward()
    assert w.grad == 135


def test_a_tied_weight_is_one_leaf_with_two_uses():
    model = GPT(GPTConfig(layers=1, width=8, heads=2, context=4))
    tokens = np.zeros((1, 4), np.uint8)
    found = graph.capture(model(tokens, tokens), backward=True)
    tied = found.names.index("embeddings.token.weight")
    assert sorted(found.names[user] for source, user in found.edges if source == tied) == ["Embedding", "Linear"]
    assert len(found.leaves) == len(model.parameters())


def test_sources_are_above_their_users():
    w, loss = small()
    figure = graph.draw(graph.capture(loss, {w: "w"}, backward=True), "a title")
    places = {text.get_text(): text.get_position() for text in figure.axes[0].texts}
    heights = [places[name][1] for name in ("w", "Add")]
    assert heights[0] > heights[1]
    assert {"12", "63", "9"} <= set(places)
