"""Fused chains: passes over memory against what NumPy's operations really read and write."""

import numpy as np
import pytest

from minidist.nn.optim.optimizers import adamw_update
from minidist.plan.cluster.fusion import ADAMW, BIAS_GELU, CHAINS, DROPOUT_ADD_NORM, MASKED_SOFTMAX, Chain, Kernel
from minidist.plan.cluster.hardware import load


class Counting(np.ndarray):
    """An array whose operations count the large arrays that they read and write, each once."""

    passes = 0

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        plain = [np.asarray(value) if isinstance(value, np.ndarray) else value for value in inputs]
        results = getattr(ufunc, method)(*plain, out=tuple(map(np.asarray, out)) or None, **options)
        Counting.passes += len({id(value) for value in inputs if isinstance(value, np.ndarray)}) + 1
        return out[0] if out else results.view(Counting)


def test_adamw_passes_over_memory_as_often_as_its_chain_says():
    data, grad, exp_avg, exp_avg_sq = (np.ones(100, np.float32).view(Counting) for _ in range(4))
    Counting.passes = 0
    adamw_update(data, grad, exp_avg, exp_avg_sq, 1, 1e-3, (0.9, 0.95), 1e-8, 0.1)
    assert Counting.passes == len(ADAMW.unfused) == 32


def test_fused_adamw_reads_four_arrays_and_writes_three():
    assert set(ADAMW.inputs) == {"w", "g", "m", "v"} and len(ADAMW.fused) == 7


@pytest.mark.parametrize(
    ("chain", "unfused", "fused"),
    [(BIAS_GELU, 4, 2), (DROPOUT_ADD_NORM, 8, 5), (MASKED_SOFTMAX, 12, 2), (ADAMW, 32, 7)],
)
def test_passes(chain, unfused, fused):
    assert (len(chain.unfused), len(chain.fused)) == (unfused, fused)
    assert set(chain.outputs) <= {name for kernel in chain.kernels for name in kernel.writes}


def test_bytes_are_those_of_the_passes_and_a_mask_has_one_for_each_element():
    assert BIAS_GELU.nbytes(1000, 2) == 8000 and BIAS_GELU.nbytes(1000, 2, fused=True) == 4000
    assert DROPOUT_ADD_NORM.nbytes(1000, 2) == 7 * 2000 + 1000
    assert DROPOUT_ADD_NORM.nbytes(1000, 4, fused=True) == 4 * 4000 + 1000


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain.name)
def test_what_fusion_saves_is_bytes_over_bandwidth(chain):
    h100 = load().accelerators["h100"]
    saved = chain.nbytes(10**6) - chain.nbytes(10**6, fused=True)
    assert chain.seconds_saved(h100, 10**6) == pytest.approx(saved / 3.35e12) and saved > 0
    assert chain.seconds_saved(h100, 10**6, memory_efficiency=0.5) == pytest.approx(2 * saved / 3.35e12)


def test_an_array_that_the_chain_writes_first_comes_not_from_outside():
    chain = Chain("", (Kernel("", ("a",), ("b",)), Kernel("", ("b", "c", "a"), ("a",))), outputs=("a",))
    assert chain.inputs == ("a", "c") and chain.fused == ["a", "c", "a"]
