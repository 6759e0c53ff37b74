"""What operations would ask of a GPU: FLOPs and bytes, as they are recorded."""

import numpy as np

from minidist import flops, trace
from minidist.nn.gpt import GPT
from minidist.nn.layers import ColumnLinear, RowLinear
from minidist.nn.precision.policy import POLICIES, autocast
from minidist.nn.recompute import MODES, recompute_blocks
from minidist.nn.tensor import Tensor
from minidist.train.config import TrainConfig

B, T, C, H = 2, 5, 12, 3
N = B * T


def kernels_of(function) -> list[trace.Kernel]:
    trace.start()
    function()
    return [entry for entry in trace.stop() if isinstance(entry, trace.Kernel)]


def leaf(*shape) -> Tensor:
    return Tensor(np.ones(shape, np.float32), requires_grad=True)


def test_a_linear_layer_is_one_product():
    """Heads do not show: (N, C) by (C, 4 C), whatever number of heads the columns belong to; nor do sums over heads."""
    for precision, policy in POLICIES.items():
        itemsize = 4 if policy.compute is None else 2
        x, layer, outputs = leaf(B, T, C), ColumnLinear(H, C, 4 * C // H, 0.1), []
        with autocast(precision):
            forward = kernels_of(lambda x=x, layer=layer, outputs=outputs: outputs.append(layer(x)))
        gradient = np.ones(outputs[0].shape, np.float32)
        backward = kernels_of(lambda outputs=outputs, gradient=gradient: outputs[0].backward(gradient))
        read = written = N * C + C * 4 * C + 4 * C
        output, each = N * 4 * C, 2 * N * C * 4 * C
        assert [(k.name, k.flops, k.nbytes, k.precision) for k in forward + backward] == [
            ("Linear", each, itemsize * (read + output), precision),
            ("Linear.backward", 2 * each, itemsize * (read + output + written), precision),
        ]
    x, layer = leaf(H, B, T, C // H), RowLinear(H, C // H, C, 0.1)
    found = [(kernel.name, kernel.flops, kernel.nbytes) for kernel in kernels_of(lambda: layer(x))]
    assert found[0] == ("Linear", 2 * N * C * C, 4 * (N * C + C * C + N * C)) and found[1][:2] == ("Add", 0)


def test_kernels_have_all_flops():
    for recompute in MODES:
        for attention in ("plain", "tiled"):
            config = TrainConfig(layers=2, heads=2, width=8, context=8, attention=attention)
            model = GPT(config.model, seed=0)
            recompute_blocks(model, recompute)
            tokens = np.zeros((2, 8), np.int64)
            before = flops.snapshot()
            found = kernels_of(lambda model=model, tokens=tokens: model(tokens, tokens).backward())
            counted = flops.snapshot() - before
            assert sum(kernel.flops for kernel in found) == sum(counted.values()) > 0
            assert (counted["recompute"] > 0) == (recompute != "none" or attention == "tiled")
