"""What operations would ask of a GPU: FLOPs and bytes, as they are recorded."""

import numpy as np
import pytest

from minidist import flops, trace
from minidist.nn import functional
from minidist.nn.arithmetic import reshape
from minidist.nn.gpt import GPT
from minidist.nn.layers import ColumnLinear, RowLinear
from minidist.nn.memory.recompute import recompute_blocks
from minidist.nn.precision.policy import autocast
from minidist.nn.tensor import Tensor
from minidist.train.config import TrainConfig

B, T, C, H = 2, 5, 12, 3


def kernels_of(function) -> list[trace.Kernel]:
    trace.start()
    function()
    return [entry for entry in trace.stop() if isinstance(entry, trace.Kernel)]


def leaf(*shape) -> Tensor:
    return Tensor(np.ones(shape, np.float32), requires_grad=True)


@pytest.mark.parametrize(("precision", "itemsize"), [("fp32", 4), ("bf16", 2), ("fp16", 2), ("fp8", 2)])
def test_a_linear_layer_is_one_product(precision, itemsize):
    """Heads do not show: (N, C) by (C, 4 C), whatever number of heads the columns belong to."""
    x, layer = leaf(B, T, C), ColumnLinear(H, C, 4 * C // H, 0.1)
    with autocast(precision):
        forward, backward = [], []
        forward += kernels_of(lambda: forward.append(layer(x)))
        output = forward.pop(0)
        backward += kernels_of(lambda: output.backward(np.ones(output.shape, np.float32)))
    n = B * T
    assert [(k.name, k.flops, k.nbytes, k.precision) for k in forward] == [
        ("Linear", 2 * n * C * 4 * C, itemsize * (n * C + C * 4 * C + 4 * C + n * 4 * C), precision)
    ]
    read = n * C + C * 4 * C + 4 * C + n * 4 * C  # what forward read, and the output's gradient
    written = n * C + C * 4 * C + 4 * C
    assert [(k.name, k.flops, k.nbytes) for k in backward] == [
        ("Linear.backward", 2 * 2 * n * C * 4 * C, itemsize * (read + written))
    ]


def test_terms_of_a_sum_over_heads_count_once():
    x, layer = leaf(H, B, T, C // H), RowLinear(H, C // H, C, 0.1)
    product, adding = kernels_of(lambda: layer(x))
    n = B * T
    assert (product.name, product.nbytes) == ("Linear", 4 * (n * C + C * C + n * C))
    assert (adding.name, adding.flops) == ("Add", 0)


def test_views_move_nothing():
    x = leaf(B, T, C)
    assert kernels_of(lambda: reshape(x, B * T, C)) == []
    total = functional.copy_to_heads(x, H)
    assert kernels_of(lambda: total.backward(np.ones(total.shape, np.float32))) == []


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("attention", ["plain", "tiled"])
def test_kernels_have_all_flops(recompute, attention):
    config = TrainConfig(layers=2, heads=2, width=8, context=8, attention=attention)
    model = GPT(config.model, seed=0)
    recompute_blocks(model, recompute)
    tokens = np.zeros((2, 8), np.int64)
    before = flops.snapshot()
    found = kernels_of(lambda: model(tokens, tokens).backward())
    counted = flops.snapshot() - before
    assert sum(kernel.flops for kernel in found) == sum(counted.values()) > 0
    assert (counted["recompute"] > 0) == (recompute != "none" or attention == "tiled")


def test_nothing_is_recorded_unless_asked():
    ColumnLinear(H, C, 4, 0.1)(leaf(B, T, C))
    trace.start()
    assert trace.stop() == []
